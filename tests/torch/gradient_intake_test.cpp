// What memory the gradients of a batch keep once they were handed over.
#include "torch/gradient_intake.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace cohive::libtorch {
namespace {

/// As by a trainer's thread, which may have to wait for the loop.
Task<void> run_beside_the_loop(Runtime& runtime, std::function<void()> work) {
  co_await runtime.offload(std::move(work));
}

TEST(GradientIntake, TheLastViewOfALargeBufferDoesNotKeepIt) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  const std::vector<torch::Tensor> parameters{torch::zeros({3}).requires_grad_(), torch::zeros({3}).requires_grad_()};
  train::GradientSums sums(*runtime, train::host_backend(*runtime), {3, 3});
  GradientIntake intake(sums, parameters, torch::kCPU, std::make_shared<TrainerStream>(), false);
  auto flat = torch::arange(6, torch::kFloat32);
  const auto buffer = flat.storage().getWeakStorageImpl();
  parameters[0].mutable_grad() = flat.narrow(0, 0, 3).variable_data();
  parameters[1].mutable_grad() = flat.narrow(0, 3, 3).variable_data();
  flat.reset();
  runtime->run(run_beside_the_loop(*runtime, [&] { intake.take_batch(1, 1); }));
  EXPECT_TRUE(buffer.expired());
  intake.cut();
  const auto taken = runtime->run(intake.take());
  EXPECT_EQ(taken.sums[1].values[2], 5);
}

}  // namespace
}  // namespace cohive::libtorch
