// RunStatus: a run tells of itself by metrics, its losses, and an element of "runs" in the status of its process.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>

#include "cohive/core/status.hpp"
#include "metrics_record.hpp"
#include "run_context.hpp"

namespace cohive::train {

class RunStatus {
 public:
  RunStatus(RunContext& run, std::shared_ptr<dht::RsaSignatureValidator> key);
  /// Shows the run in the status of its process, until stop().
  void start();
  void stop() { shown_.reset(); }

  // ---- Any thread
  void add_samples(double samples);
  void forget_samples();
  void report_loss(double loss);

  /// Into metrics and history, when this peer enters an epoch.
  void epoch_entered(std::uint64_t epoch);

 private:
  std::string json() const;

  RunContext& run_;
  std::optional<MetricsRecord> record_;  // where the loss is shared
  // The last one that was reported; NaN before that. Other runs of the process write the gauge as well.
  std::atomic<double> loss_{std::numeric_limits<double>::quiet_NaN()};
  Subscription shown_;
};

}  // namespace cohive::train
