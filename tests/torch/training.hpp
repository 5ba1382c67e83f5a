// What the tests of trainers share: their swarms, and how much a batch and an epoch are.
#pragma once

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "cohive/torch/optimizer.hpp"

namespace cohive {

inline constexpr std::int64_t kBatch = 8, kBatches = 3;  // samples of a batch, and batches of epochs_of_three_batches()
inline constexpr double kRate = 0.1;

inline SwarmOptions joining(const std::vector<std::string>& peers) {
  SwarmOptions options;
  options.initial_peers = peers;
  options.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  return options;
}
inline SwarmOptions alone() {
  return joining({});
}

inline OptimizerOptions epochs_of_three_batches() {
  OptimizerOptions options;
  options.run_id = "test";
  options.target_batch_size = kBatches * kBatch;
  options.delay_state_averaging = false;
  options.matchmaking_time = 1s;
  return options;
}

/// Waits until this trainer knows of another one, and that one of this.
inline void meet(const Optimizer& optimizer, std::barrier<>& both) {
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  both.arrive_and_wait();
}

}  // namespace cohive
