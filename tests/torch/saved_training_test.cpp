// Trainings that end and go on: torch::save and torch::load of an Optimizer.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "cohive/torch/lamb.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/schedules.hpp"
#include "torch/known_optimizer.hpp"
#include "torch/saved_training.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;

OptimizerOptions epochs_of_one_batch() {
  OptimizerOptions options;
  options.run_id = "saved";
  options.target_batch_size = kBatch;
  options.delay_state_averaging = false;
  options.matchmaking_time = 1s;
  return options;
}

OptimizerFactory adam() {
  return [](auto groups) {
    return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(0.1));
  };
}

struct SavedTrainer {
  explicit SavedTrainer(OptimizerOptions options = epochs_of_one_batch(), const OptimizerFactory& make = adam(),
                        torch::ScalarType type = torch::kFloat32, SchedulerFn scheduler = nullptr,
                        std::int64_t size = 4)
      : weight(torch::full({size}, 0.5, type).requires_grad_()),
        swarm(alone()),
        optimizer(swarm, {OptimizerParamGroup({weight})}, make, options, std::move(scheduler)) {}
  void train(int epochs) {
    for (int i = 0; i < epochs; ++i) {
      (weight * weight).sum().backward();
      ASSERT_TRUE(optimizer.step(kBatch).epoch_changed);
    }
  }
  std::string saved() const {
    std::ostringstream out;
    torch::save(optimizer, out);
    return out.str();
  }
  void load(const std::string& archive, const torch::Tensor& saved_weight) {
    {
      torch::NoGradGuard no_grad;
      weight.copy_(saved_weight);  // as torch::load of the model does
    }
    std::istringstream in(archive);
    torch::load(optimizer, in);
  }
  /// Copies of all values that the optimizer changes.
  libtorch::NamedStatistics kept() {
    const auto stepped = libtorch::parameters_of(optimizer.optimizer()).front();
    auto all = libtorch::statistics_of(optimizer.optimizer(), stepped);
    all.emplace_back("the optimizer's parameter", stepped.detach());
    all.emplace_back("parameter", weight.detach());
    for (auto& [name, value] : all) value = value.clone();
    return all;
  }
  double rate() { return optimizer.optimizer().param_groups()[0].options().get_lr(); }
  torch::Tensor weight;
  Swarm swarm;
  Optimizer optimizer;
};

TEST(SavedTraining, GoesOnAsIfItHadNotEnded) {
  struct Mode {
    OptimizerOptions options = epochs_of_one_batch();
    OptimizerFactory make = adam();
    torch::ScalarType type = torch::kFloat32;
  };
  std::vector<Mode> modes(5);
  modes[1].type = torch::kFloat64;  // stepped by LibTorch
  modes[2].options.offload_optimizer = true;
  modes[2].type = torch::kBFloat16;  // the optimizer has float32 copies
  modes[3].options.offload_optimizer = modes[3].options.delay_optimizer_step = modes[3].options.delay_state_averaging =
      true;
  modes[4].make = [](auto groups) { return std::make_unique<Lamb>(std::move(groups), LambOptions(0.1)); };
  for (std::size_t i = 0; i < modes.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [options, make, type] = modes[i];
    SavedTrainer first(options, make, type), second(options, make, type);
    first.train(3);
    const auto archive = first.saved();
    second.load(archive, first.weight);
    EXPECT_EQ(second.optimizer.local_epoch(), 3u);
    first.train(2);
    second.train(2);
    first.saved();  // awaits what is delayed
    second.saved();
    EXPECT_TRUE(torch::equal(first.weight, second.weight)) << first.weight << second.weight;
    EXPECT_EQ(second.optimizer.local_epoch(), 5u);
  }
}

/// The "meta" device is one that every machine has beside the host.
TEST(SavedTraining, StatisticsGoToTheDeviceOfTheirParameter) {
  auto trained = torch::ones({4}).requires_grad_();
  torch::optim::Adam before({trained}, torch::optim::AdamOptions(0.1));
  trained.sum().backward();
  before.step();
  std::ostringstream out;
  {
    torch::serialize::OutputArchive archive;
    libtorch::save_training(archive, before, 3, {});
    archive.save_to(out);
  }
  auto elsewhere = torch::ones({4}, torch::kMeta).requires_grad_();
  torch::optim::Adam after({elsewhere}, torch::optim::AdamOptions(0.1));
  std::istringstream in(out.str());
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  libtorch::load_training(archive, after, {}, false);
  const auto statistics = libtorch::statistics_of(after, elsewhere);
  ASSERT_EQ(statistics.size(), 3u);
  for (const auto& [name, value] : statistics)
    if (name != "step") EXPECT_EQ(value.device().type(), torch::kMeta) << name;
}

TEST(SavedTraining, LearningRatesFollowTheSchedule) {
  const auto halving = [](torch::optim::Optimizer& of) { return std::make_unique<torch::optim::StepLR>(of, 1, 0.5); };
  for (const SchedulerFn& scheduler : {SchedulerFn(halving), schedule(exponential(0.5))}) {
    SavedTrainer first(epochs_of_one_batch(), adam(), torch::kFloat32, scheduler);
    first.train(2);
    ASSERT_DOUBLE_EQ(first.rate(), 0.025);
    SavedTrainer second(epochs_of_one_batch(), adam(), torch::kFloat32, scheduler);
    second.load(first.saved(), first.weight);
    EXPECT_DOUBLE_EQ(second.rate(), 0.025);
    second.train(1);
    EXPECT_DOUBLE_EQ(second.rate(), 0.0125);
  }
}

TEST(SavedTraining, WhatDoesNotFitIsRefusedAndChangesNothing) {
  SavedTrainer donor;
  donor.train(3);
  const auto archive = donor.saved();
  const auto refused = [](SavedTrainer& trainer, const std::string& bytes) {
    trainer.train(1);
    const auto before = trainer.kept();
    const double rate = trainer.rate();
    std::istringstream in(bytes);
    EXPECT_THROW(torch::load(trainer.optimizer, in), std::invalid_argument);
    EXPECT_EQ(trainer.optimizer.local_epoch(), 1u);
    EXPECT_EQ(trainer.rate(), rate);
    const auto after = trainer.kept();
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i].first, before[i].first);
      EXPECT_TRUE(torch::equal(after[i].second, before[i].second)) << before[i].first;
    }
    trainer.train(1);
    EXPECT_TRUE(torch::isfinite(trainer.weight).all().item<bool>());
  };
  SavedTrainer larger(epochs_of_one_batch(), adam(), torch::kFloat32, nullptr, 5);
  refused(larger, archive);
  SavedTrainer other(epochs_of_one_batch(), [](auto groups) {
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  refused(other, archive);
  auto offloading = epochs_of_one_batch();
  offloading.offload_optimizer = true;
  SavedTrainer offloaded(offloading, adam(), torch::kBFloat16);
  refused(offloaded, archive);
  std::ostringstream tensor;
  torch::save(torch::zeros({4}), tensor);
  SavedTrainer plain;
  refused(plain, tensor.str());
  SavedTrainer ahead;
  ahead.train(4);
  std::istringstream in(archive);
  EXPECT_THROW(torch::load(ahead.optimizer, in), std::invalid_argument) << "its epoch has passed";
}

}  // namespace
}  // namespace cohive
