// PowerSGD of gradients on a device: LibTorch multiplies there, and factors alone travel. Beside the same rounds in
// host memory.
#include <gmock/gmock.h>

#include <barrier>
#include <future>
#include <limits>
#include <random>
#include <thread>

#include "../../../cuda/lanes.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/averaging/power_sgd.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "cuda/emulator/driver.hpp"
#include "cuda/torch/emulated_products.hpp"
#include "torch/training.hpp"

namespace cohive::cuda {
namespace {

using averaging::HostParts;
using averaging::PowerSgd;
using averaging::TensorInfo;
using averaging::TensorParts;
using testing::HasSubstr;

/// A round whose all-reduces give the mean of this member's values and others that are made up.
class MadeUpRound final : public averaging::RoundContext {
 public:
  MadeUpRound(Runtime& runtime, std::shared_ptr<TensorParts> tensors, double weight)
      : runtime_(runtime), tensors_(std::move(tensors)), terms_{weight, 1} {}

  Runtime& runtime() const noexcept override { return runtime_; }
  const averaging::Group& group() const noexcept override { return group_; }
  std::size_t own_index() const noexcept override { return 0; }
  const averaging::Terms& terms() const noexcept override { return terms_; }
  TensorParts& tensors() const noexcept override { return *tensors_; }
  Task<Result<>> all_reduce(TensorParts& tensors, std::string phase) override {
    if (phase == failing) co_return Error(averaging::Errc::round_cancelled);
    for (std::size_t i = 0; i < tensors.infos().size(); ++i) {
      const averaging::Stretch all{i, 0, tensors.infos()[i].elements()};
      auto read = co_await averaging::read_values(tensors, all);
      if (!read) co_return read.error();
      auto values = std::move(*read);
      for (std::size_t k = 0; k < values.size(); ++k)
        values[k] = values[k] / 2 + static_cast<float>((k * 7 + i) % 11) / 20 - 0.25f;
      if (phase == huge) values.front() = std::numeric_limits<float>::max();
      if (auto done = co_await averaging::apply_average(tensors, all, std::move(values), terms_); !done) co_return done;
    }
    co_return ok();
  }

  std::string failing, huge;  // phases

 private:
  Runtime& runtime_;
  const std::shared_ptr<TensorParts> tensors_;
  const averaging::Terms terms_;
  const averaging::Group group_;
};

const std::vector<TensorInfo> kInfos{{.shape = {70, 130}}, {.shape = {37}}, {.shape = {40, 3, 5, 5}}};
constexpr std::size_t kRank = 4;
constexpr std::size_t kFactors = kRank * (70 + 130 + 40 + 75);  // values of P and Q of both matrices

class PowerSgdOnDevice : public ::testing::Test {
 protected:
  struct Member {
    explicit Member(bool device) : on_device(device) {}
    const bool on_device;
    PowerSgd sgd{kInfos, {kRank, 0.2}};
    std::vector<std::vector<float>> gradients;
  };

  std::vector<std::vector<float>> draw() {
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> gradients;
    for (const auto& info : kInfos) {
      gradients.emplace_back(info.elements());
      for (float& value : gradients.back()) value = normal(random);
    }
    return gradients;
  }

  /// A round with these gradients, which become its results.
  Result<> round(Member& member, double weight = 1, const std::string& failing = {}) {
    std::vector<DeviceBuffer> there;
    std::vector<averaging::TensorSpan> memory;
    for (auto& gradient : member.gradients) {
      there.push_back(DeviceBuffer::create(gradient.size() * sizeof(float)).value());
      if (member.on_device) std::ranges::copy(gradient, there.back().floats().begin());  // its memory is the host's
      memory.emplace_back(member.on_device ? there.back().floats() : std::span(gradient));
    }
    std::shared_ptr<TensorParts> parts = std::make_shared<HostParts>(*runtime, kInfos, memory);
    if (member.on_device) {
      DevicePartsOptions options;
      options.lanes = lanes;
      options.products = products;
      parts = DeviceParts::create(*runtime, kInfos, memory, std::move(options)).value();
    }
    MadeUpRound context(*runtime, parts, weight);
    context.failing = failing;
    context.huge = huge;
    emulated::take_copied();
    emulated::take_waits();
    auto done = runtime->run(member.sgd.scheme()(context));
    copied = emulated::take_copied();
    waits = emulated::take_waits();
    emulated::fail_after(0, 0);
    if (done || !failing.empty()) runtime->run(parts->finish());
    for (std::size_t i = 0; member.on_device && i < there.size(); ++i)
      std::ranges::copy(there[i].floats(), member.gradients[i].begin());
    return done;
  }

  static void expect_near(const std::vector<float>& one, const std::vector<float>& other, const char* what) {
    ASSERT_EQ(one.size(), other.size()) << what;
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], other[i], 2e-4) << what << " " << i;
  }
  static void expect_alike(const Member& one, const Member& other) {
    for (std::size_t i = 0; i < kInfos.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(expect_near(one.gradients[i], other.gradients[i], "gradient"));
      ASSERT_NO_FATAL_FAILURE(expect_near(one.sgd.residual(i), other.sgd.residual(i), "residual"));
    }
  }

  std::mt19937 random{1};
  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 2});
  std::shared_ptr<Lanes> lanes;  // as a trainer has them; null: each round makes its own
  std::shared_ptr<LowRankProducts> products = emulated::make_products();
  std::string huge;  // the phase in which an average is as large as a float can be
  emulated::Copied copied;
  std::vector<std::string> waits;  // of the loop's thread
};

TEST_F(PowerSgdOnDevice, RoundsAreThoseOfAHost) {
  Member here(false), there(true);
  for (int number = 0; number < 4; ++number) {
    here.gradients = there.gradients = draw();
    ASSERT_TRUE(round(here));
    ASSERT_TRUE(round(there));
    ASSERT_NO_FATAL_FAILURE(expect_alike(here, there));
  }
}

TEST_F(PowerSgdOnDevice, FactorsAloneTravel) {
  Member there(true);
  for (int number = 0; number < 2; ++number) {
    there.gradients = draw();
    ASSERT_TRUE(round(there));
    // Each factor goes to the host, its average comes back, and Q was there before. The vector is averaged as it is.
    EXPECT_EQ(copied.to_host, (kFactors + 37) * sizeof(float));
    EXPECT_EQ(copied.to_device, (kFactors + kRank * (130 + 75) + 37) * sizeof(float));
  }
}

TEST_F(PowerSgdOnDevice, WhatIsAppliedAndOwedAddsUp) {
  Member there(true);
  there.gradients = draw();
  const auto before = there.gradients;
  ASSERT_TRUE(round(there));
  for (const std::size_t i : {0, 2}) {
    const auto owed = there.sgd.residual(i);
    for (std::size_t k = 0; k < owed.size(); ++k)
      ASSERT_NEAR(there.gradients[i][k] + owed[k], before[i][k], 1e-5) << i << " " << k;
  }
}

TEST_F(PowerSgdOnDevice, AMemberWithoutWeightTakesTheAverageAndOwesWhatItDid) {
  Member here(false), there(true);
  here.gradients = there.gradients = draw();
  ASSERT_TRUE(round(here));
  ASSERT_TRUE(round(there));
  const auto owed = there.sgd.residual(0);
  here.gradients = there.gradients = draw();
  ASSERT_TRUE(round(here, 0));
  ASSERT_TRUE(round(there, 0));
  EXPECT_EQ(there.sgd.residual(0), owed);
  expect_alike(here, there);
}

TEST_F(PowerSgdOnDevice, ARoundThatFailsChangesNothing) {
  Member there(true);
  there.gradients = draw();
  ASSERT_TRUE(round(there));
  const auto owed = there.sgd.residual(0);
  const auto gradients = there.gradients = draw();
  EXPECT_FALSE(round(there, 1, "PHASE_Q"));
  EXPECT_EQ(there.gradients, gradients);
  EXPECT_EQ(there.sgd.residual(0), owed);
}

TEST_F(PowerSgdOnDevice, ValuesThatAreNotFiniteEndTheRound) {
  Member there(true);
  there.gradients = draw();
  there.gradients[0][77] = std::nanf("");
  const auto done = round(there);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error(), averaging::Errc::not_finite);
}

TEST_F(PowerSgdOnDevice, AnAverageWhoseProductNoFloatMayHoldIsNotApplied) {
  for (const char* phase : {"PHASE_P", "PHASE_Q"}) {
    huge = phase;
    Member there(true);
    there.gradients = draw();
    const auto before = there.gradients[0];
    const auto done = round(there);
    ASSERT_FALSE(done) << phase;
    EXPECT_EQ(done.error(), averaging::Errc::not_finite) << phase;
    EXPECT_EQ(there.gradients[0], before) << phase;
  }
}

TEST_F(PowerSgdOnDevice, WhatIsOwedSurvivesAPause) {
  Member first(true), resumed(true);
  first.gradients = draw();
  ASSERT_TRUE(round(first));
  ASSERT_TRUE(runtime->run(resumed.sgd.restore(*runtime, runtime->run(first.sgd.save(*runtime)))));
  EXPECT_EQ(resumed.sgd.residual(2), first.sgd.residual(2));
  first.gradients = resumed.gradients = draw();
  ASSERT_TRUE(round(first));
  ASSERT_TRUE(round(resumed));
  expect_alike(first, resumed);
}

TEST_F(PowerSgdOnDevice, ADeviceThatFailsEndsTheRound) {
  Member there(true);
  for (const int after : {0, 2, 7}) {
    there.gradients = draw();
    emulated::fail_after(after, 700);
    const auto done = round(there);
    ASSERT_FALSE(done) << after;
    if (after == 0) EXPECT_THAT(done.error().message(), HasSubstr("copy to the device, PowerSGD's projection, copy"));
  }
}

TEST_F(PowerSgdOnDevice, WhatALibraryCannotStartIsNamed) {
  products = libtorch::make_products(torch::kCPU, [](CUstream_st*, const std::function<Result<>()>&) -> Result<> {
    return Error(cohive::Errc::internal, "no library");
  });
  Member there(true);
  there.gradients = draw();
  const auto done = round(there);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("starting PowerSGD's projection on GPU 0: no library"));
}

TEST(LowRankProducts, OweNoValuesThatTheyHaveFailedToReplace) {
  const auto products = libtorch::make_products(torch::kCPU, [](CUstream_st*, auto work) { return work(); });
  std::vector<float> values{1, 2, 3, 4}, owed{8, 8, 8, 8};
  const std::vector<float> factor(2);
  constexpr auto kNoRank = static_cast<std::size_t>(-1);  // which LibTorch refuses
  const LowRankProducts::Matrix matrix{values.data(), owed.data(), 2, 2, kNoRank};
  EXPECT_FALSE(products->expand(nullptr, matrix, factor.data(), factor.data(), owed.data(), values.data()));
  EXPECT_EQ(owed, std::vector<float>(4, 8));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(PowerSgdOnDevice, TheLoopWaitsForNoDevice) {
  lanes = Lanes::create(*runtime, 0, 2).value();
  Member there(true);
  for (int number = 0; number < 2; ++number) {
    there.gradients = draw();
    ASSERT_TRUE(round(there));
    EXPECT_THAT(waits, testing::IsEmpty());
  }
  emulated::take_waits();
  there.sgd.reset_residuals();
  EXPECT_THAT(emulated::take_waits(), testing::IsEmpty());
}

/// LibTorch's trainers, whose gradients are the emulated device's. Each has a matrix of rank 1: factors of rank 2 hold
/// the average.
struct PowerSgdTrainer {
  explicit PowerSgdTrainer(const std::vector<std::string>& peers) : swarm(joining(peers)) {
    auto options = epochs_of_three_batches();
    options.target_batch_size = 100 * kBatch;
    options.average_state_every = 100;
    options.grad_averager_factory = train::power_sgd_averager({.averager_rank = 2, .min_compression_ratio = 0.1});
    optimizer.emplace(swarm, sgd, options);
    optimizer->load_state_from_peers();  // a newcomer is a member of the run before the epoch goes on
  }
  /// An epoch with the same gradient in each batch: the number of batches. Both trainers know of each other before any
  /// makes its second.
  std::size_t run(const torch::Tensor& gradient, std::barrier<>& both) {
    for (std::size_t batches = 0;;) {
      if (batches == 1) meet(*optimizer, both);
      ++batches;
      (weight * gradient).sum().backward();
      const auto report = optimizer->step(kBatch);
      if (!report.epoch_changed) continue;
      EXPECT_EQ(report.grad_group, 2u);
      return batches;
    }
  }
  Swarm swarm;
  torch::Tensor weight = torch::zeros({40, 60}).requires_grad_();
  torch::optim::SGD sgd{{weight}, 1.0};
  std::optional<Optimizer> optimizer;
};

TEST(PowerSgdOfTrainers, AveragesGradientsWhereTheyAre) {
  PowerSgdTrainer first({}), second(first.swarm.visible_addresses());
  const auto one = torch::linspace(-1, 1, 40).outer(torch::linspace(-1, 1, 60));
  const auto other = torch::linspace(-1, 2, 40).outer(torch::linspace(0, 1, 60));
  emulated::take_copied();
  std::barrier both(2);
  auto beside = std::async(std::launch::async, [&] { return second.run(other, both); });
  const auto batches = first.run(one, both), other_batches = beside.get();
  EXPECT_LT(emulated::take_copied().to_host, 2u * 40 * 60 * sizeof(float)) << "factors, and no gradients";
  const double share = static_cast<double>(batches) / static_cast<double>(batches + other_batches);
  const auto expected = -(one * share + other * (1 - share));
  for (const auto* trainer : {&first, &second})
    EXPECT_LT((trainer->weight.detach() - expected).abs().max().item<float>(), 1e-3f);
}

}  // namespace
}  // namespace cohive::cuda
