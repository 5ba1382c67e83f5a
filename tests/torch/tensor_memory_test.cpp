#include "cohive/torch/tensor_memory.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <thread>

namespace cohive {
namespace {

constexpr std::int64_t kMegabyte = 1 << 18;  // float32 values

class TensorMemory : public testing::Test {
 protected:
  void SetUp() override {
    recycle_tensor_memory();
    (void)torch::ones({16 * kMegabyte}).sum();  // LibTorch itself takes memory at its first use
  }

  static double resident_megabytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
    return 0;
  }
};

TEST_F(TensorMemory, AReleasedTensorServesTheNextOfItsSize) {
  auto tensor = torch::ones({8 * kMegabyte});
  const void* const memory = tensor.data_ptr();
  tensor.reset();
  const auto other = torch::ones({9 * kMegabyte}), same = torch::zeros({8 * kMegabyte});
  EXPECT_NE(other.data_ptr(), memory);
  EXPECT_EQ(same.data_ptr(), memory);
  EXPECT_EQ(same.abs().sum().item<float>(), 0);
}

TEST_F(TensorMemory, GradientsOfBatchAfterBatchTakeTheMemoryOfOne) {
  const auto parameter = torch::zeros({64 * kMegabyte}, torch::requires_grad());
  const auto batch = [&] {
    parameter.mutable_grad().reset();
    (parameter * 2).sum().backward();
  };
  batch();
  const double before = resident_megabytes();
  for (int i = 0; i < 5; ++i) batch();
  EXPECT_LT(resident_megabytes(), before + 32);
}

TEST_F(TensorMemory, WhatIsNotNeededAnyMoreGoesBackToTheSystem) {
  const double before = resident_megabytes();
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 32; ++i) tensors.push_back(torch::ones({16 * kMegabyte}));
  EXPECT_GT(resident_megabytes(), before + 400);  // what was kept before is used first
  tensors.clear();
  EXPECT_LT(resident_megabytes(), before + 96);
}

TEST_F(TensorMemory, SmallTensorsAndEmptyOnesAreAsTheyWere) {
  EXPECT_EQ(torch::empty({0}).numel(), 0);
  EXPECT_EQ(torch::ones({1000}).sum().item<float>(), 1000);
}

TEST_F(TensorMemory, ThreadsTakeAndReleaseAtOnce) {
  std::vector<std::thread> threads;
  std::vector<torch::Tensor> left(4);
  for (std::size_t number = 0; number < left.size(); ++number)
    threads.emplace_back([&left, number] {
      for (std::int64_t i = 0; i < 50; ++i)
        left[number] = torch::full({(4 + i % 3) * kMegabyte}, static_cast<float>(number));
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t number = 0; number < left.size(); ++number) {
    EXPECT_EQ(left[number].min().item<float>(), static_cast<float>(number));
    EXPECT_EQ(left[number].max().item<float>(), static_cast<float>(number));
  }
}

}  // namespace
}  // namespace cohive
