// Simulated trainers whose local steps go to a place of their own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"
#include "train/exchanges/outer_step.hpp"

namespace cohive::train {

using Values = std::vector<float>;

inline Fragment whole_model(const ExchangeContext& context) {
  return fragments_of(context.replica.gradient_infos(), 1).front();
}

/// The tensors of a checkpoint, by name.
inline std::map<std::string, Values> values_in(const std::filesystem::path& file) {
  std::map<std::string, Values> all;
  const auto read = checkpoint::read_file(file);
  EXPECT_TRUE(read);
  if (!read) return all;
  for (const auto& [name, tensor] : read->tensors) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    all[name] = {values, values + tensor.data.size() / sizeof(float)};
  }
  return all;
}

/// Trainer number n adds to its parameters, most to value n.
class OuterSteps : public ::testing::Test {
 protected:
  struct Trainer {
    std::size_t number = 0;
    Duration pause = 500ms;  // what a batch takes
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    OuterStep* outer = nullptr;
    std::unique_ptr<train::Run> run;
    std::unique_ptr<TaskGroup> tasks;
    Values before;          ///< parameters before the last outer step
    std::size_t steps = 0;  ///< outer ones, with others
    double samples = 0;
    std::vector<std::size_t> batches;  ///< before each of these steps
    const std::vector<Values>& anchor() const { return outer->memory()->anchor; }
    const std::vector<Values>& momentum() const { return outer->memory()->momentum; }
    Values parameters() const { return {replica->parameter(0).begin(), replica->parameter(0).end()}; }
  };

  OuterSteps() {
    options_.run_id = "outer";
    options_.target_batch_size = 48;
    options_.matchmaking_time = 2s;
    options_.averaging_timeout = 20s;
    options_.use_local_updates = true;
    options_.delay_state_averaging = false;
    options_.checkpoints.every = 0s;
    nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
    EXPECT_TRUE(net_.run(nodes_.back()->start({})));
  }
  ~OuterSteps() override {
    for (auto& trainer : trainers_) end(*trainer);
    nodes_.clear();
  }

  /// A node of the DHT that does not train.
  Dht& add_node() {
    nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
    EXPECT_TRUE(net_.run(nodes_.back()->start({net_.host(0).visible_addresses().front()})));
    return *nodes_.back();
  }
  Trainer& make(ExchangeFactory factory = nullptr) {
    auto trainer = std::make_unique<Trainer>();
    trainer->number = trainers_.size();
    trainer->dht = std::make_unique<Dht>(net_.add_host());
    EXPECT_TRUE(net_.run(trainer->dht->start({net_.host(0).visible_addresses().front()})));
    trainer->replica = std::make_unique<PlainReplica>(net_.runtime(), shapes_, optim::SgdOptions{.lr = 0.01});
    for (std::size_t i = 0; i < shapes_.size(); ++i) std::ranges::fill(trainer->replica->parameter(i), start_);
    auto options = options_;
    const auto with_outer_step = [&made_for = *trainer](const ExchangeContext& context) {
      auto made = std::make_unique<OuterStep>(context, OuterOptimizer(), whole_model(context));
      made_for.outer = made.get();
      return made;
    };
    if (!options.outer_optimizer)
      options.parameter_exchange = factory ? std::move(factory) : ExchangeFactory(with_outer_step);
    trainer->run = std::make_unique<train::Run>(
        *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1 + trainer->number)),
        *trainer->replica, options);
    trainers_.push_back(std::move(trainer));
    return *trainers_.back();
  }
  Trainer& add(ExchangeFactory factory = nullptr) {
    auto& trainer = make(std::move(factory));
    trainer.run->start();
    trainer.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
    trainer.tasks->spawn(train(net_.runtime(), trainer), "trainer");
    return trainer;
  }
  void end(Trainer& trainer) {
    trainer.tasks.reset();
    trainer.run.reset();
    trainer.replica.reset();
    trainer.dht.reset();
  }
  template <class F>
  bool wait_for(Duration limit, F condition) {
    for (Duration passed = 0s; passed < limit && !condition(); passed += 100ms) net_.runtime().run_for(100ms);
    return condition();
  }
  static Task<void> train(Runtime& runtime, Trainer& me) {
    (void)co_await me.run->catch_up();
    for (std::size_t batches = 0;;) {
      co_await runtime.sleep_for(me.pause);
      Values gradient(me.replica->parameter(0).size(), -1.0f);
      gradient[me.number % 4] = -5;
      const std::vector<std::span<const float>> gradients(me.replica->gradient_infos().size(), gradient);
      me.replica->step_locally(gradients);
      me.samples += 8;
      const Values before = me.parameters();
      const auto report = co_await me.run->step(8);
      ++batches;
      if (report.state_group < 2) continue;
      me.batches.push_back(std::exchange(batches, 0));
      me.before = before;
      ++me.steps;
    }
  }
  /// What a checkpoint of a trainer has, by name.
  std::map<std::string, Values> saved(Trainer& trainer) {
    const checkpoint::TemporaryFolder folder;
    const auto file = folder / "state.safetensors";
    EXPECT_TRUE(net_.run(trainer.run->save_checkpoint(file)));
    return values_in(file);
  }
  void expect_same_state(const Trainer& one, const Trainer& other) {
    EXPECT_EQ(one.anchor(), other.anchor());
    EXPECT_EQ(one.momentum(), other.momentum());
  }

  sim::Swarm net_{sim::SwarmOptions{.seed = 1}};
  RunOptions options_;
  std::vector<codec::Shape> shapes_{{4}};
  float start_ = 0;  ///< parameters of trainers that are made from now on
  std::vector<std::unique_ptr<Dht>> nodes_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

}  // namespace cohive::train
