// Parameters of which some members, or all, have no gradient: all members take the same steps, and none takes one that
// LibTorch's optimizers would not take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cohive/optim/step.hpp"
#include "cohive/train/plain_replica.hpp"
#include "train/four_trainers.hpp"

namespace cohive::train {
namespace {

using Values = std::vector<float>;

constexpr std::size_t kSizes[] = {40'000, 7};  // several stretches, and less than one
constexpr std::uint64_t kFrozenUntil = 3, kAgainFrozenFrom = 6, kEpochs = 8;

/// The gradient of trainer number `trainer` in an epoch: anything that differs, and means are far from zero, where Adam
/// would make a step of their last bit.
Values gradient_of(std::uint64_t epoch, std::size_t trainer, std::size_t size) {
  Values values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = (i % 3 == 0 ? -1.0f : 1.0f) * (0.3f + std::sin(static_cast<float>(i + trainer * 3 + epoch * 11)) / 8);
  return values;
}

/// Which trainers have a gradient of the first parameter in an epoch.
using Frozen = std::function<bool(std::uint64_t epoch, std::size_t trainer)>;

class Model final : public TrainedModel {
 public:
  Model(Runtime& runtime, const optim::Options& optimizer, Frozen frozen)
      : replica_(runtime, {{kSizes[0]}, {kSizes[1]}}, optimizer), frozen_(std::move(frozen)) {
    for (std::size_t p : {0, 1}) std::ranges::fill(replica_.parameter(p), 0.5f);
  }
  Replica& replica() override { return replica_; }
  void compute(std::uint64_t epoch, std::size_t trainer) override {
    const auto first = gradient_of(epoch, trainer, kSizes[0]), second = gradient_of(epoch, trainer, kSizes[1]);
    const bool frozen = frozen_(epoch, trainer);
    replica_.add_gradients({frozen ? std::span<const float>() : std::span(first), second}, double{kSamples});
  }
  Values parameters() override {
    Values all(replica_.parameter(0).begin(), replica_.parameter(0).end());
    all.insert(all.end(), replica_.parameter(1).begin(), replica_.parameter(1).end());
    return all;
  }

 private:
  PlainReplica replica_;
  const Frozen frozen_;
};

/// What one process with the batches of all comes to. A parameter without a gradient is left alone.
std::vector<Values> one_process(const optim::Options& optimizer, const Frozen& frozen) {
  const auto fields = optim::state_fields(optimizer);
  std::vector<Values> parameters, history;
  std::vector<std::vector<Values>> statistics(2);
  std::int64_t steps[2] = {0, 0};
  for (std::size_t p : {0, 1}) {
    parameters.emplace_back(kSizes[p], 0.5f);
    for (const auto& field : fields) statistics[p].emplace_back(kSizes[p], static_cast<float>(field.initial));
  }
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (std::size_t p : {0, 1}) {
      Values mean(kSizes[p]);
      bool present = false;
      for (std::size_t trainer = 0; trainer < kTrainers; ++trainer) {
        if (p == 0 && frozen(epoch, trainer)) continue;
        present = true;
        const auto gradient = gradient_of(epoch, trainer, kSizes[p]);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / float{kTrainers};
      }
      if (!present) continue;
      optim::TensorMemory memory{
          std::span<const float>(parameters[p]), std::span(parameters[p]), {}, std::span(mean), {}};
      for (std::size_t k = 0; k < fields.size(); ++k) memory.state[k] = std::span(statistics[p][k]);
      optim::TensorStep step(optimizer, memory, {++steps[p]});
      step.run(0, step.size());
      if (!step.has_second_phase()) continue;
      step.settle();
      step.finish(0, step.size());
    }
    history.push_back(parameters[0]);
    history.back().insert(history.back().end(), parameters[1].begin(), parameters[1].end());
  }
  return history;
}

const std::pair<const char*, optim::Options> kOptimizers[] = {
    {"sgd", optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}},
    {"adam", optim::AdamOptions{.lr = 0.05, .weight_decay = 0.1}},
    {"adamw", optim::AdamWOptions{.lr = 0.05, .weight_decay = 0.1}},
    {"rmsprop", optim::RmspropOptions{.lr = 0.01, .weight_decay = 0.1, .momentum = 0.9}},
    {"adagrad", optim::AdagradOptions{.lr = 0.05, .lr_decay = 0.1, .weight_decay = 0.1}},
    {"lamb", optim::LambOptions{.lr = 0.05}},
};

void expect_steps(const Frozen& frozen, const FourTrainers::Tune& tune = nullptr) {
  for (const auto& [name, optimizer] : kOptimizers) {
    SCOPED_TRACE(name);
    FourTrainers trainers(
        [&optimizer, &frozen](Runtime& runtime, const RunOptions&) {
          return std::make_unique<Model>(runtime, optimizer, frozen);
        },
        tune);
    trainers.train(kEpochs);
    expect_steps_of(one_process(optimizer, frozen), trainers);
    for (std::size_t i = 1; i < kTrainers; ++i)
      EXPECT_EQ(trainers[0].history.back(), trainers[i].history.back()) << "trainer " << i << " has drifted away";
  }
}

TEST(AbsentGradients, OfAllMembersLeaveAParameterAlone) {
  expect_steps([](std::uint64_t epoch, std::size_t) { return epoch < kFrozenUntil || epoch >= kAgainFrozenFrom; });
}

TEST(AbsentGradients, OfSomeMembersCountAsZeros) {
  expect_steps([](std::uint64_t epoch, std::size_t trainer) {
    return epoch < kFrozenUntil || (epoch < kAgainFrozenFrom ? trainer % 2 == 0 : trainer != 3);
  });
}

TEST(AbsentGradients, GoTogetherWithParametersThatAreAveragedNowAndThen) {
  expect_steps([](std::uint64_t epoch, std::size_t) { return epoch % 2 == 0; },
               [](RunOptions& options, std::size_t) { options.average_state_every = 3; });
}

}  // namespace
}  // namespace cohive::train
