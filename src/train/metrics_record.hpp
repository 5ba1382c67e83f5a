// MetricsRecord: what a trainer tells monitors of each epoch that it ends, as the examples of hivemind do.
//   trainer -> DHT: {<run_id>_metrics: {marker of its key: {step, rate, samples, sum of losses, their number}, 600 s}}
// Source: docs/wire/hivemind.md, section 7.1. An epoch of which no loss was reported is not told.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "cohive/core/task_group.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::train {

class MetricsRecord {
 public:
  /// Adds the validator of the schema to `dht`.
  /// \param tasks  what is stored goes on in them, and needs `dht`; must outlive this
  MetricsRecord(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const std::string& run_id, TaskGroup& tasks);

  /// Any thread.
  void add_samples(double samples);
  void forget_samples();
  /// Any thread. What is no number is left out.
  void add_loss(double loss);

  /// Stores what has added up since the last call, in the background. Loop thread. Of large runs the same 128 trainers
  /// or so do: one record holds no more than some thousand entries, and the mean of these losses is nearly the run's.
  /// \param step      the epoch that begins
  /// \param trainers  of the run
  void publish(std::uint64_t step, double samples_per_second, std::size_t trainers);

 private:
  struct Sums {
    double samples = 0, loss = 0;
    std::uint64_t losses = 0;
  };
  static Task<void> store(Dht& dht, std::string key, msgpack::Bin subkey, msgpack::Value value, double expiration);

  Dht& dht_;
  std::shared_ptr<dht::RsaSignatureValidator> key_;
  const std::string record_key_;
  const double drawn_;  // where this trainer stands among all, from 0 to 1: the first ones tell
  std::mutex mutex_;
  Sums sums_;
  TaskGroup& tasks_;
  double newest_expiration_ = 0;  // Unix seconds
};

}  // namespace cohive::train
