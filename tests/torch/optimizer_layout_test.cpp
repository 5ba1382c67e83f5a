// The settings of optimizers as PyTorch 2.11's state_dict() has them, and those of donors that have others.
#include "torch/optimizer_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cohive/torch/schedules.hpp"
#include "torch/schedule.hpp"

namespace cohive::libtorch {
namespace {

namespace to = torch::optim;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<torch::Tensor> two() {
  return {torch::zeros({2}).requires_grad_(), torch::zeros({3}).requires_grad_()};
}

std::string text_of(const std::vector<msgpack::Value>& leaves) {
  std::string text;
  for (const auto& leaf : leaves) {
    const auto& value = *leaf.get_if<msgpack::Map>()->find("value");
    std::ostringstream one;
    if (value.is_nil())
      one << "None";
    else if (const auto* flag = value.get_if<bool>())
      one << (*flag ? "True" : "False");
    else if (const auto number = value.as_uint())
      one << *number;
    else
      one << *value.as_number();
    text += (text.empty() ? "" : " ") + one.str();
  }
  return text;
}

std::string plain(to::Optimizer& optimizer, const PythonPeers& python = {}) {
  return text_of(OptimizerLayout({}, python).leaves(optimizer));
}

std::string scheduled(to::Optimizer& optimizer, EpochFactor factor) {
  Schedule of(schedule(std::move(factor)), optimizer);
  of.enter_epoch(3);
  return text_of(OptimizerLayout(of.entries(), {}).leaves(optimizer));
}

TEST(OptimizerLayout, IsPyTorchsForEveryClass) {
  to::SGD sgd(two(), to::SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(plain(sgd), "0 False None None 0.1 False 0.9 False 0 1 0");
  to::Adam adam(two(), to::AdamOptions(0.25));
  EXPECT_EQ(plain(adam), "False 0.9 0.999 False False False 1e-08 None None 0.25 False 0 1 0");
  to::AdamW adamw(two(), to::AdamWOptions(0.25).amsgrad(true));
  EXPECT_EQ(plain(adamw), "True 0.9 0.999 False True False 1e-08 None None 0.25 False 0 1 0.01");
  to::RMSprop rmsprop(two(), to::RMSpropOptions(0.25).centered(true));
  EXPECT_EQ(plain(rmsprop), "0.99 False True False 1e-08 None 0.25 False 0 0 1 0");
  to::Adagrad adagrad(two(), to::AdagradOptions(0.25));
  EXPECT_EQ(plain(adagrad), "False 1e-10 None None 0 0.25 0 False 0 1 0");
}

TEST(OptimizerLayout, ASchedulerKeepsTheFirstRateOfEveryGroup) {
  to::SGD sgd(two(), to::SGDOptions(0.5));
  EXPECT_EQ(scheduled(sgd, exponential(0.5)), "0 False None None 0.5 0.0625 False 0 False 0 1 0");
  to::Adagrad adagrad(two(), to::AdagradOptions(0.5));
  EXPECT_EQ(scheduled(adagrad, exponential(0.5)), "False 1e-10 None None 0 0.5 0.0625 0 False 0 1 0");
  to::Adam groups(std::vector<to::OptimizerParamGroup>{{{torch::zeros({2})}, std::make_unique<to::AdamOptions>(0.5)},
                                                       {{torch::zeros({3})}, std::make_unique<to::AdamOptions>(0.25)}});
  EXPECT_EQ(scheduled(groups, exponential(0.5)),
            "False 0.9 0.999 False False False 1e-08 None None 0.5 0.0625 False 0 0 "
            "False 0.9 0.999 False False False 1e-08 None None 0.25 0.03125 False 1 0");
}

TEST(OptimizerLayout, OneCycleKeepsItsBoundsToo) {
  to::SGD sgd(two(), to::SGDOptions(0.5).momentum(0.9));
  const OneCycleOptions how{.share_of_rise = 0.3, .div_factor = 10, .final_div_factor = 4};
  // Of initial_lr, lr, max_lr, maximize and min_lr.
  const std::string found = scheduled(sgd, one_cycle(10, how));
  EXPECT_THAT(found, ::testing::StartsWith("0 False None None 0.05 "));
  EXPECT_THAT(found, ::testing::EndsWith(" 0.5 False 0.0125 0.9 False 0 1 0"));
}

TEST(OptimizerLayout, LibTorchsSchedulersKeepTheFirstRate) {
  to::SGD sgd(two(), to::SGDOptions(0.5));
  Schedule of([](to::Optimizer& optimizer) { return std::make_unique<to::StepLR>(optimizer, 1, 0.5); }, sgd);
  of.enter_epoch(2);
  EXPECT_EQ(text_of(OptimizerLayout(of.entries(), {}).leaves(sgd)), "0 False None None 0.5 0.125 False 0 False 0 1 0");
}

TEST(OptimizerLayout, IsThatOfPythonPeersWhereTheyDiffer) {
  to::AdamW adamw(two(), to::AdamWOptions(0.25));
  EXPECT_EQ(plain(adamw, {.torch = "2.6"}), "False 0.9 0.999 False False 1e-08 None None 0.25 False 0 1 0.01");
  EXPECT_EQ(plain(adamw, {.torch = "2.7"}), plain(adamw));
  EXPECT_EQ(plain(adamw, {.torch = "2.4.1"}), plain(adamw, {.torch = "2.6"}));
  to::SGD sgd(two(), to::SGDOptions(0.5));
  EXPECT_EQ(plain(sgd, {.scheduler = true}), "0 False None None 0.5 0.5 False 0 False 0 1 0");
  const std::vector<ScheduleEntries> entries = {{{"initial_lr", 0.5}}};
  EXPECT_EQ(text_of(OptimizerLayout(entries, {.scheduler = false}).leaves(sgd)), plain(sgd));
  for (const char* none : {"2", "2.3", "1.13", "two", "2.x", "-2.7", "2.", ".7", "2000000000.1", "99999999999.1"})
    EXPECT_THROW(check(PythonPeers{.torch = none}), std::invalid_argument) << none;
  EXPECT_NO_THROW(check(PythonPeers{}));
}

TEST(OptimizerLayout, AFormForPeersWithASchedulerIsThereUnlessSomebodyKnows) {
  to::SGD sgd(two(), to::SGDOptions(0.5));
  EXPECT_EQ(text_of(*OptimizerLayout().leaves_with_schedule(sgd)), plain(sgd, {.scheduler = true}));
  EXPECT_FALSE(OptimizerLayout({}, {.scheduler = false}).leaves_with_schedule(sgd));
  EXPECT_FALSE(OptimizerLayout({}, {.scheduler = true}).leaves_with_schedule(sgd));
  EXPECT_FALSE(OptimizerLayout({{{"initial_lr", 0.5}}}, {}).leaves_with_schedule(sgd));
}

/// What a trainer says of a donor, and its own form afterwards.
struct Compared {
  Compared(to::Optimizer& ours, const std::vector<msgpack::Value>& theirs, OptimizerLayout layout = {})
      : result(layout.compare(ours, msgpack::Array{theirs})), afterwards(text_of(layout.leaves(ours))) {}
  OptimizerLayout::Comparison result;
  std::string afterwards;
};

TEST(OptimizerLayout, ADonorThatIsSetUpAlikeIsNothingToSpeakOf) {
  to::AdamW ours(two(), to::AdamWOptions(0.25)), theirs(two(), to::AdamWOptions(0.25));
  const Compared compared(ours, OptimizerLayout().leaves(theirs));
  EXPECT_THAT(compared.result.differences, ElementsAre());
  EXPECT_FALSE(compared.result.other_class);
  EXPECT_EQ(compared.afterwards, plain(ours));
  EXPECT_THAT(Compared(ours, {}).result.differences, ElementsAre()) << "a donor that says nothing";
}

TEST(OptimizerLayout, SettingsThatDifferAreNamed) {
  to::AdamW ours(two(), to::AdamWOptions(0.25));
  to::Adam theirs(two(), to::AdamOptions(0.5).betas({0.9, 0.99}));
  const Compared compared(ours, OptimizerLayout().leaves(theirs));
  EXPECT_THAT(compared.result.differences,
              ElementsAre("betas is 0.99 there and 0.999 here", "decoupled_weight_decay is false there and true here",
                          "lr is 0.5 there and 0.25 here", "weight_decay is 0 there and 0.01 here"));
  EXPECT_FALSE(compared.result.other_class);
}

TEST(OptimizerLayout, ADonorsFormIsThatOfTheRun) {
  to::AdamW ours(two(), to::AdamWOptions(0.25)), theirs(two(), to::AdamWOptions(0.25));
  const OptimizerLayout with({{{"initial_lr", 0.25}}}, {.torch = "2.6"}), without;
  const Compared takes(ours, with.leaves(theirs));
  EXPECT_THAT(takes.result.differences,
              ElementsAre("it has a scheduler and this trainer has none", "it is of PyTorch 2.6 or earlier"));
  EXPECT_EQ(takes.afterwards, text_of(with.leaves(ours)));
  const Compared drops(ours, without.leaves(theirs), OptimizerLayout({{{"initial_lr", 0.25}}}, {}));
  EXPECT_THAT(drops.result.differences, ElementsAre("it has no scheduler and this trainer has one"));
  EXPECT_EQ(drops.afterwards, plain(ours));
  const OptimizerLayout told({{{"initial_lr", 0.25}}}, {.scheduler = true, .torch = "2.7"});
  const Compared known(ours, without.leaves(theirs), told);
  EXPECT_EQ(known.afterwards, text_of(told.leaves(ours))) << "the user knows better";
}

TEST(OptimizerLayout, SchedulersAreComparedByTheirFirstRate) {
  to::SGD sgd(two(), to::SGDOptions(0.1));
  const OptimizerLayout ours({{{"initial_lr", 0.1}}}, {}), theirs({{{"initial_lr", 0.2}}}, {});
  EXPECT_THAT(Compared(sgd, theirs.leaves(sgd), ours).result.differences,
              ElementsAre("initial_lr is 0.2 there and 0.1 here"));
}

TEST(OptimizerLayout, OtherClassesAndGroupsAreRecognised) {
  to::Adam adam(two(), to::AdamOptions(0.25));
  to::RMSprop rmsprop(two(), to::RMSpropOptions(0.25));
  const Compared other(adam, OptimizerLayout().leaves(rmsprop));
  EXPECT_TRUE(other.result.other_class);
  EXPECT_THAT(other.result.differences, ElementsAre("it is RMSprop"));
  to::Adam groups(std::vector<to::OptimizerParamGroup>{{{torch::zeros({2})}}, {{torch::zeros({3})}}},
                  to::AdamOptions(0.25));
  for (auto* ours : {&adam, &groups}) {
    auto* theirs = ours == &adam ? &groups : &adam;
    const Compared compared(*ours, OptimizerLayout().leaves(*theirs));
    EXPECT_FALSE(compared.result.other_class);
    ASSERT_EQ(compared.result.differences.size(), 1u);
    EXPECT_THAT(compared.result.differences[0], HasSubstr("its groups have "));
  }
}

TEST(OptimizerLayout, NonsenseIsNotRecognised) {
  to::Adam adam(two(), to::AdamOptions(0.25));
  auto leaves = OptimizerLayout().leaves(adam);
  const std::vector<msgpack::Value> all = {nullptr, 7, "text", msgpack::Map{}, msgpack::Map{{{"value", "text"}}}};
  for (const msgpack::Value& nonsense : all)
    for (std::size_t at = 0; at < leaves.size(); ++at) {
      auto spoilt = leaves;
      spoilt[at] = nonsense;
      const Compared compared(adam, spoilt);
      EXPECT_EQ(compared.afterwards, plain(adam));
    }
  leaves.resize(5);
  EXPECT_EQ(Compared(adam, leaves).result.differences.size(), 1u);
}

}  // namespace
}  // namespace cohive::libtorch
