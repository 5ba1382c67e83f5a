// A small simulated run whose trainers begin when a test says so, with parameters and lines of their own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/log_output.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"

namespace cohive::train {

/// What a trainer of a TrainingSwarm is like.
struct TrainerPlan {
  float value = 0;                                                  ///< of all parameters at its start
  Duration batch = 500ms;                                           ///< the time that one takes
  std::int64_t samples = 8;                                         ///< of a batch; 0: an auxiliary peer, without any
  std::uint64_t until = std::numeric_limits<std::uint64_t>::max();  ///< the epoch at which it finishes
  Duration rest = 0s;                                               ///< between its last epoch and finish()
  bool loads_at_once = true;  ///< calls catch_up() first, as the trainers of the programs do
};

class TrainingSwarm {
 public:
  struct Trainer {
    std::size_t number = 0;
    TrainerPlan plan;
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    std::unique_ptr<Run> run;
    std::unique_ptr<TaskGroup> tasks;
    std::size_t rounds = 0, largest = 0;  ///< gradient rounds with others
    std::uint64_t first_in = 0;           ///< the epoch that its first round led to
    bool finished = false;
    std::size_t last_group = 0;                            ///< that it ended with
    std::optional<std::uint64_t> restores = std::nullopt;  ///< an epoch that it goes on from, before its next batch
    std::uint64_t epoch() const { return run->epoch(); }
    float value() const { return replica->parameter(0)[0]; }
  };

  explicit TrainingSwarm(std::size_t parameters = 64, std::uint64_t seed = 1) : net(sim::SwarmOptions{.seed = seed}) {
    size_ = static_cast<std::uint32_t>(parameters);
    options.run_id = "run";
    options.target_batch_size = 48;
    options.matchmaking_time = 2s;
    options.averaging_timeout = 20s;
    options.delay_state_averaging = false;
    // A node that belongs to nobody, so that no trainer is needed for the others to meet.
    nodes_.push_back(std::make_unique<Dht>(net.add_host()));
    EXPECT_TRUE(net.run(nodes_.back()->start({})));
  }
  ~TrainingSwarm() {
    for (auto& trainer : trainers) end(*trainer);
    nodes_.clear();
  }

  /// Starts one, which trains until the test ends.
  Trainer& add(TrainerPlan plan = {}) {
    auto trainer = std::make_unique<Trainer>();
    trainer->number = trainers.size();
    trainer->plan = plan;
    trainer->dht = std::make_unique<Dht>(net.add_host());
    EXPECT_TRUE(net.run(trainer->dht->start({net.host(0).visible_addresses().front()})));
    trainer->replica =
        std::make_unique<PlainReplica>(net.runtime(), std::vector<codec::Shape>{{size_}}, optim::AdamOptions{.lr = 0});
    std::ranges::fill(trainer->replica->parameter(0), plan.value);
    trainer->run =
        std::make_unique<Run>(*trainer->dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(next_key_++)),
                              *trainer->replica, options);
    trainer->run->start();
    trainer->tasks = std::make_unique<TaskGroup>(net.runtime(), "trainer");
    trainer->tasks->spawn(train(*this, *trainer), "trainer");
    trainers.push_back(std::move(trainer));
    return *trainers.back();
  }
  /// A node of the DHT that does not train.
  Dht& add_stranger() {
    nodes_.push_back(std::make_unique<Dht>(net.add_host()));
    EXPECT_TRUE(net.run(nodes_.back()->start({net.host(0).visible_addresses().front()})));
    return *nodes_.back();
  }
  /// As a process that is killed.
  void end(Trainer& trainer) {
    trainer.tasks.reset();
    trainer.run.reset();
    trainer.replica.reset();
    trainer.dht.reset();
  }
  void pass(Duration time) { net.runtime().run_for(time); }
  /// Lets time pass until it is true, or `limit` is over.
  template <class F>
  bool wait_for(Duration limit, F condition) {
    for (Duration passed = 0s; passed < limit; passed += 100ms) {
      if (condition()) return true;
      pass(100ms);
    }
    return condition();
  }
  double offences() {
    const p2p::HostMetrics metrics(net.runtime().metrics());
    double sum = 0;
    for (const auto& reason : metrics.offences) sum += reason.value();
    return sum;
  }
  /// How many lines of the log hold a text.
  static std::size_t lines_with(std::string_view text) {
    const auto lines = log::recent();
    return static_cast<std::size_t>(
        std::ranges::count_if(lines, [text](const std::string& line) { return line.find(text) != line.npos; }));
  }

  sim::Swarm net;
  RunOptions options;  ///< of trainers that are added from now on
  std::vector<std::unique_ptr<Trainer>> trainers;

 private:
  static Task<void> train(TrainingSwarm& self, Trainer& me) {
    Runtime& runtime = self.net.runtime();
    if (me.plan.loads_at_once) (void)co_await me.run->catch_up();
    const std::vector<float> nothing(self.size_);
    while (me.run->epoch() < me.plan.until) {
      if (me.restores) {
        (void)co_await me.run->settle();
        co_await me.run->restore(*std::exchange(me.restores, std::nullopt), [] {});
      }
      co_await runtime.sleep_for(me.plan.batch);
      if (me.plan.samples > 0) me.replica->add_gradients({nothing}, static_cast<double>(me.plan.samples));
      const StepReport report = co_await me.run->step(me.plan.samples);
      if (report.grad_group < 2) continue;
      if (me.rounds++ == 0) me.first_in = report.epoch;
      me.largest = std::max(me.largest, report.grad_group);
    }
    co_await runtime.sleep_for(me.plan.rest);
    me.last_group = co_await me.run->finish();
    me.finished = true;
    (void)co_await me.run->close();
  }

  std::uint32_t size_;
  std::size_t next_key_ = 1;
  std::vector<std::unique_ptr<Dht>> nodes_;
};

}  // namespace cohive::train
