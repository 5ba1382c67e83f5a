// Local steps with an outer optimizer, on every kind of model.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <thread>

#include "cohive/torch/schedules.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

constexpr auto kLongestTraining = std::chrono::seconds(60);
constexpr std::uint64_t kEpochsTogether = 6;

OptimizerOptions local_rounds(bool delayed) {
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
struct TrainerAtAPlace {
  TrainerAtAPlace(const std::vector<std::string>& peers, const OptimizerOptions& options, double place,
                  torch::ScalarType type)
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

struct ModelKind {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool delayed = false;
};
void PrintTo(const ModelKind& kind, std::ostream* out) {
  *out << kind.name;
}

class LocalSteps : public ::testing::TestWithParam<ModelKind> {};

TEST_P(LocalSteps, EndBetweenThePlacesOfTheTrainers) {
  const auto options = local_rounds(GetParam().delayed);
  TrainerAtAPlace first({}, options, 1, GetParam().type);
  TrainerAtAPlace second(first.swarm.visible_addresses(), options, 3, GetParam().type);
  const auto train = [](TrainerAtAPlace& trainer) {
    std::size_t largest = 0;
    const auto give_up = std::chrono::steady_clock::now() + kLongestTraining;
    while (trainer.optimizer.local_epoch() < kEpochsTogether && std::chrono::steady_clock::now() < give_up) {
      largest = std::max(largest, trainer.step().state_group);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // what a batch takes
    }
    EXPECT_EQ(largest, 2u);
    return trainer.optimizer.finish();
  };
  auto beside = std::async(std::launch::async, [&] { return train(second); });
  EXPECT_EQ(train(first), 2u);
  EXPECT_EQ(beside.get(), 2u);
  EXPECT_NEAR(first.at(), second.at(), 1e-3) << "they end at one place";
  EXPECT_GT(first.at(), 0.2) << "and have moved";
}

TEST_P(LocalSteps, LearningRatesFollowTheRounds) {
  auto options = local_rounds(GetParam().delayed);
  options.target_batch_size = 2 * kBatch;
  auto weight = torch::zeros({6}, GetParam().type).requires_grad_();
  Swarm swarm(joining({}));
  torch::optim::Adam adam({weight}, torch::optim::AdamOptions(0.01));
  Optimizer optimizer(swarm, adam, options, schedule(exponential(0.5)));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_DOUBLE_EQ(adam.param_groups().front().options().get_lr(), std::ldexp(0.01, -static_cast<int>(epoch)));
    while (optimizer.local_epoch() == epoch) {
      (weight - 1).pow(2).mean().backward();
      optimizer.step(kBatch);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LocalSteps,
                         ::testing::Values(ModelKind{"Float32"}, ModelKind{"Float32Delayed", torch::kFloat32, true},
                                           ModelKind{"Float64", torch::kFloat64},
                                           ModelKind{"Float64Delayed", torch::kFloat64, true},
                                           ModelKind{"BFloat16", torch::kBFloat16}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace cohive
