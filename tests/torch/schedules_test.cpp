// Learning rates by epochs: the numbers of PyTorch's schedulers.
#include "cohive/torch/schedules.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "torch/schedule.hpp"

namespace cohive {
namespace {

/// The learning rates of the first epochs, as a run enters them.
std::vector<double> rates(const SchedulerFn& make, std::uint64_t epochs) {
  torch::optim::SGD sgd({torch::zeros({1})}, 1.0);
  libtorch::Schedule schedule(make, sgd);
  std::vector<double> result;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    schedule.enter_epoch(epoch);
    result.push_back(sgd.param_groups()[0].options().get_lr());
  }
  return result;
}

void expect_rates(EpochFactor factor, const std::vector<double>& expected) {
  const auto found = rates(schedule(std::move(factor)), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << "epoch " << i;
}

TEST(Schedules, LibTorchsSchedulersHaveStepsAsPyTorchs) {
  const auto make = [](torch::optim::Optimizer& of) { return std::make_unique<torch::optim::StepLR>(of, 2, 0.5); };
  EXPECT_EQ(rates(make, 6), (std::vector<double>{1, 1, 0.5, 0.5, 0.25, 0.25}));
}

TEST(Schedules, ThoseOfPyTorchHaveItsNumbers) {
  expect_rates(exponential(0.9), {1, 0.9, 0.81, 0.729});
  expect_rates(cosine(4, 0.1), {1, 0.8681980515339464, 0.55, 0.23180194846605368, 0.1, 0.1});
  expect_rates(one_cycle(10), {0.04, 0.52, 1, 0.9504846320134737, 0.8117456539497631, 0.6112620219362893,
                               0.38874197806371075, 0.18825834605023697, 0.049519367986526286, 4e-06, 4e-06});
  expect_rates(one_cycle(8, {.share_of_rise = 0.25, .div_factor = 10, .final_div_factor = 100}),
               {0.1, 1, 0.9330796891903272, 0.75025, 0.5005, 0.25075, 0.06792031080967287, 0.001});
  expect_rates(linear_warmup(3, nullptr, 0.25), {0.25, 0.5, 0.75, 1, 1});
}

TEST(Schedules, AfterTheWarmUpAnotherOneBegins) {
  expect_rates(linear_warmup(2, linear(4, 0.2)), {0, 0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2});
  expect_rates(linear_warmup(0, exponential(0.5)), {1, 0.5});
}

TEST(Schedules, APeerThatJoinsLateHasTheRateOfTheEpoch) {
  torch::optim::SGD sgd({torch::zeros({1})}, 0.5);
  libtorch::Schedule follower(schedule(cosine(10)), sgd);
  follower.enter_epoch(5);
  EXPECT_NEAR(sgd.param_groups()[0].options().get_lr(), 0.25, 1e-12);
}

/// Returns the learning rate of an epoch that is entered after another one.
double rate_of(std::uint64_t epoch, std::uint64_t before, const SchedulerFn& make) {
  torch::optim::SGD sgd({torch::zeros({1})}, 0.5);
  libtorch::Schedule follower(make, sgd);
  follower.enter_epoch(before);
  follower.enter_epoch(epoch);
  return sgd.param_groups()[0].options().get_lr();
}

std::unique_ptr<torch::optim::LRScheduler> half_each_epoch(torch::optim::Optimizer& of) {
  return std::make_unique<torch::optim::StepLR>(of, 1, 0.5);
}

TEST(Schedules, AnEarlierEpochHasItsRateAgain) {
  for (const SchedulerFn& make : {SchedulerFn(half_each_epoch), schedule(exponential(0.5))}) {
    EXPECT_EQ(rate_of(1, 4, make), 0.25);
    EXPECT_EQ(rate_of(0, 4, make), 0.5);
    EXPECT_EQ(rate_of(5, 4, make), 0.5 / 32);
  }
}

/// A step for each of them would take weeks.
TEST(Schedules, AnEpochThatIsFarAwayIsEnteredAtOnce) {
  constexpr std::uint64_t kFar = std::uint64_t{1} << 47;
  EXPECT_NEAR(rate_of(kFar, 0, schedule(cosine(10, 0.1))), 0.05, 1e-12);
  EXPECT_NEAR(rate_of(kFar + 1, kFar, schedule(cosine(10, 0.1))), 0.05, 1e-12);
  EXPECT_EQ(rate_of(3, kFar, schedule(exponential(0.5))), 0.0625);
  EXPECT_EQ(rate_of(kFar, 0, half_each_epoch), 0);
  EXPECT_EQ(rate_of(3, kFar, half_each_epoch), 0.0625);
}

TEST(Schedules, AFunctionThatMakesNoneIsRefused) {
  torch::optim::SGD sgd({torch::zeros({1})}, 0.5);
  EXPECT_THROW(libtorch::Schedule([](auto&) { return nullptr; }, sgd), std::invalid_argument);
}

TEST(Schedules, EveryGroupKeepsItsOwnRate) {
  using torch::optim::SGDOptions;
  torch::optim::SGD sgd(
      std::vector<torch::optim::OptimizerParamGroup>{{{torch::zeros({1})}, std::make_unique<SGDOptions>(0.8)},
                                                     {{torch::zeros({1})}, std::make_unique<SGDOptions>(0.2)}},
      SGDOptions(0.1));
  libtorch::Schedule(schedule(exponential(0.5)), sgd).enter_epoch(1);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.4);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[1].options().get_lr(), 0.1);
}

TEST(Schedules, NumbersThatMakeNoScheduleAreRefused) {
  EXPECT_THROW(exponential(0), std::invalid_argument);
  EXPECT_THROW(linear(0), std::invalid_argument);
  EXPECT_THROW(cosine(0), std::invalid_argument);
  EXPECT_THROW(cosine(10, -1), std::invalid_argument);
  EXPECT_THROW(one_cycle(1), std::invalid_argument);
  EXPECT_THROW(one_cycle(10, {.div_factor = 0}), std::invalid_argument);
  EXPECT_THROW(linear_warmup(3, nullptr, -1), std::invalid_argument);
}

}  // namespace
}  // namespace cohive
