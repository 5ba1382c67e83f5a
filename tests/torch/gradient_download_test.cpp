// In which order gradients leave a device, what is copied again, and what is not. The link is a fake: its copies are
// made when somebody waits for them.
#include "torch/gradient_download.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "cohive/core/runtime.hpp"
#include "torch/fake_link.hpp"

namespace cohive::libtorch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kHalfABucket = std::int64_t{2} << 20;  // float32 values: 8 MiB

struct Downloads : testing::Test {
  torch::Tensor parameter(std::int64_t size, torch::ScalarType type = torch::kFloat32) const {
    return torch::zeros({size}, type).requires_grad_();
  }
  std::vector<const void*> copied() const {
    std::vector<const void*> all;
    for (const auto& entry : link->log)
      if (entry.from) all.push_back(entry.from);
    return all;
  }
  /// What arrives, as tensors of the parameters' types; undefined where there is no gradient.
  std::vector<torch::Tensor> arrived(const GradientDownload::Batch& batch,
                                     const std::vector<torch::Tensor>& parameters) {
    if (batch.transfer) batch.transfer->wait();
    std::vector<torch::Tensor> all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      all.emplace_back();
      const auto& values = batch.gradients[i].values;
      if (!values.empty())
        all.back() = torch::from_blob(values.data(), parameters[i].sizes(), parameters[i].scalar_type()).clone();
    }
    return all;
  }

  std::shared_ptr<FakeLink> link = std::make_shared<FakeLink>();
};

const FakeLink::Entry kNoted{"noted"}, kFollow{"follow"};

TEST_F(Downloads, BucketsLeaveInTheOrderInWhichBackwardFillsThem) {
  const std::vector parameters{parameter(kHalfABucket), parameter(kHalfABucket), parameter(kHalfABucket), parameter(7)};
  GradientDownload download(link, parameters, true);
  for (const int i : {2, 0, 3, 1}) {  // the order of a model that runs its layers so: the third first
    (parameters[static_cast<std::size_t>(i)] * (i + 1)).sum().backward();
  }
  const auto gradient = [&](std::size_t i) { return FakeLink::Entry{"copy", parameters[i].grad().data_ptr()}; };
  const auto g0 = gradient(0), g1 = gradient(1), g2 = gradient(2), g3 = gradient(3);
  EXPECT_THAT(link->log, ElementsAre(kNoted, kFollow, g2, g0)) << "the second bucket is not full";
  const auto batch = download.take();
  EXPECT_THAT(link->log, ElementsAre(kNoted, kFollow, g2, g0, kNoted, kFollow, g1, g3));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_FALSE(parameters[i].grad().defined());
    EXPECT_FALSE(batch.gradients[i].exclusive) << "pinned memory comes back";
  }
  const auto all = arrived(batch, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(all[i], torch::full_like(all[i], static_cast<double>(i + 1)))) << i;
}

TEST_F(Downloads, WithoutHooksEverythingLeavesAtTheStep) {
  const std::vector parameters{parameter(2 * kHalfABucket), parameter(3, torch::kBFloat16), parameter(5)};
  GradientDownload download(link, parameters, false);
  (parameters[0].sum() + parameters[1].sum()).backward();
  EXPECT_THAT(link->log, IsEmpty());
  const auto* const first = parameters[0].grad().data_ptr();
  const auto* const second = parameters[1].grad().data_ptr();
  const auto batch = download.take();
  EXPECT_THAT(copied(), ElementsAre(first, second));
  const auto all = arrived(batch, parameters);
  EXPECT_TRUE(torch::equal(all[1], torch::ones({3}, torch::kBFloat16)));
  EXPECT_FALSE(all[2].defined()) << "it has no gradient";
}

TEST_F(Downloads, ABatchOfSeveralBackwardCallsLeavesOnceItIsKnownHowMany) {
  const std::vector parameters{parameter(2 * kHalfABucket)};
  GradientDownload download(link, parameters, true);
  for (int batch = 0; batch < 3; ++batch) {
    link->log.clear();
    for (int i = 0; i < 3; ++i) (parameters[0] * (batch + 1)).sum().backward();
    const auto during = copied().size();
    const auto all = arrived(download.take(), parameters);
    EXPECT_TRUE(torch::equal(all[0], torch::full_like(all[0], 3 * (batch + 1)))) << "never a part of the sum";
    EXPECT_EQ(during, batch == 0 ? 3u : 1u);
    EXPECT_EQ(copied().size(), during) << "nothing is left for the step";
  }
  link->log.clear();
  parameters[0].sum().backward();  // fewer than before
  EXPECT_THAT(copied(), IsEmpty());
  const auto all = arrived(download.take(), parameters);
  EXPECT_TRUE(torch::equal(all[0], torch::ones_like(all[0])));
}

TEST_F(Downloads, WhatIsChangedAfterBackwardIsCopiedAgain) {
  const std::vector parameters{parameter(2 * kHalfABucket), parameter(2 * kHalfABucket), parameter(2 * kHalfABucket)};
  GradientDownload download(link, parameters, true);
  (parameters[0].sum() + parameters[1].sum() + parameters[2].sum()).backward();
  parameters[0].mutable_grad().mul_(5);
  parameters[1].mutable_grad() = torch::full({2 * kHalfABucket}, 6.0f);
  auto held = parameters[2].grad();  // whoever holds it may write to it after the step
  const auto batch = download.take();
  held.zero_();
  EXPECT_EQ(copied().size(), 6u);
  const auto all = arrived(batch, parameters);
  EXPECT_EQ(all[0][0].item<float>(), 5);
  EXPECT_EQ(all[1][0].item<float>(), 6);
  EXPECT_EQ(all[2][0].item<float>(), 1);
}

TEST_F(Downloads, SparseAndStridedGradientsArriveDense) {
  const std::vector parameters{torch::zeros({3, 2}).requires_grad_(), torch::zeros({4, 3}).requires_grad_()};
  GradientDownload download(link, parameters, true);
  const auto indices = torch::tensor({{1, 1}}, torch::kInt64);
  parameters[0].mutable_grad() = torch::sparse_coo_tensor(indices, torch::ones({2, 2}), {3, 2});
  parameters[1].mutable_grad() = torch::arange(12, torch::kFloat32).reshape({3, 4}).t();
  const auto all = arrived(download.take(), parameters);
  EXPECT_TRUE(torch::equal(all[0], torch::tensor({{0.0f, 0.0f}, {2.0f, 2.0f}, {0.0f, 0.0f}})));
  EXPECT_TRUE(torch::equal(all[1], torch::arange(12, torch::kFloat32).reshape({3, 4}).t()));
}

TEST_F(Downloads, TheLastViewOfALargeBufferDoesNotKeepIt) {
  const std::vector parameters{parameter(3), parameter(3)};
  GradientDownload download(link, parameters, false);
  auto flat = torch::arange(6, torch::kFloat32);
  const auto buffer = flat.storage().getWeakStorageImpl();
  parameters[0].mutable_grad() = flat.narrow(0, 0, 3).variable_data();
  parameters[1].mutable_grad() = flat.narrow(0, 3, 3).variable_data();
  flat.reset();
  const auto batch = download.take();
  EXPECT_TRUE(buffer.expired());
  const auto all = arrived(batch, parameters);
  EXPECT_TRUE(torch::equal(all[0], torch::tensor({0.0f, 1.0f, 2.0f})));
  EXPECT_TRUE(torch::equal(all[1], torch::tensor({3.0f, 4.0f, 5.0f})));
}

TEST_F(Downloads, AnotherHookOfAParameterGoesOn) {
  struct Counting final : torch::autograd::PostAccumulateGradHook {
    explicit Counting(int& of) : calls(of) {}
    void operator()(const torch::autograd::Variable&) override { ++calls; }
    int& calls;
  };
  int calls = 0;
  const std::vector parameters{parameter(2 * kHalfABucket)};
  torch::autograd::impl::set_post_acc_grad_hooks(parameters[0], std::make_unique<Counting>(calls));
  {
    GradientDownload download(link, parameters, true);
    parameters[0].sum().backward();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(copied().size(), 1u);
  }
  parameters[0].sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(copied().size(), 1u) << "the download is gone";
}

TEST_F(Downloads, ADroppedBatchLeavesNothingBehind) {
  const std::vector parameters{parameter(2 * kHalfABucket)};
  GradientDownload download(link, parameters, true);
  (parameters[0] * 3).sum().backward();
  download.drop();
  parameters[0].mutable_grad().reset();
  parameters[0].sum().backward();
  const auto all = arrived(download.take(), parameters);
  EXPECT_TRUE(torch::equal(all[0], torch::ones_like(all[0])));
  EXPECT_EQ(link->opened, 1);
}

TEST_F(Downloads, MemoryIsUsedAgainWhenNothingReadsItAnyMore) {
  const std::vector parameters{parameter(2 * kHalfABucket)};
  GradientDownload download(link, parameters, true);
  GradientDownload::Batch read;
  for (int i = 0; i < 4; ++i) {
    (parameters[0] * i).sum().backward();
    auto batch = download.take();
    batch.transfer->wait();
    if (i == 0) read = std::move(batch);
  }
  EXPECT_EQ(link->opened, 2);
  EXPECT_EQ(arrived(read, parameters)[0][0].item<float>(), 0) << "nothing has been written over it";
}

TEST_F(Downloads, AnErrorDuringBackwardIsTheStepsAndNotBackwards) {
  const std::vector parameters{parameter(2 * kHalfABucket)};
  GradientDownload download(link, parameters, true);
  link->refusing = true;
  EXPECT_NO_THROW(parameters[0].sum().backward());
  EXPECT_THROW(download.take(), std::runtime_error);
  link->refusing = false;
  const auto again = arrived(download.take(), parameters);
  EXPECT_TRUE(torch::equal(again[0], torch::ones_like(again[0]))) << "the next step has the gradients";
  link->refusing = true;
  parameters[0].sum().backward();
  download.drop();
  parameters[0].mutable_grad().reset();
  link->refusing = false;
  (parameters[0] * 2).sum().backward();
  const auto next = arrived(download.take(), parameters);
  EXPECT_TRUE(torch::equal(next[0], torch::full_like(next[0], 2))) << "the error went with its batch";
}

}  // namespace
}  // namespace cohive::libtorch
