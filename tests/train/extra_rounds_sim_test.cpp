// Rounds of the parameters beside the epochs, and states that are refused, while the group for the end of one waits.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"
#include "train/checkpoint_content.hpp"

namespace cohive::train {
namespace {

/// Two trainers, with a batch in each second.
class ExtraRounds : public ::testing::Test {
 protected:
  struct Trainer {
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    std::unique_ptr<train::Run> run;
    std::int64_t samples = 0;  ///< that it has made in the last call of train()
  };
  /// What the batches of one of them are like.
  struct Batches {
    std::int64_t samples;
    float gradient;
  };

  ExtraRounds() {
    RunOptions options;
    options.run_id = "extra";
    options.target_batch_size = 96;
    options.matchmaking_time = 2s;
    options.averaging_timeout = 20s;
    options.delay_state_averaging = false;
    std::vector<Multiaddr> initial;
    for (std::size_t i = 0; i < 2; ++i) {
      Trainer& trainer = trainers_[i];
      trainer.dht = std::make_unique<Dht>(net_.add_host());
      EXPECT_TRUE(net_.run(trainer.dht->start(initial)));
      initial = {net_.host(0).visible_addresses().front()};
      trainer.replica =
          std::make_unique<PlainReplica>(net_.runtime(), std::vector<codec::Shape>{{4}}, optim::SgdOptions{.lr = 1});
      trainer.run = std::make_unique<train::Run>(
          *trainer.dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(i + 1)), *trainer.replica, options);
      trainer.run->start();
    }
  }
  ~ExtraRounds() override {
    for (Trainer& trainer : trainers_) {
      trainer.run.reset();
      trainer.replica.reset();
      trainer.dht.reset();
    }
  }

  /// Both train until each of them has come to its end.
  void train(Batches first, Batches second, const std::function<bool(const Trainer&)>& end) {
    std::vector<Task<void>> tasks;
    tasks.push_back(train_one(net_.runtime(), trainers_[0], first, end));
    tasks.push_back(train_one(net_.runtime(), trainers_[1], second, end));
    net_.run(when_all(net_.runtime(), std::move(tasks)));
  }

  /// The gradients of batches that are given up are in no average, and so their samples must not weigh in one.
  /// \param what  both do while the group for the end of an epoch waits
  void expect_to_give_up_samples(const std::function<Task<void>(train::Run&)>& what) {
    train({28, 0}, {4, 0}, [](const Trainer& one) { return one.run->epoch() >= 1; });
    train({28, 50}, {4, 50}, [](const Trainer& one) { return one.samples >= 56 || one.samples == 8; });
    net_.runtime().run_for(100ms);
    ASSERT_EQ(trainers_[0].run->progress().own_samples, 56);
    std::vector<Task<void>> tasks;
    for (Trainer& trainer : trainers_) tasks.push_back(what(*trainer.run));
    net_.run(when_all(net_.runtime(), std::move(tasks)));
    for (const Trainer& trainer : trainers_)
      EXPECT_EQ(trainer.run->progress().own_samples, 0) << "the group for the end of the epoch was there";
    train({8, 1}, {8, 3}, [](const Trainer& one) { return one.run->epoch() >= 2; });
    const auto first = static_cast<double>(trainers_[0].samples), second = static_cast<double>(trainers_[1].samples);
    for (Trainer& trainer : trainers_)
      EXPECT_NEAR(trainer.replica->parameter(0)[0], -(first + 3 * second) / (first + second), 0.01);
  }

  sim::Swarm net_{sim::SwarmOptions{.seed = 1}};
  Trainer trainers_[2];

 private:
  static Task<void> train_one(Runtime& runtime, Trainer& me, Batches how, std::function<bool(const Trainer&)> end) {
    const std::vector<float> gradient(4, how.gradient);
    for (me.samples = 0; !end(me);) {
      co_await runtime.sleep_for(1s);
      me.replica->add_gradients({gradient}, static_cast<double>(how.samples));
      me.samples += how.samples;
      (void)co_await me.run->step(how.samples);
    }
  }
};

Task<void> average(train::Run& run) {
  EXPECT_EQ(co_await run.average_parameters(), 2u);
}

Task<void> load_another_model(train::Run& run, std::filesystem::path file) {
  const auto loaded = co_await run.load_checkpoint(std::move(file));
  EXPECT_FALSE(loaded);
  if (!loaded) EXPECT_EQ(loaded.error(), checkpoint::Errc::does_not_fit);
}

Task<void> fail_to_restore(train::Run& run) {
  bool failed = false;
  try {
    co_await run.restore(7, [] { throw std::invalid_argument("an archive of another model"); });
  } catch (const std::invalid_argument&) {
    failed = true;
  }
  EXPECT_TRUE(failed);
}

TEST_F(ExtraRounds, GiveUpTheBatchesOfAGroupThatWaitsWithTheirSamples) {
  expect_to_give_up_samples(average);
}

TEST_F(ExtraRounds, AFileThatIsRefusedGivesUpTheBatchesOfAGroupThatWaitsWithTheirSamples) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "another_model.safetensors";
  PlainReplica another(net_.runtime(), std::vector<codec::Shape>{{5}}, optim::SgdOptions{.lr = 1});
  const auto state = net_.run(another.snapshot(1)).value();
  ASSERT_TRUE(checkpoint::write_file(file, to_file(state, {}, "extra", {}, {}).value()));
  expect_to_give_up_samples([&file](train::Run& run) { return load_another_model(run, file); });
  std::filesystem::remove(file);
}

TEST_F(ExtraRounds, AStateThatCannotBeWrittenGivesUpTheBatchesOfAGroupThatWaitsWithTheirSamples) {
  expect_to_give_up_samples(fail_to_restore);
}

}  // namespace
}  // namespace cohive::train
