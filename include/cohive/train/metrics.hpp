/// \file
/// What the train module measures.
#pragma once

#include <string>

#include "cohive/core/metrics.hpp"

namespace cohive::train {

/// Those of one run: a process may take part in several, or in one after another.
struct TrainMetrics {
  TrainMetrics(Metrics& metrics, const std::string& run_id)
      : epoch(metrics.gauge("cohive_train_epoch", "Epochs this peer has finished.", {{"run_id", run_id}})),
        global_epoch(metrics.gauge("cohive_train_global_epoch", "The epoch of the run.", {{"run_id", run_id}})),
        peers(metrics.gauge("cohive_train_peers", "Trainers in the run.", {{"run_id", run_id}})),
        global_rate(metrics.gauge("cohive_train_global_samples_per_second", "Samples per second of the whole run.",
                                  {{"run_id", run_id}})),
        samples(
            metrics.counter("cohive_train_samples_total", "Samples this peer has processed.", {{"run_id", run_id}})),
        grad_ok(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                {{"outcome", "ok"}, {"run_id", run_id}})),
        grad_local(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                   {{"outcome", "local"}, {"run_id", run_id}})),
        grad_missed(metrics.counter("cohive_train_gradient_rounds_total", "Gradient averaging by outcome.",
                                    {{"outcome", "missed"}, {"run_id", run_id}})),
        state_ok(metrics.counter("cohive_train_state_rounds_total", "Parameter averaging by outcome.",
                                 {{"outcome", "ok"}, {"run_id", run_id}})),
        state_failed(metrics.counter("cohive_train_state_rounds_total", "Parameter averaging by outcome.",
                                     {{"outcome", "failed"}, {"run_id", run_id}})),
        downloads(metrics.counter("cohive_train_state_downloads_total", "States downloaded to catch up.",
                                  {{"run_id", run_id}})),
        checkpoints_ok(metrics.counter("cohive_train_checkpoints_total", "Checkpoints written, by outcome.",
                                       {{"outcome", "ok"}, {"run_id", run_id}})),
        checkpoints_failed(metrics.counter("cohive_train_checkpoints_total", "Checkpoints written, by outcome.",
                                           {{"outcome", "failed"}, {"run_id", run_id}})),
        checkpoint_epoch(metrics.gauge("cohive_train_checkpoint_epoch", "The epoch of the newest checkpoint.",
                                       {{"run_id", run_id}})),
        target_samples(metrics.gauge("cohive_train_target_samples", "Samples of all trainers that end an epoch.",
                                     {{"run_id", run_id}})),
        epoch_seconds(metrics.histogram("cohive_train_epoch_seconds", "Time from one epoch's end to the next one's.",
                                        {0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600}, {{"run_id", run_id}})) {}
  /// Returns the gauge of the loss. It is made for the first loss: peers that report none would show one of 0.
  static Gauge loss(Metrics& metrics, const std::string& run_id) {
    return metrics.gauge("cohive_train_loss", "Last loss reported by the trainer.", {{"run_id", run_id}});
  }
  Gauge epoch, global_epoch, peers, global_rate;
  Counter samples, grad_ok, grad_local, grad_missed, state_ok, state_failed, downloads;
  Counter checkpoints_ok, checkpoints_failed;
  Gauge checkpoint_epoch, target_samples;
  Histogram epoch_seconds;
};

}  // namespace cohive::train
