// Models that LibTorch steps, with parameters on a device: gradients and copies of the parameters are averaged there,
// with the bits of the host's averages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <barrier>
#include <future>
#include <thread>

#include "cohive/torch/optimizer.hpp"
#include "cuda/emulator/driver.hpp"
#include "torch/device_backend.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using testing::Contains;
using testing::Not;

/// An optimizer of the user's own.
class SignSgd final : public torch::optim::SGD {
 public:
  explicit SignSgd(std::vector<torch::Tensor> parameters)
      : SGD(std::move(parameters), torch::optim::SGDOptions(0.125)) {}
  torch::Tensor step(LossClosure) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (auto& parameter : group.params())
        if (parameter.grad().defined()) parameter.sub_(parameter.grad().sign() * 0.125);
    return {};
  }
};

struct Tiny {
  explicit Tiny(torch::ScalarType type) : weight(torch::linspace(-1, 1, 700).to(type).requires_grad_()) {}
  void backward(std::int64_t seed) const {
    const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    const auto in = torch::randn({700}, generator).to(weight.scalar_type());
    ((weight * in).sum() + (weight * weight).sum() * 0.25).backward();
  }
  torch::Tensor weight;
};

enum class ForeignKind { momentum, own, local };

/// Trains for three epochs. The parameters, or nothing where an epoch has ended with another batch than the third.
std::optional<torch::Tensor> try_to_train(torch::ScalarType type, ForeignKind kind, bool on_device) {
  std::optional<libtorch::HostBackendInUse> host;
  if (!on_device) host.emplace(&train::host_backend);
  auto options = epochs_of_three_batches();
  options.use_local_updates = kind == ForeignKind::local;
  Tiny model(type);
  Swarm swarm(alone());
  std::unique_ptr<torch::optim::Optimizer> of;
  if (kind == ForeignKind::own)
    of = std::make_unique<SignSgd>(std::vector<torch::Tensor>{model.weight});
  else
    of = std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>{model.weight},
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
  Optimizer optimizer(swarm, *of, options);
  for (std::int64_t i = 0; i < 3 * kBatches; ++i) {
    model.backward(i);
    const bool ended = optimizer.step(kBatch).epoch_changed;
    if (kind != ForeignKind::local && ended != (i % kBatches == kBatches - 1)) return std::nullopt;
  }
  return model.weight.detach();
}

torch::Tensor trained(torch::ScalarType type, ForeignKind kind, bool on_device) {
  for (int tries = 0; tries < 20; ++tries)
    if (auto weight = try_to_train(type, kind, on_device)) return *weight;
  ADD_FAILURE() << "epochs end by the clock";
  return {};
}

TEST(ForeignModels, AreAveragedOnTheirDeviceWithTheHostsBits) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16, torch::kFloat32})
    for (const ForeignKind kind : {ForeignKind::momentum, ForeignKind::own, ForeignKind::local}) {
      cuda::emulated::take_kernels();
      const auto there = trained(type, kind, true);
      const auto kernels = cuda::emulated::take_kernels();
      const auto here = trained(type, kind, false);
      EXPECT_TRUE(torch::equal(there, here)) << type << " " << static_cast<int>(kind);
      EXPECT_TRUE(torch::isfinite(there).all().item<bool>());
      if (kind != ForeignKind::local)
        EXPECT_THAT(kernels, Contains("accumulate")) << type << " " << static_cast<int>(kind);
      EXPECT_TRUE(cuda::emulated::take_kernels().empty());
    }
}

TEST(ForeignModels, OfDoublesStayWithTheHost) {
  cuda::emulated::take_kernels();
  trained(torch::kFloat64, ForeignKind::momentum, true);
  EXPECT_TRUE(cuda::emulated::take_kernels().empty());
}

/// Two trainers that step by themselves in each batch, and average parameters of 16 bits on the device.
TEST(ForeignModels, LocalUpdatesAreAveragedThere) {
  struct Trainer {
    explicit Trainer(const std::vector<std::string>& peers, float own)
        : swarm(joining(peers)), value(own), weight(torch::full({700}, own, torch::kBFloat16).requires_grad_()) {
      auto options = epochs_of_three_batches();
      options.use_local_updates = true;
      options.target_batch_size = 100 * kBatch;
      optimizer.emplace(swarm, sgd, options);
      optimizer->load_state_from_peers();  // a newcomer is a member of the run before the epoch goes on
    }
    /// The peers that its first epoch ended with. Both are known before any makes the second batch.
    std::size_t run(std::barrier<>& both) {
      for (std::size_t batches = 0;; ++batches) {
        if (batches == 1) meet(*optimizer, both);
        {  // in each batch: the one that comes later takes the state of the other
          const torch::NoGradGuard no_gradients;
          weight.fill_(value);
        }
        (weight * 0).sum().backward();
        if (const auto report = optimizer->step(kBatch); report.epoch_changed) return report.state_group;
      }
    }
    Swarm swarm;
    const float value;
    torch::Tensor weight;
    torch::optim::SGD sgd{{weight}, 0.1};
    std::optional<Optimizer> optimizer;
  };
  cuda::emulated::take_kernels();
  Trainer first({}, 1), second(first.swarm.visible_addresses(), 3);
  std::barrier both(2);
  auto beside = std::async(std::launch::async, [&] { return second.run(both); });
  EXPECT_EQ(first.run(both), 2u);
  EXPECT_EQ(beside.get(), 2u);
  for (const auto* trainer : {&first, &second})
    EXPECT_TRUE(torch::equal(trainer->weight.detach(), torch::full({700}, 2, torch::kBFloat16))) << trainer->weight[0];
  EXPECT_THAT(cuda::emulated::take_kernels(), Not(testing::IsEmpty()));
}

}  // namespace
}  // namespace cohive
