#include "cohive/torch/grad_scaler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A trainer whose gradient is what a test says, before the loss is scaled.
struct ScalingTrainer {
  explicit ScalingTrainer(OptimizerOptions options, torch::ScalarType type = torch::kFloat32,
                          GradScalerOptions scaling = {})
      : weight(torch::zeros({4}, type).requires_grad_()),
        swarm(alone()),
        optimizer(
            swarm, {OptimizerParamGroup({weight})},
            [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 1.0); }, options),
        scaler(scaling) {}
  StepReport step(double gradient) {
    scaler.scale((weight * gradient).sum()).backward();
    const auto report = scaler.step(optimizer, kBatch);
    scaler.update();
    return report;
  }
  torch::Tensor weight;
  Swarm swarm;
  Optimizer optimizer;
  GradScaler scaler;
};

TEST(GradScaler, StepsAreThoseOfGradientsWithoutScale) {
  std::vector<std::pair<OptimizerOptions, torch::ScalarType>> modes(6, {epochs_of_three_batches(), torch::kFloat32});
  modes[1].first.reuse_grad_buffers = true;
  modes[2].first.use_local_updates = true;
  modes[3].second = torch::kFloat64;  // LibTorch's optimizer steps
  modes[4].first.offload_optimizer = true;
  modes[4].second = torch::kBFloat16;
  modes[5].first.use_local_updates = true;
  modes[5].second = torch::kFloat64;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    SCOPED_TRACE(i);
    ScalingTrainer trainer(modes[i].first, modes[i].second);
    for (int batch = 0; batch < kBatches; ++batch) trainer.step(0.25);
    const float steps = modes[i].first.use_local_updates ? kBatches : 1;
    EXPECT_EQ(trainer.weight[0].item<float>(), -0.25f * steps);
  }
}

TEST(GradScaler, GradientsThatHalfPrecisionWouldLoseAreKept) {
  auto options = epochs_of_three_batches();
  options.offload_optimizer = true;
  constexpr double kSmall = 1e-9;  // half precision ends at 6e-8
  ScalingTrainer trainer(options, torch::kFloat16, {.init_scale = 32768});
  for (int batch = 0; batch < kBatches; ++batch) trainer.step(kSmall);
  const auto master = trainer.optimizer.optimizer().param_groups()[0].params()[0];
  EXPECT_NEAR(master[0].item<double>(), -kSmall, kSmall * 1e-2);
}

TEST(GradScaler, ABatchThatOverflowsDoesNotCountAndLowersTheScale) {
  ScalingTrainer trainer(epochs_of_three_batches());
  EXPECT_FALSE(trainer.step(0.5).epoch_changed);
  EXPECT_FALSE(trainer.step(kInfinity).epoch_changed);
  EXPECT_EQ(trainer.scaler.get_scale(), 32768);
  EXPECT_FALSE(trainer.step(0.5).epoch_changed) << "two batches have counted";
  EXPECT_TRUE(trainer.step(0.5).epoch_changed) << "with gradients of two scales in one epoch";
  EXPECT_EQ(trainer.weight[0].item<float>(), -0.5f);
  EXPECT_EQ(trainer.scaler.get_scale(), 32768);
}

TEST(GradScaler, WithReusedBuffersAnOverflowBeginsTheEpochAnew) {
  auto options = epochs_of_three_batches();
  options.reuse_grad_buffers = true;
  ScalingTrainer trainer(options);
  trainer.step(5);
  trainer.step(kInfinity);
  for (int batch = 1; batch < kBatches; ++batch) EXPECT_FALSE(trainer.step(0.5).epoch_changed);
  EXPECT_TRUE(trainer.step(0.5).epoch_changed);
  EXPECT_EQ(trainer.weight[0].item<float>(), -0.5f);
}

TEST(GradScaler, TheScaleGrowsWithEpochsNotWithBatches) {
  ScalingTrainer trainer(epochs_of_three_batches(), torch::kFloat32, {.init_scale = 4, .growth_interval = 2});
  std::vector<double> scales;
  for (int batch = 0; batch < 4 * kBatches; ++batch) {
    trainer.step(1);
    scales.push_back(trainer.scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 16}));
}

TEST(GradScaler, UnscaleOnlyLooksAtGradients) {
  ScalingTrainer trainer(epochs_of_three_batches());
  trainer.scaler.scale(trainer.weight.sum()).backward();
  EXPECT_TRUE(trainer.scaler.unscale_(trainer.optimizer));
  EXPECT_EQ(trainer.weight.grad()[0].item<float>(), 65536);
  trainer.weight.mutable_grad()[1] = kInfinity;
  EXPECT_FALSE(trainer.scaler.unscale_(trainer.optimizer));
  trainer.scaler.step(trainer.optimizer, kBatch);
  EXPECT_FALSE(trainer.weight.grad().defined()) << "the batch is gone";
}

TEST(GradScaler, TellsInsideOfAStepWhatTheUpdateAfterItWillMake) {
  ScalingTrainer trainer(epochs_of_three_batches(), torch::kFloat32, {.init_scale = 8, .growth_interval = 1});
  EXPECT_EQ(trainer.scaler.state_after_update(false).scale, 8);
  EXPECT_EQ(trainer.scaler.state_after_update(true).scale, 16);
  EXPECT_EQ(trainer.scaler.get_scale(), 8) << "nothing has changed";
  trainer.scaler.scale((trainer.weight * kInfinity).sum()).backward();
  EXPECT_FALSE(trainer.scaler.unscale_(trainer.optimizer));
  EXPECT_EQ(trainer.scaler.state_after_update(true).scale, 4) << "an overflow goes before the end of an epoch";
  trainer.scaler.step(trainer.optimizer, kBatch);
  EXPECT_EQ(trainer.scaler.state_after_update(false).scale, 4);
  trainer.scaler.update();
  EXPECT_EQ(trainer.scaler.get_scale(), 4);
}

TEST(GradScaler, ItsStateGoesOn) {
  GradScaler first({.init_scale = 8, .growth_interval = 5}), second;
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(second.get_scale(), 8);
  EXPECT_EQ(second.state_dict().growth_interval, 5);
  GradScalerState bad;
  bad.scale = 0;
  EXPECT_THROW(second.load_state_dict(bad), std::invalid_argument);
  EXPECT_THROW(GradScaler({.backoff_factor = 2}), std::invalid_argument);
}

TEST(GradScaler, OffItChangesNothing) {
  ScalingTrainer trainer(epochs_of_three_batches(), torch::kFloat32, {.enabled = false});
  for (int batch = 0; batch < kBatches; ++batch) trainer.step(0.5);
  EXPECT_EQ(trainer.weight[0].item<float>(), -0.5f);
  EXPECT_EQ(trainer.scaler.get_scale(), 1);
}

}  // namespace
}  // namespace cohive
