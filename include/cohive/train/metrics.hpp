/// \file
/// What the train module measures.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohive/core/metrics.hpp"

namespace cohive::train {

/// Makes metrics of one run, which have its id as a label: a process may take part in several, or in one after another.
class RunMetrics {
 public:
  /// \param metrics  outlives this object
  RunMetrics(Metrics& metrics, std::string run_id) : metrics_(metrics), run_id_(std::move(run_id)) {}
  Counter counter(const std::string& name, const std::string& help, const MetricLabels& labels = {}) const {
    return metrics_.counter(name, help, of_run(labels));
  }
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {}) const {
    return metrics_.gauge(name, help, of_run(labels));
  }
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds) const {
    return metrics_.histogram(name, help, bounds, of_run({}));
  }

 private:
  MetricLabels of_run(MetricLabels labels) const {
    labels.emplace("run_id", run_id_);
    return labels;
  }

  Metrics& metrics_;
  std::string run_id_;
};

/// Those of one run.
struct TrainMetrics {
  explicit TrainMetrics(const RunMetrics& metrics)
      : epoch(metrics.gauge("cohive_train_epoch", "Epochs this peer has finished.")),
        global_epoch(metrics.gauge("cohive_train_global_epoch", "The epoch of the run.")),
        peers(metrics.gauge("cohive_train_peers", "Trainers in the run.")),
        global_rate(metrics.gauge("cohive_train_global_samples_per_second", "Samples per second of the whole run.")),
        samples(metrics.counter("cohive_train_samples_total", "Samples this peer has processed.")),
        grad_ok(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                {{"outcome", "ok"}})),
        grad_local(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                   {{"outcome", "local"}})),
        grad_missed(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                    {{"outcome", "missed"}})),
        state_ok(
            metrics.counter("cohive_train_state_rounds_total", "Parameter averaging by outcome.", {{"outcome", "ok"}})),
        state_failed(metrics.counter("cohive_train_state_rounds_total", "Parameter averaging by outcome.",
                                     {{"outcome", "failed"}})),
        downloads(metrics.counter("cohive_train_state_downloads_total", "States downloaded to catch up.")),
        checkpoints_ok(
            metrics.counter("cohive_train_checkpoints_total", "Checkpoints written, by outcome.", {{"outcome", "ok"}})),
        checkpoints_failed(metrics.counter("cohive_train_checkpoints_total", "Checkpoints written, by outcome.",
                                           {{"outcome", "failed"}})),
        checkpoint_epoch(metrics.gauge("cohive_train_checkpoint_epoch", "The epoch of the newest checkpoint.")),
        target_samples(metrics.gauge("cohive_train_target_samples", "Samples of all trainers that end an epoch.")),
        epoch_seconds(metrics.histogram("cohive_train_epoch_seconds", "Time from one epoch's end to the next one's.",
                                        {0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600})) {}
  /// Returns the gauge of the loss. It is made for the first loss: peers that report none would show one of 0.
  static Gauge loss(const RunMetrics& metrics) {
    return metrics.gauge("cohive_train_loss", "Last loss reported by the trainer.");
  }
  Gauge epoch, global_epoch, peers, global_rate;
  Counter samples, grad_ok, grad_local, grad_missed, state_ok, state_failed, downloads;
  Counter checkpoints_ok, checkpoints_failed;
  Gauge checkpoint_epoch, target_samples;
  Histogram epoch_seconds;
};

}  // namespace cohive::train
