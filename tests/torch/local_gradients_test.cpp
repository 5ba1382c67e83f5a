// Gradients of a batch that steps by itself, with local updates: their bound, and those of embeddings that are sparse.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "cohive/torch/grad_scaler.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;

struct LocalWay {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool offload = false;
};
void PrintTo(const LocalWay& way, std::ostream* out) {
  *out << way.name;
}

class LocalGradients : public ::testing::TestWithParam<LocalWay> {
 protected:
  OptimizerOptions options() const {
    auto options = epochs_of_three_batches();
    options.use_local_updates = true;
    options.offload_optimizer = GetParam().offload;
    return options;
  }
  static OptimizerFactory plain_steps() {
    return [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 1.0); };
  }
  Swarm swarm{alone()};
};

TEST_P(LocalGradients, AreBoundedTogether) {
  auto first = torch::zeros({2}, GetParam().type).requires_grad_();
  auto second = torch::zeros({3}, GetParam().type).requires_grad_();
  Optimizer optimizer(swarm, {OptimizerParamGroup({first, second})}, plain_steps(), options());
  optimizer.clip_grad_norm(0.5);
  GradScaler scaler({.init_scale = 4096});
  const auto step = [&](double gradient) {
    scaler.scale((first * gradient).sum() + (second * gradient).sum()).backward();
    optimizer.step(kBatch, scaler);
    scaler.update();
  };
  step(2);
  const double bounded = 0.5 / std::sqrt(5.0);
  EXPECT_NEAR(first[0].item<double>(), -bounded, 2e-3);
  EXPECT_NEAR(second[2].item<double>(), -bounded, 2e-3);
  step(0.125);
  EXPECT_NEAR(first[1].item<double>(), -bounded - 0.125, 2e-3) << "a smaller one is left alone";
  optimizer.clip_grad_norm(0);
  step(1);
  EXPECT_NEAR(first[1].item<double>(), -bounded - 1.125, 1e-2);
}

TEST_P(LocalGradients, ThatAreNotFiniteTakeNoStep) {
  auto weight = torch::zeros({2}, GetParam().type).requires_grad_();
  Optimizer optimizer(swarm, {OptimizerParamGroup({weight})}, plain_steps(), options());
  const auto step = [&](double gradient) {
    (weight * gradient).sum().backward();
    optimizer.step(kBatch);
  };
  step(1);
  step(std::nan(""));
  EXPECT_EQ(weight[0].item<double>(), -1);
  EXPECT_FALSE(weight.grad().defined()) << "they are dropped";
  step(1);
  EXPECT_EQ(optimizer.local_epoch(), 0u) << "the samples of two batches count, and an epoch has three";
  step(1);
  EXPECT_EQ(optimizer.local_epoch(), 1u);
  EXPECT_EQ(weight[1].item<double>(), -3);
}

TEST_P(LocalGradients, OfSparseEmbeddingsStepRowsThatABatchUses) {
  auto weight = torch::zeros({4, 2}, GetParam().type).requires_grad_();
  Optimizer optimizer(swarm, {OptimizerParamGroup({weight})}, plain_steps(), options());
  const auto indices = torch::tensor({1, 3, 3}, torch::kLong);
  torch::embedding(weight, indices, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum().backward();
  ASSERT_TRUE(weight.grad().is_sparse());
  optimizer.step(kBatch);
  const auto rows = weight.detach().to(torch::kFloat32).sum(1);
  EXPECT_TRUE(torch::equal(rows, torch::tensor({0.f, -2.f, 0.f, -4.f}))) << rows;
}

INSTANTIATE_TEST_SUITE_P(Models, LocalGradients,
                         ::testing::Values(LocalWay{"Float32"}, LocalWay{"Float64", torch::kFloat64},
                                           LocalWay{"BFloat16", torch::kBFloat16},
                                           LocalWay{"BFloat16Offloaded", torch::kBFloat16, true}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace cohive
