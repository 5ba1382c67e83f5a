// What the batches of an epoch add up to: the mean over their samples.
#include "cohive/train/gradient_sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace cohive::train {
namespace {

class Sums : public testing::Test {
 protected:
  /// A batch of samples whose mean gradients are these; an empty one: the batch has none of the parameter.
  void add(double samples, const std::vector<std::vector<float>>& gradients, double scale = 1, bool exclusive = true) {
    std::vector<GradientSums::Gradient> batch;
    for (const auto& gradient : gradients) {
      batch.emplace_back();
      if (gradient.empty()) continue;
      auto memory = Buffer::on_host(gradient.size());
      std::ranges::copy(gradient, memory.values.begin());
      batch.back() = {memory.values, memory.owner, exclusive};
    }
    runtime->run(beside_the_loop(*runtime, [&] { sums.add(std::move(batch), samples, scale); }));
  }
  /// As by a trainer's thread, which may have to wait for the loop.
  static Task<void> beside_the_loop(Runtime& runtime, std::function<void()> work) {
    co_await runtime.offload(std::move(work));
  }
  /// The means, and which parameters have one.
  std::pair<std::vector<std::vector<double>>, std::vector<bool>> take() {
    sums.cut();
    const auto taken = runtime->run(sums.take());
    std::vector<std::vector<double>> means;
    for (const auto& sum : taken.sums) {
      means.emplace_back();
      for (const float value : sum.values) means.back().push_back(double{value} * taken.factor);
    }
    return {means, taken.present};
  }

  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 2});
  GradientSums sums{*runtime, host_backend(*runtime), {2, 3}};
};

TEST_F(Sums, WeighABatchByItsSamples) {
  for (const bool exclusive : {true, false}) {
    // Batches of one, seven, three and five samples count for 1/16, 7/16, 3/16 and 5/16.
    add(1, {{1, 0}, {2, 2, 2}}, 1, exclusive);
    add(7, {{2, 0}, {2, 2, 2}}, 1, exclusive);
    add(3, {{4, 0}, {2, 2, 2}}, 1, exclusive);
    add(5, {{8, 0}, {2, 2, 2}}, 1, exclusive);
    const auto [means, present] = take();
    EXPECT_NEAR(means[0][0], (1 * 1 + 2 * 7 + 4 * 3 + 8 * 5) / 16.0, 1e-6);
    for (const double value : means[1]) EXPECT_NEAR(value, 2, 1e-6);
  }
}

TEST_F(Sums, DoNotDependOnTheOrderOfBatches) {
  const auto mean_of = [&](const std::vector<double>& sizes) {
    for (const double size : sizes) add(size, {{static_cast<float>(size), 1}, {0, 0, 1}});
    return take().first;
  };
  const auto once = mean_of({1000, 1, 30}), again = mean_of({1, 30, 1000});
  EXPECT_NEAR(once[0][0], (1000.0 * 1000 + 1 + 30 * 30) / 1031, 1e-3);
  EXPECT_NEAR(once[0][0], again[0][0], 1e-3);
  EXPECT_NEAR(again[0][1], 1, 1e-6);
}

TEST_F(Sums, OfEqualBatchesAreTheirMeanToTheBit) {
  for (int i = 0; i < 3; ++i) add(12, {{1, 2}, {3, 4, 5}});
  sums.cut();
  EXPECT_EQ(runtime->run(sums.take()).factor, 1.0 / 3);
}

TEST_F(Sums, AreWithoutTheScaleOfTheLoss) {
  add(2, {{8, 8}, {8, 0, 0}}, 8);
  add(6, {{5 * 1024, 5 * 1024}, {5 * 1024, 0, 0}}, 1024);
  EXPECT_NEAR(take().first[0][0], (1 * 2 + 5 * 6) / 8.0, 1e-6);
}

TEST_F(Sums, TellWhichParametersHadAGradient) {
  add(4, {{}, {1, 1, 1}});
  add(4, {{}, {}});
  const auto [means, present] = take();
  EXPECT_EQ(present, (std::vector<bool>{false, true}));
  EXPECT_EQ(means[0], (std::vector<double>{0, 0}));
  EXPECT_NEAR(means[1][0], 0.5, 1e-6) << "a batch without it counts as zeros, as where gradients add up";
  EXPECT_EQ(take().second, (std::vector<bool>{false, false})) << "the next epoch has nothing yet";
  add(1, {{std::numeric_limits<float>::infinity(), 0}, {1, 1, 1}});
  EXPECT_EQ(take().second, (std::vector<bool>{false, false})) << "nothing of it is used";
}

TEST_F(Sums, RefuseABatchWithoutSamples) {
  for (const double samples : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THROW(add(samples, {{1, 1}, {1, 1, 1}}), std::invalid_argument) << samples;
}

}  // namespace
}  // namespace cohive::train
