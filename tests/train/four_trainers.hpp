// Four trainers of one model on a simulated network, each with one batch of its own in each epoch.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/run.hpp"

namespace cohive::train {

inline constexpr std::size_t kTrainers = 4;
inline constexpr std::int64_t kSamples = 8;  ///< of a batch

/// What is trained.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;
  virtual Replica& replica() = 0;
  /// Adds the gradients of the batch that trainer number `trainer` has in an epoch.
  virtual void compute(std::uint64_t epoch, std::size_t trainer) = 0;
  virtual std::vector<float> parameters() = 0;
};

/// A whole swarm, of which nothing is left when it ends.
class FourTrainers {
 public:
  using MakeModel = std::function<std::unique_ptr<TrainedModel>(Runtime&, const RunOptions&)>;
  using Tune = std::function<void(RunOptions&, std::size_t trainer)>;

  struct Trainer {
    std::unique_ptr<Dht> dht;
    std::unique_ptr<TrainedModel> model;
    std::unique_ptr<Run> run;
    std::vector<std::vector<float>> history;  ///< parameters after each epoch that it trained
    std::vector<std::size_t> groups;          ///< of gradients, in each of these
  };

  explicit FourTrainers(const MakeModel& make, const Tune& tune = nullptr) {
    for (std::size_t i = 0; i < kTrainers; ++i) {
      auto trainer = std::make_unique<Trainer>();
      trainer->dht = std::make_unique<Dht>(net_.add_host());
      std::vector<Multiaddr> initial;
      if (i > 0) initial = {net_.host(0).visible_addresses().front()};
      EXPECT_TRUE(net_.run(trainer->dht->start(initial)));
      RunOptions options = usual_options();
      if (tune) tune(options, i);
      trainer->model = make(net_.runtime(), options);
      trainer->run =
          std::make_unique<Run>(*trainer->dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(i + 1)),
                                trainer->model->replica(), options);
      const auto opened = net_.run(trainer->run->open_checkpoints());
      EXPECT_TRUE(opened) << opened.error();
      trainer->run->start();
      trainers_.push_back(std::move(trainer));
    }
  }
  ~FourTrainers() {
    for (auto& trainer : trainers_) {
      trainer->run.reset();
      trainer->model.reset();
      trainer->dht.reset();
    }
  }

  /// Trains until all are in this epoch.
  void train(std::uint64_t until) {
    std::vector<Task<void>> tasks;
    for (std::size_t i = 0; i < kTrainers; ++i) tasks.push_back(train(net_.runtime(), *trainers_[i], i, until));
    net_.run(when_all(net_.runtime(), std::move(tasks)));
  }
  template <class T>
  T run(Task<T> task) {
    return net_.run(std::move(task));
  }
  Trainer& operator[](std::size_t number) { return *trainers_[number]; }

 private:
  static RunOptions usual_options() {
    RunOptions options;
    options.run_id = "four";
    options.target_batch_size = kTrainers * kSamples;
    options.matchmaking_time = 2s;
    options.averaging_timeout = 30s;
    options.delay_state_averaging = false;
    options.checkpoints.every = 0s;
    return options;
  }

  static Task<void> train(Runtime& runtime, Trainer& me, std::size_t number, std::uint64_t until) {
    while (me.run->epoch() < until) {
      co_await runtime.sleep_for(1s);  // what a batch takes: the end of an epoch is foreseen by it
      me.model->compute(me.run->epoch(), number);
      (void)me.run->publish();  // what was delayed and is ready
      auto next = me.run->count(kSamples);
      for (StepReport report; !report.epoch_changed && !report.loaded_state; next = me.run->count(0)) {
        if (next == Run::Next::synchronise) report = co_await me.run->synchronise();
        EXPECT_FALSE(report.loaded_state) << "the batch of trainer " << number << " is lost";
        if (report.epoch_changed) me.groups.push_back(report.grad_group);
        if (report.epoch_changed) break;
        co_await runtime.sleep_for(50ms);
      }
      me.history.push_back(me.model->parameters());
    }
  }

  sim::Swarm net_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

/// The largest difference between two values in the same place.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

/// Compares each epoch of each trainer with what one process comes to.
inline void expect_steps_of(const std::vector<std::vector<float>>& expected, FourTrainers& trainers) {
  for (std::size_t i = 0; i < kTrainers; ++i) {
    EXPECT_EQ(trainers[i].groups, std::vector<std::size_t>(expected.size(), kTrainers));
    ASSERT_EQ(trainers[i].history.size(), expected.size());
    for (std::size_t epoch = 0; epoch < expected.size(); ++epoch)
      ASSERT_LT(distance(trainers[i].history[epoch], expected[epoch]), 1e-5)
          << "trainer " << i << ", epoch " << epoch + 1;
  }
  EXPECT_GT(distance(expected.front(), expected.back()), 0.1) << "they have moved";
}

}  // namespace cohive::train
