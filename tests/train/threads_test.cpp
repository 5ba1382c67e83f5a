// A run as programs have it: loops on threads of their own, pools beside them, trainers on further threads, sockets
// between them. Simulated runs, which have one thread, cannot show data races; these do, under ThreadSanitizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "cohive/train/plain_replica.hpp"
#include "cohive/train/trainer.hpp"

namespace cohive::train {
namespace {

constexpr std::uint64_t kEpochs = 3;
constexpr std::int64_t kBatch = 4;
constexpr Duration kPause = 10ms;  // of a trainer in each batch, as if a GPU computed it: an epoch takes a second

struct Mode {
  const char* name;
  bool delay_state, delay_grad, delay_step, offload;
};
void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.name;
}

RunOptions options_of(const Mode& mode) {
  RunOptions options;
  options.run_id = "threads";
  options.target_batch_size = 1200;
  options.matchmaking_time = 2s;
  options.tracker_options.default_refresh_period = 500ms;
  options.averaging_timeout = 30s;
  options.delay_state_averaging = mode.delay_state;
  options.delay_grad_averaging = mode.delay_grad;
  options.delay_optimizer_step = mode.delay_step;
  options.offload_optimizer = mode.offload;
  return options;
}

/// A process's part of the run.
class Process {
 public:
  Process(const Mode& mode, std::vector<std::string> initial_peers)
      : swarm_({.initial_peers = std::move(initial_peers),
                .host_maddrs = {"/ip4/127.0.0.1/tcp/0"},
                .nat_port_map = false}),
        trainer_(swarm_, options_of(mode), [this](Runtime& loop, TrainerThread&) {
          auto made = std::make_shared<PlainReplica>(loop, std::vector<codec::Shape>{{64, 64}, {1000}},
                                                     optim::AdamOptions{.lr = 0.05});
          model_ = made.get();
          return made;
        }) {}

  /// Trains until the last epoch and ends the run together with the other trainers.
  void train() {
    while (trainer_.epoch() < kEpochs) {
      (void)trainer_.publish();
      compute();
      std::this_thread::sleep_for(kPause);
      (void)trainer_.step(kBatch);
    }
    together_ = trainer_.finish();
  }

  std::vector<std::string> addresses() const { return swarm_.visible_addresses(); }
  std::size_t together() const { return together_; }
  std::vector<float> parameters() {
    std::vector<float> all;
    for (std::size_t i = 0; i < model_->parameters(); ++i) {
      const auto values = model_->parameter(i);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  /// The gradients of half the squared distance from 1.
  void compute() {
    std::vector<std::vector<float>> gradients;
    for (std::size_t i = 0; i < model_->parameters(); ++i) {
      auto& gradient = gradients.emplace_back();
      for (const float value : model_->parameter(i)) gradient.push_back(value - 1);
    }
    model_->add_gradients({gradients.begin(), gradients.end()}, kBatch);
  }

  Swarm swarm_;
  PlainReplica* model_ = nullptr;
  Trainer trainer_;
  std::size_t together_ = 0;
};

class OnThreads : public ::testing::TestWithParam<Mode> {};

TEST_P(OnThreads, TrainersLearnAndEndWithTheSameParameters) {
  Process first(GetParam(), {});
  Process second(GetParam(), first.addresses()), third(GetParam(), first.addresses());
  {
    std::vector<std::jthread> threads;
    for (Process* trainer : {&first, &second, &third}) threads.emplace_back([trainer] { trainer->train(); });
  }
  const auto parameters = first.parameters();
  for (Process* trainer : {&first, &second, &third}) {
    EXPECT_EQ(trainer->together(), 3u);
    EXPECT_EQ(trainer->parameters(), parameters);
  }
  EXPECT_THAT(parameters, testing::Each(testing::Gt(0.01f))) << "they began at 0";
}

INSTANTIATE_TEST_SUITE_P(Modes, OnThreads,
                         ::testing::Values(Mode{"synchronous", false, false, false, false},
                                           Mode{"parameters_in_the_background", true, false, false, false},
                                           Mode{"all_in_the_background", true, true, true, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cohive::train
