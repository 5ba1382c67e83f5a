// Trainers on a device whose optimizer steps in host memory: the bits are those that LibTorch's own copies give,
// whichever way gradients leave, and an error of the device reaches the trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "cohive/cuda/errors.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cuda/emulator/driver.hpp"
#include "cuda/torch/emulated_link.hpp"
#include "torch/device_backend.hpp"
#include "torch/parameter_upload.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using libtorch::HostLinkInUse;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

/// Three layers, the first of which fills several buckets, and one that is not used. None has memory of its own, so
/// that float32 ones are offloaded as those of a device are.
struct OffloadedModel {
  explicit OffloadedModel(torch::ScalarType type)
      : memory(torch::linspace(-1, 1, kFirst + 3 * kSide * kSide).to(type)),
        first(part(0, kFirst)),
        second(part(kFirst, kSide * kSide)),
        third(part(kFirst + kSide * kSide, kSide * kSide)),
        unused(part(kFirst + 2 * kSide * kSide, kSide * kSide)) {}

  static constexpr std::int64_t kSide = 32, kFirst = 9 << 20;
  torch::Tensor part(std::int64_t begin, std::int64_t size) const {
    return memory.narrow(0, begin, size).detach().requires_grad_();
  }
  std::vector<torch::Tensor> parameters() const { return {first, second, third, unused}; }
  void backward(std::int64_t seed, bool nonlinear) const {
    const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    const auto in = torch::randn({kSide, kSide}, generator).to(memory.scalar_type());
    auto out = in.matmul(second.reshape({kSide, kSide}));
    if (nonlinear) out = out.tanh().matmul(third.reshape({kSide, kSide})) + first.narrow(0, seed * 1000, 1).exp();
    (out.sum() / 100 + (first * in[0][0]).sum() + third.sum()).backward();
  }
  torch::Tensor memory, first, second, third, unused;
};

struct Way {
  bool linked, early, delayed = false;
  int calls = 1;  ///< of backward() in a batch
  bool reuse = false;
};

OptimizerOptions options_of(const Way& way) {
  auto options = epochs_of_three_batches();
  options.offload_optimizer = true;
  options.offload_gradients_early = way.early;
  options.reuse_grad_buffers = way.reuse;
  options.delay_optimizer_step = options.delay_state_averaging = options.delay_grad_averaging = way.delayed;
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<OptimizerParamGroup> groups) {
  return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(0.01));
}

/// Trains for some epochs. The model's memory; nullopt where an epoch has ended with another batch than the third, as
/// it may by the clock on a busy machine.
std::optional<torch::Tensor> try_to_train(torch::ScalarType type, const Way& way) {
  std::optional<HostLinkInUse> none;
  if (!way.linked) none.emplace([](Runtime&) { return nullptr; });
  OffloadedModel model(type);
  {
    Swarm swarm(alone());
    Optimizer optimizer(swarm, {OptimizerParamGroup(model.parameters())}, make_adam, options_of(way));
    for (std::int64_t i = 0; i < 3 * kBatches; ++i) {
      // What is delayed arrives at one batch or another: gradients must not depend on it.
      for (int call = 0; call < way.calls; ++call) model.backward(10 * i + call, !way.delayed);
      if (i == 4) model.second.mutable_grad().mul_(0.5);
      if (optimizer.step(kBatch).epoch_changed != (i % kBatches == kBatches - 1)) return std::nullopt;
    }
    optimizer.finish();
  }
  return model.memory;
}

torch::Tensor trained(torch::ScalarType type, const Way& way) {
  for (int tries = 0; tries < 20; ++tries)
    if (auto memory = try_to_train(type, way)) return *memory;
  ADD_FAILURE() << "epochs end by the clock";
  return {};
}

class OffloadedTraining : public testing::TestWithParam<torch::ScalarType> {};

TEST_P(OffloadedTraining, HasTheBitsOfCopiesByLibTorch) {
  for (const bool delayed : {false, true})
    for (const int calls : {1, 3}) {
      const auto expected = trained(GetParam(), {false, false, delayed, calls});
      for (const bool early : {false, true})
        EXPECT_TRUE(torch::equal(trained(GetParam(), {true, early, delayed, calls}), expected))
            << (delayed ? "delayed" : "at once") << (early ? ", early, " : ", ") << calls << " calls";
    }
}

INSTANTIATE_TEST_SUITE_P(Types, OffloadedTraining, testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat64));

TEST(OffloadedTrainer, ReusedBuffersHaveTheSameBits) {
  Way way{.linked = false, .early = false, .reuse = true};
  const auto expected = trained(torch::kBFloat16, way);
  way.linked = true;
  EXPECT_TRUE(torch::equal(trained(torch::kBFloat16, way), expected));
}

/// With what was queued, and not with a wait for ever.
TEST(OffloadedTrainer, ADeviceThatFailsMidwayIsTheStepsError) {
  for (const bool early : {false, true})
    for (const int after : {0, 3, 20}) {
      OffloadedModel model(torch::kBFloat16);
      Swarm swarm(alone());
      Optimizer optimizer(swarm, {OptimizerParamGroup(model.parameters())}, make_adam, options_of({true, early}));
      std::string error;
      cuda::emulated::fail_after(after, 700);
      for (std::int64_t i = 0; i < 10 * kBatches && error.empty(); ++i) {
        model.backward(i, true);
        try {
          optimizer.step(kBatch);
        } catch (const ErrorException& failed) {
          EXPECT_EQ(failed.error(), std::error_code(cuda::Errc::failed));
          error = failed.error().message();
        }
      }
      cuda::emulated::fail_after(0, 0);
      EXPECT_THAT(error, HasSubstr("on GPU 0: an error that a test asked for")) << after;
      EXPECT_THAT(error, HasSubstr("copy to the ")) << after;
    }
}

/// Pins memory for its trainer's thread, and for no other one.
class LinkOfOneThread final : public train::DeviceLink {
 public:
  LinkOfOneThread(std::shared_ptr<train::DeviceLink> link, std::thread::id trainer)
      : link_(std::move(link)), trainer_(trainer) {}
  std::unique_ptr<train::Transfer> open(std::size_t bytes) override {
    if (std::this_thread::get_id() != trainer_) throw ErrorException(Error(cuda::Errc::out_of_memory, "pinned memory"));
    return link_->open(bytes);
  }
  void sync_with_caller_stream() override { link_->sync_with_caller_stream(); }

 private:
  const std::shared_ptr<train::DeviceLink> link_;
  const std::thread::id trainer_;
};

/// Gradients arrive and are stepped with, and no parameter can be sent back.
TEST(OffloadedTrainer, WhatFailsAtTheEndOfAnEpochIsAStepsError) {
  const HostLinkInUse link([trainer = std::this_thread::get_id()](Runtime& runtime) {
    return std::make_shared<LinkOfOneThread>(cuda::emulated::make_waiting_link(runtime), trainer);
  });
  for (const bool delayed : {false, true}) {
    OffloadedModel model(torch::kBFloat16);
    Swarm swarm(alone());
    Optimizer optimizer(swarm, {OptimizerParamGroup(model.parameters())}, make_adam,
                        options_of({true, false, delayed}));
    std::optional<Error> error;
    for (std::int64_t i = 0; i < 3 * kBatches && !error; ++i) {
      model.backward(i, true);
      try {
        optimizer.step(kBatch);
      } catch (const ErrorException& failed) {
        error = failed.error();
      }
    }
    ASSERT_TRUE(error) << delayed;
    EXPECT_EQ(*error, std::error_code(cuda::Errc::out_of_memory));
  }
}

/// A machine that has no more memory to pin.
class LinkWithoutMemory final : public train::DeviceLink {
 public:
  std::unique_ptr<train::Transfer> open(std::size_t) override {
    throw ErrorException(Error(cuda::Errc::out_of_memory, "pinned memory"));
  }
  void sync_with_caller_stream() override {}
};

TEST(ParameterUploads, WithoutPinnedMemoryAreAnError) {
  libtorch::ParameterUpload upload(std::make_shared<LinkWithoutMemory>(), {torch::zeros({1000}, torch::kBFloat16)});
  const auto values = torch::ones({1000});
  const std::span all(values.data_ptr<float>(), 1000);
  for (const bool at_once : {true, false}) {
    upload.begin(at_once);
    for (const std::size_t at : {0, 500}) upload.stage({0, at, 500}, all.subspan(at, 500));
    EXPECT_THROW(upload.finish({values}), ErrorException);
    EXPECT_FALSE(upload.ready());
  }
}

}  // namespace
}  // namespace cohive
