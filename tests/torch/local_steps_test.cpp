// Local steps with an outer optimizer, on every kind of model.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <thread>

#include "torch/training.hpp"

namespace cohive {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr std::uint64_t kRounds = 4;

OptimizerOptions rounds(bool delayed) {
  OptimizerOptions options;
  options.run_id = "local-steps";
  options.target_batch_size = 40 * kBatch;
  options.matchmaking_time = 2s;
  options.averaging_timeout = 20s;
  options.use_local_updates = true;
  options.delay_state_averaging = delayed;
  options.outer_optimizer = train::OuterOptimizer{.momentum = 0.5};
  return options;
}

/// A trainer that is drawn to a place of its own.
struct Trainer {
  Trainer(const std::vector<std::string>& peers, const OptimizerOptions& options, double place, torch::ScalarType type)
      : place(place),
        weight(torch::zeros({6}, type).requires_grad_()),
        swarm(joining(peers)),
        adam({weight}, torch::optim::AdamOptions(0.01)),
        optimizer(swarm, adam, options) {}
  StepReport step() {
    (weight - place).pow(2).mean().backward();
    return optimizer.step(kBatch);
  }
  double at() const { return weight.mean().item<double>(); }

  double place;
  torch::Tensor weight;
  Swarm swarm;
  torch::optim::Adam adam;
  Optimizer optimizer;
};

struct Kind {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool delayed = false;
};
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class LocalSteps : public ::testing::TestWithParam<Kind> {};

TEST_P(LocalSteps, EndBetweenThePlacesOfTheTrainers) {
  const auto options = rounds(GetParam().delayed);
  Trainer first({}, options, 1, GetParam().type);
  Trainer second(first.swarm.visible_addresses(), options, 3, GetParam().type);
  std::atomic<int> done = 0;
  const auto train = [&done](Trainer& trainer) {
    std::uint64_t together = 0;
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (done < 2 && std::chrono::steady_clock::now() < give_up) {
      together += trainer.step().state_group == 2;
      if (together == kRounds) ++done, ++together;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // what a batch takes
    }
    return trainer.optimizer.finish();
  };
  auto beside = std::async(std::launch::async, [&] { return train(second); });
  EXPECT_EQ(train(first), 2u);
  EXPECT_EQ(beside.get(), 2u);
  EXPECT_EQ(done, 2) << "rounds of both";
  EXPECT_NEAR(first.at(), second.at(), 1e-3) << "they end at one place";
  EXPECT_GT(first.at(), 0.2) << "and have moved";
}

INSTANTIATE_TEST_SUITE_P(Models, LocalSteps,
                         ::testing::Values(Kind{"Float32"}, Kind{"Float32Delayed", torch::kFloat32, true},
                                           Kind{"Float64", torch::kFloat64},
                                           Kind{"Float64Delayed", torch::kFloat64, true},
                                           Kind{"BFloat16", torch::kBFloat16}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace cohive
