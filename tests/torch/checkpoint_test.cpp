// Checkpoints of a trainer: what it writes by itself, and that it goes on from them as if nothing had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <stdexcept>
#include <thread>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/schedules.hpp"
#include "torch/known_optimizer.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using checkpoint::TemporaryFolder;
using ::testing::HasSubstr;

/// An epoch is one batch.
OptimizerOptions options_of_run() {
  OptimizerOptions options;
  options.run_id = "test";
  options.target_batch_size = kBatch;
  options.delay_state_averaging = false;
  options.checkpoints.every = 0s;
  return options;
}

/// Halves the learning rate in every epoch.
std::unique_ptr<torch::optim::LRScheduler> halving(torch::optim::Optimizer& optimizer) {
  return std::make_unique<torch::optim::StepLR>(optimizer, 1, 0.5);
}

template <class Algorithm, class Options>
struct CheckpointedTrainer {
  CheckpointedTrainer(const Options& how, const OptimizerOptions& options, const SchedulerFn& scheduler = halving)
      : algorithm({weight, bias}, how), optimizer(swarm, algorithm, options, scheduler) {}
  void train(int epochs) {
    for (int i = 0; i < epochs; ++i) {
      ((weight - 1).pow(2).sum() + (bias - 2).pow(2).sum()).backward();
      optimizer.step(kBatch);
    }
  }
  double rate() { return algorithm.param_groups()[0].options().get_lr(); }
  torch::Tensor weight = torch::full({3, 2}, 0.5f).requires_grad_(), bias = torch::zeros({2}).requires_grad_();
  Swarm swarm{alone()};
  Algorithm algorithm;
  Optimizer optimizer;
};
using AdamTrainer = CheckpointedTrainer<torch::optim::Adam, torch::optim::AdamOptions>;
using SgdTrainer = CheckpointedTrainer<torch::optim::SGD, torch::optim::SGDOptions>;

TEST(Checkpoint, ATrainerGoesOnAsIfNothingHadHappened) {
  const TemporaryFolder files;
  const auto file = files / "state.safetensors";
  AdamTrainer first(0.1, options_of_run()), second(0.1, options_of_run());
  first.train(3);
  ASSERT_TRUE(first.optimizer.save_checkpoint(file));
  const auto epoch = second.optimizer.load_checkpoint(file);
  ASSERT_TRUE(epoch) << epoch.error();
  EXPECT_EQ(*epoch, 3u);
  EXPECT_EQ(second.optimizer.local_epoch(), 3u);
  EXPECT_EQ(second.rate(), 0.1 / 8) << "the schedule follows the epoch";
  first.train(3);
  second.train(3);
  EXPECT_EQ(second.optimizer.local_epoch(), 6u);
  EXPECT_TRUE(torch::equal(first.weight, second.weight));
  EXPECT_TRUE(torch::equal(first.bias, second.bias));
}

TEST(Checkpoint, AnEarlierOneBringsItsLearningRateBack) {
  for (const SchedulerFn& scheduler : {SchedulerFn(halving), schedule(exponential(0.5))}) {
    const TemporaryFolder files;
    SgdTrainer trainer(0.5, options_of_run(), scheduler);
    trainer.train(1);
    ASSERT_TRUE(trainer.optimizer.save_checkpoint(files / "a"));
    trainer.train(3);
    ASSERT_EQ(trainer.rate(), 0.5 / 16);
    ASSERT_EQ(trainer.optimizer.load_checkpoint(files / "a").value(), 1u);
    EXPECT_EQ(trainer.rate(), 0.25);
    trainer.train(1);
    EXPECT_EQ(trainer.rate(), 0.125);
  }
}

/// A step of the schedule for each of its epochs would take weeks.
TEST(Checkpoint, OneOfALargeEpochIsLoadedAtOnce) {
  const TemporaryFolder files;
  for (const SchedulerFn& scheduler : {SchedulerFn(halving), schedule(linear(10))}) {
    SgdTrainer trainer(0.5, options_of_run(), scheduler);
    ASSERT_TRUE(trainer.optimizer.save_checkpoint(files / "a"));
    auto content = checkpoint::read_file(files / "a").value();
    content.metadata["cohive.epoch"] = std::to_string(train::kMostEpochs / 2);
    ASSERT_TRUE(checkpoint::write_file(files / "a", content));
    EXPECT_EQ(trainer.optimizer.load_checkpoint(files / "a").value(), train::kMostEpochs / 2);
    EXPECT_EQ(trainer.rate(), 0);
  }
}

TEST(Checkpoint, TensorsHaveTheNamesOfTheUserAndOfTheOptimizer) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.parameter_names = {"layer.weight", "layer.bias"};
  options.checkpoints.strings = [] { return checkpoint::Metadata{{"position", "17"}}; };
  AdamTrainer trainer(0.1, options);
  trainer.train(2);
  ASSERT_TRUE(trainer.optimizer.save_checkpoint(files / "a"));
  const auto content = checkpoint::read_file(files / "a").value();
  std::set<std::string> names;
  for (const auto& one : content.tensors) names.insert(one.name);
  EXPECT_EQ(names, (std::set<std::string>{"layer.weight", "layer.bias", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq",
                                          "optimizer.0.step", "optimizer.1.exp_avg", "optimizer.1.exp_avg_sq",
                                          "optimizer.1.step"}));
  EXPECT_EQ(content.metadata.at("cohive.run_id"), "test");
  EXPECT_EQ(content.metadata.at("cohive.epoch"), "2");
  EXPECT_EQ(content.metadata.at("user.position"), "17");

  AdamTrainer other(0.1, options);
  EXPECT_EQ(other.optimizer.load_checkpoint(files / "a").value(), 2u);
  EXPECT_EQ(other.optimizer.loaded_strings(), (checkpoint::Metadata{{"position", "17"}}));
  EXPECT_TRUE(torch::equal(other.weight, trainer.weight));
}

TEST(Checkpoint, NamesThatCannotBeToldApartAreRefused) {
  for (const std::vector<std::string>& names : {std::vector<std::string>{"a"},
                                                {"a", "a"},
                                                {"a", ""},
                                                {"a", "parameter.0"},
                                                {"a", "optimizer.0.step"},
                                                {"a", "__metadata__"}}) {
    auto options = options_of_run();
    options.checkpoints.parameter_names = names;
    EXPECT_THROW(SgdTrainer(0.1, options), std::invalid_argument) << ::testing::PrintToString(names);
  }
}

TEST(Checkpoint, AWholeFolderIsWrittenBesideTheTrainingAndResumed) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.directory = files / "run";
  options.checkpoints.every_epochs = 2;
  options.checkpoints.keep = 2;
  int batches = 0;
  options.checkpoints.strings = [&batches] { return checkpoint::Metadata{{"batches", std::to_string(batches)}}; };
  AdamTrainer undisturbed(0.1, options_of_run());
  undisturbed.train(12);
  {
    AdamTrainer trainer(0.1, options);
    for (; batches < 9; ++batches) {
      trainer.train(1);
      // The trainer never waits for one, but this test does, so that none is put off.
      while (trainer.optimizer.stats().checkpoints < (trainer.optimizer.local_epoch()) / 2) std::this_thread::yield();
    }
    EXPECT_EQ(trainer.optimizer.stats().checkpoints, 4u);
    EXPECT_EQ(trainer.optimizer.stats().checkpoints_failed, 0u);
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files / "run"))
      names.insert(entry.path().filename().string());
    EXPECT_EQ(names, (std::set<std::string>{"epoch-00000006.safetensors", "epoch-00000008.safetensors"}));
    const auto now = trainer.optimizer.checkpoint_now();
    ASSERT_TRUE(now) << now.error();
    EXPECT_EQ(now->filename(), "epoch-00000009.safetensors");
  }
  options.checkpoints.resume = true;
  AdamTrainer resumed(0.1, options);
  EXPECT_EQ(resumed.optimizer.local_epoch(), 9u);
  EXPECT_EQ(resumed.optimizer.loaded_strings().at("batches"), "9");
  resumed.train(3);
  EXPECT_TRUE(torch::equal(resumed.weight, undisturbed.weight));
  EXPECT_TRUE(torch::equal(resumed.bias, undisturbed.bias));
}

TEST(Checkpoint, WhatHasNotChangedIsNotWrittenAgain) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.directory = files.path();
  SgdTrainer trainer(0.1, options);
  trainer.train(1);
  const auto first = trainer.optimizer.checkpoint_now().value();
  const auto time = std::filesystem::last_write_time(first);
  const auto inode = [&] { return std::filesystem::hard_link_count(first); };
  EXPECT_EQ(inode(), 1u);
  std::filesystem::create_hard_link(first, files / "link");
  EXPECT_EQ(trainer.optimizer.checkpoint_now().value(), first);
  EXPECT_EQ(inode(), 2u) << "it is the same file";
  EXPECT_EQ(std::filesystem::last_write_time(first), time);
  trainer.train(1);
  EXPECT_NE(trainer.optimizer.checkpoint_now().value(), first);
}

TEST(Checkpoint, ADamagedOneCostsTheEpochsSinceTheLast) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.directory = files.path();
  {
    SgdTrainer trainer(0.1, options);
    for (int i = 0; i < 3; ++i) {
      trainer.train(1);
      ASSERT_TRUE(trainer.optimizer.checkpoint_now());
    }
  }
  const auto newest = files / "epoch-00000003.safetensors";
  checkpoint::set_bytes(newest, checkpoint::bytes_of(newest).substr(0, 200));
  options.checkpoints.resume = true;
  SgdTrainer resumed(0.1, options);
  EXPECT_EQ(resumed.optimizer.local_epoch(), 2u);
}

TEST(Checkpoint, FoldersThatDoNotBelongToTheRunAreRefused) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.directory = files.path();
  {
    SgdTrainer trainer(0.1, options);
    ASSERT_TRUE(trainer.optimizer.checkpoint_now());
    EXPECT_THROW(SgdTrainer(0.1, options), ErrorException) << "another trainer writes there";
  }
  const auto refused = [](const OptimizerOptions& how, std::error_code code) {
    try {
      SgdTrainer trainer(0.1, how);
      FAIL() << "not refused";
    } catch (const ErrorException& error) {
      EXPECT_EQ(error.error().code(), code) << error.what();
    }
  };
  refused(options, checkpoint::Errc::not_empty);
  options.checkpoints.resume = true;
  options.run_id = "another";
  refused(options, checkpoint::Errc::other_run);
}

TEST(Checkpoint, AFileOfAnotherModelChangesNothing) {
  const TemporaryFolder files;
  AdamTrainer donor(0.1, options_of_run());
  donor.train(2);
  ASSERT_TRUE(donor.optimizer.save_checkpoint(files / "good"));
  const auto good = checkpoint::read_file(files / "good").value();
  SgdTrainer trainer(0.1, options_of_run());
  const auto refused = [&](const char* why, auto spoil) {
    auto content = good;
    spoil(content.tensors);
    ASSERT_TRUE(checkpoint::write_file(files / "bad", content));
    const auto loaded = trainer.optimizer.load_checkpoint(files / "bad");
    ASSERT_FALSE(loaded) << why;
    EXPECT_EQ(loaded.error(), checkpoint::Errc::does_not_fit) << loaded.error();
    EXPECT_THAT(loaded.error().message(), HasSubstr(why));
    EXPECT_TRUE(torch::equal(trainer.weight, torch::full({3, 2}, 0.5f)));
    EXPECT_EQ(trainer.optimizer.local_epoch(), 0u);
  };
  const auto find = [](auto& tensors, const std::string& name) {
    return std::ranges::find(tensors, name, &checkpoint::NamedTensor::name);
  };
  refused("1 of the model's 2 parameters", [&](auto& tensors) { tensors.erase(find(tensors, "parameter.1")); });
  refused("only 2 parameters", [&](auto& tensors) { find(tensors, "parameter.1")->name = "parameter.2"; });
  refused("no \"head\"", [&](auto& tensors) { find(tensors, "parameter.1")->name = "head"; });
  refused("another shape", [&](auto& tensors) { find(tensors, "parameter.0")->tensor.shape = {2, 3}; });
  refused("not finite", [&](auto& tensors) {
    auto& tensor = find(tensors, "parameter.0")->tensor;
    tensor.data = Slice::copy_of(Bytes(tensor.data.size(), 0xff));
  });
  refused("missing", [&](auto& tensors) { tensors.push_back({"extra.1", find(tensors, "parameter.0")->tensor}); });
}

/// RMSprop with momentum keeps as many statistics of the same shapes as Adam, and without it as many as Adagrad.
TEST(Checkpoint, AnotherKindOfOptimizerTakesTheParametersAlone) {
  using torch::optim::RMSpropOptions;
  using RmspropTrainer = CheckpointedTrainer<torch::optim::RMSprop, RMSpropOptions>;
  const TemporaryFolder files;
  const auto loads = [&](auto&& trainer, const RMSpropOptions& of) {
    RmspropTrainer donor(of, options_of_run());
    donor.train(2);
    ASSERT_TRUE(donor.optimizer.save_checkpoint(files / "a"));
    const auto epoch = trainer.optimizer.load_checkpoint(files / "a");
    ASSERT_TRUE(epoch) << epoch.error();
    EXPECT_EQ(*epoch, 2u);
    EXPECT_TRUE(torch::equal(trainer.weight, donor.weight));
    for (const auto& [name, value] : libtorch::statistics_of(trainer.algorithm, trainer.weight))
      EXPECT_FALSE(value.any().template item<bool>()) << name;
  };
  loads(AdamTrainer(0.1, options_of_run()), RMSpropOptions(0.1).momentum(0.9));
  loads(CheckpointedTrainer<torch::optim::Adagrad, torch::optim::AdagradOptions>(0.1, options_of_run()),
        RMSpropOptions(0.1));
}

TEST(Checkpoint, AFileOfAnotherRunGivesItsParametersAndNotItsEpoch) {
  const TemporaryFolder files;
  AdamTrainer donor(0.1, options_of_run());
  donor.train(2);
  ASSERT_TRUE(donor.optimizer.save_checkpoint(files / "a"));
  auto options = options_of_run();
  options.run_id = "another";
  AdamTrainer trainer(0.1, options);
  EXPECT_EQ(trainer.optimizer.load_checkpoint(files / "a").value(), 0u);
  EXPECT_TRUE(torch::equal(trainer.weight, donor.weight));
  EXPECT_EQ(trainer.rate(), 0.1);
}

TEST(Checkpoint, ParametersOfAnyTypeAndStatisticsThatAreNotThereYet) {
  for (const auto type : {torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
    const TemporaryFolder files;
    const auto make = [type](double value) { return torch::full({5}, value, type).requires_grad_(); };
    auto first_weight = make(1), second_weight = make(0);
    const auto how = torch::optim::SGDOptions(0.25).momentum(0.5);
    Swarm first_swarm(alone()), second_swarm(alone());
    torch::optim::SGD first_sgd({first_weight}, how), second_sgd({second_weight}, how);
    Optimizer first(first_swarm, first_sgd, options_of_run()), second(second_swarm, second_sgd, options_of_run());
    for (int epoch = 0; epoch < 2; ++epoch) {
      ASSERT_TRUE(first.save_checkpoint(files / "a"));
      ASSERT_TRUE(second.load_checkpoint(files / "a"));
      EXPECT_TRUE(torch::equal(first_weight, second_weight)) << type;
      first_weight.sum().backward();
      first.step(kBatch);
    }
  }
}

TEST(Checkpoint, OneOfANewerVersionIsRefused) {
  const TemporaryFolder files;
  SgdTrainer trainer(0.1, options_of_run());
  ASSERT_TRUE(trainer.optimizer.save_checkpoint(files / "a"));
  auto content = checkpoint::read_file(files / "a").value();
  const auto loads = [&] {
    EXPECT_TRUE(checkpoint::write_file(files / "a", content));
    return trainer.optimizer.load_checkpoint(files / "a");
  };
  for (const char* version : {"2", "1.5", ""}) {
    content.metadata["cohive.version"] = version;
    const auto loaded = loads();
    ASSERT_FALSE(loaded) << version;
    EXPECT_EQ(loaded.error(), checkpoint::Errc::newer_version) << loaded.error();
  }
  content.metadata["cohive.version"] = "1";
  EXPECT_TRUE(loads());
  content.metadata.erase("cohive.version");
  EXPECT_TRUE(loads()) << "as other programs write it";
}

TEST(Checkpoint, StringsThatThrowOnceEndNoLaterOne) {
  const TemporaryFolder files;
  auto options = options_of_run();
  options.checkpoints.directory = files / "run";
  options.checkpoints.every_epochs = 1;
  options.checkpoints.strings = [calls = 0]() mutable {
    if (++calls == 1) throw std::domain_error("no strings yet");
    return checkpoint::Metadata();
  };
  SgdTrainer trainer(0.1, options);
  EXPECT_THROW(trainer.train(1), std::domain_error);
  for (int i = 0; i < 1000 && trainer.optimizer.stats().checkpoints == 0; ++i) {
    trainer.train(1);
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_GT(trainer.optimizer.stats().checkpoints, 0u);
}

TEST(Checkpoint, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [](auto change) {
    auto options = options_of_run();
    change(options);
    EXPECT_THROW(train::check(options), std::invalid_argument);
  };
  refused([](auto& options) { options.checkpoints.keep = 0; });
  refused([](auto& options) { options.checkpoints.every = -1s; });
  refused([](auto& options) { options.checkpoints.resume = true; });
  refused([](auto& options) {
    options.auxiliary = true;
    options.checkpoints.directory = "x";
  });
}

TEST(Checkpoint, WithoutAFolderThereIsAnError) {
  SgdTrainer trainer(0.1, options_of_run());
  EXPECT_EQ(trainer.optimizer.checkpoint_now().error(), Errc::invalid_argument);
}

}  // namespace
}  // namespace cohive
