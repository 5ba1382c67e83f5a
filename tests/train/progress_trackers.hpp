// Trainers' progress trackers in a simulated swarm.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cohive/train/progress_tracker.hpp"
#include "dht/dht_swarm.hpp"

namespace cohive::train {

inline constexpr double kTarget = 1000;

class Progress : public dht::DhtSwarm {
 protected:
  ProgressTracker& add_trainer(bool client_mode = false, bool auxiliary = false) {
    Dht& node = add({.client_mode = client_mode});
    auto key = std::make_shared<dht::RsaSignatureValidator>();
    node.add_validator(key);
    keys.push_back(key);
    TrackerOptions options;
    options.run_id = "run";
    options.target_batch_size = kTarget;
    options.client_mode = client_mode;
    options.auxiliary = auxiliary;
    options.sharded_above = 0;  // all in one record; shards_sim_test.cpp has the others
    trackers.push_back(std::make_unique<ProgressTracker>(node, key, options));
    trackers.back()->start();
    return *trackers.back();
  }
  /// Reports `batch` more samples every second for `seconds`.
  void train(ProgressTracker& tracker, std::uint64_t epoch, double batch, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      swarm.pass(1s);
      tracker.report(epoch, samples[&tracker] += batch);
    }
  }
  void TearDown() override { trackers.clear(); }
  /// As after a round of all trainers.
  void meet() {
    std::vector<PeerId> all;
    for (std::size_t i = 0; i < trackers.size(); ++i) all.push_back(swarm.host(i).id());
    for (auto& tracker : trackers) {
      tracker->met(all);
      tracker->took_part(all);
    }
  }

  std::vector<std::shared_ptr<dht::RsaSignatureValidator>> keys;  // of the trackers
  std::vector<std::unique_ptr<ProgressTracker>> trackers;
  std::map<ProgressTracker*, double> samples;
};

}  // namespace cohive::train
