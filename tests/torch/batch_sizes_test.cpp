// Batches of different sizes: an epoch's gradient is the mean over its samples, whatever way the gradients take.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohive/core/log_output.hpp"
#include "cohive/torch/grad_scaler.hpp"
#include "cohive/torch/optimizer.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr std::int64_t kBatchSizes[] = {1, 7, 3, 5};
constexpr std::int64_t kOfAll = 16;

torch::Tensor samples_of(std::int64_t size, torch::ScalarType type) {
  return torch::randn({size, 6}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(size))).to(type);
}

/// What one batch with all the samples comes to: w - mean gradient.
torch::Tensor one_batch() {
  auto weight = torch::full({6}, 0.5f).requires_grad_();
  std::vector<torch::Tensor> all;
  for (const auto size : kBatchSizes) all.push_back(samples_of(size, torch::kFloat32));
  torch::cat(all).matmul(weight).pow(2).mean().backward();
  return (weight - weight.grad()).detach();
}

struct SizesWay {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool offload = false, delay = false;
};

TEST(BatchSizes, WeighByTheirSamplesWhateverTheModelIs) {
  for (const auto& way : {SizesWay{"in place"}, SizesWay{.name = "float64, by LibTorch", .type = torch::kFloat64},
                          SizesWay{.name = "offloaded", .offload = true}, SizesWay{.name = "delayed", .delay = true},
                          SizesWay{.name = "float64, offloaded", .type = torch::kFloat64, .offload = true}}) {
    SCOPED_TRACE(way.name);
    auto options = epochs_of_three_batches();
    options.target_batch_size = kOfAll;
    options.offload_optimizer = way.offload;
    options.delay_optimizer_step = options.delay_state_averaging = way.delay;
    auto weight = torch::full({6}, 0.5, way.type).requires_grad_();
    Swarm swarm(alone());
    Optimizer optimizer(
        swarm, {OptimizerParamGroup({weight})},
        [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 1.0); }, options);
    for (const auto size : kBatchSizes) {
      samples_of(size, way.type).matmul(weight).pow(2).mean().backward();
      EXPECT_EQ(optimizer.step(size).epoch_changed, size == 5);
    }
    optimizer.finish();
    EXPECT_TRUE(torch::allclose(weight.to(torch::kFloat32), one_batch(), 1e-5, 1e-6)) << weight << one_batch();
  }
}

TEST(BatchSizes, WeighByTheirSamplesWithAScaledLoss) {
  auto options = epochs_of_three_batches();
  options.target_batch_size = kOfAll;
  auto weight = torch::full({6}, 0.5f).requires_grad_();
  Swarm swarm(alone());
  torch::optim::SGD sgd({weight}, 1.0);
  Optimizer optimizer(swarm, sgd, options);
  GradScaler scaler;
  for (const auto size : kBatchSizes) {
    scaler.scale(samples_of(size, torch::kFloat32).matmul(weight).pow(2).mean()).backward();
    optimizer.step(size, scaler);
  }
  EXPECT_TRUE(torch::allclose(weight, one_batch(), 1e-5, 1e-6)) << weight << one_batch();
}

/// They add up in the model before anybody knows how large they are.
TEST(BatchSizes, WeighTheSameInReusedBuffersWhichIsSaidOnce) {
  auto options = epochs_of_three_batches();
  options.target_batch_size = kOfAll;
  options.reuse_grad_buffers = true;
  auto weight = torch::zeros({1}).requires_grad_();
  Swarm swarm(alone());
  torch::optim::SGD sgd({weight}, 1.0);
  Optimizer optimizer(swarm, sgd, options);
  ::testing::internal::CaptureStderr();
  for (const auto size : kBatchSizes) {
    (weight * static_cast<float>(size)).sum().backward();
    optimizer.step(size);
  }
  EXPECT_FLOAT_EQ(weight.item<float>(), -(1 + 7 + 3 + 5) / 4.0f);
  EXPECT_TRUE(log::flush());
  const std::string lines = ::testing::internal::GetCapturedStderr();
  const auto told = lines.find("with reuse_grad_buffers batches of 1 and of 7 samples weigh the same");
  EXPECT_NE(told, std::string::npos) << lines;
  EXPECT_EQ(lines.find("weigh the same", lines.find("weigh the same") + 1), std::string::npos) << lines;
}

}  // namespace
}  // namespace cohive
