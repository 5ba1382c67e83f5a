// RunContext: the parts of a run work with it. Each part keeps its own state to itself:
//   run.cpp          the trainer's face: when it synchronises, and how it leaves
//   checkpoints.hpp  the state in files
//   catching_up.hpp  peers that are new or behind
//   epochs.hpp       the end of an epoch: gradients, step, state, as far as delayed in the background
//   run_rounds.hpp   when rounds begin, how long they are waited for, what they yield
//                    (scheduled.hpp: the rounds of one exchange; exchanges/: what is averaged)
//   link_fit.hpp     how long rounds of local steps are
//   run_status.hpp   what it tells of itself
// Each uses those below it, and none above it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/train/metrics.hpp"
#include "cohive/train/progress_tracker.hpp"
#include "history.hpp"
#include "kept_values.hpp"
#include "link_fit.hpp"
#include "parameter_gate.hpp"
#include "scheduled.hpp"
#include "shared_model.hpp"
#include "trainer_counts.hpp"
#include "wait_clock.hpp"

namespace cohive::train {

/// Owned by more than the run while the pool works for it.
struct RunContext : std::enable_shared_from_this<RunContext> {
  /// Throws std::invalid_argument as Run does.
  RunContext(Dht& d, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& r, const RunOptions& given);

  /// Returns the state of the model; nullopt when it cannot be copied in time. The trainer's thread publishes nothing
  /// meanwhile. \param beside  as in SharedModel::copy
  Task<std::optional<averaging::SharedState>> copy_state(Duration patience, SharedModel::Beside beside = nullptr);
  /// Adds to a copy of the model's state what the exchanges go by.
  Task<void> complete(averaging::SharedState& state) const;
  /// Returns the exchange that the optimizer steps with; null with local updates.
  Scheduled* of_step() const;
  /// Returns the exchange that makes our parameters those of others; null where there is none.
  Scheduled* of_parameters() const;
  /// Returns the samples of an epoch. Any thread.
  double target() const noexcept { return fit ? fit->target() : static_cast<double>(options.target_batch_size); }
  /// Tells those who go by it how many these are now.
  void follow_target();

  Dht& dht;
  Runtime& runtime;
  Replica& replica;
  const RunOptions options;
  const RunMetrics run_metrics;
  TrainMetrics metrics;
  WaitClock wait_clock;
  History history;
  ProgressTracker tracker;
  TrainerCounts counts;
  const std::shared_ptr<LinkFit> fit;  // of local steps with an outer optimizer, else null
  ParameterGate gate;
  const std::vector<std::unique_ptr<Scheduled>> exchanges;  // in the order in which they take place
  KeptValues kept;
  SharedModel model;
  bool ended = false;  // this peer trains no more; set by the trainer's face
  averaging::StateSharing sharing;
  TaskGroup tasks;
};

}  // namespace cohive::train
