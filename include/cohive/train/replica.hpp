/// \file
/// Replica: what a training run asks of a model. LibTorch's is in cohive/torch, FusedReplica is one over plain host
/// memory; other front ends derive their own.
///
/// A model has *live* parameters, which the trainer computes with, and may have *next* ones, which the run prepares
/// while the trainer goes on; publish() makes the next ones live.
///
/// Which thread touches what: between the calls of the trainer's face of a Run, live parameters only change in
/// publish(). A run calls the functions below on the loop's thread, one at a time (snapshots excepted, which it keeps
/// apart from changes). What takes long leaves the loop: functions that return a Task do their work on the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/averaging/tensor_parts.hpp"

namespace cohive::train {

/// Where an optimizer step puts the parameters.
enum class Place { live, next };

/// Which parameters a round averages, and where the averages go.
struct ParameterRound {
  Place from = Place::live;  ///< whose values go out; next: those that a delayed optimizer step has made
  Place to = Place::live;    ///< live: the trainer waits; next: publish() makes the averages live
  /// Averages a copy of the live ones, which go on changing: publish() adds what the round has changed.
  bool changes = false;
  friend bool operator==(const ParameterRound&, const ParameterRound&) = default;
};

/// Tells what Replica::publish() has to do.
enum class Pending {
  nothing,  ///< there are no next parameters
  values,   ///< the next parameters take the place of the live ones
  changes   ///< they are added to the live ones
};

/// What a run asks of a model, whatever it is made with. Its calls come from the loop, one at a time.
class Replica {
 public:
  virtual ~Replica() = default;

  /// Describes the gradients: one tensor for each parameter that is trained.
  virtual const std::vector<averaging::TensorInfo>& gradient_infos() const = 0;
  /// Describes what rounds of the state average: parameters, then averaged statistics, then extra tensors.
  virtual const std::vector<averaging::TensorInfo>& state_infos() const = 0;

  // ---- Gradients

  /// The sum of an epoch's gradients, as a round reads and replaces it.
  struct Gradients {
    /// Sums over the batches, which become means when they are first used, or in finish(). Lives until the step ends.
    std::shared_ptr<averaging::TensorParts> parts;
    bool usable = true;  ///< false: some value was NaN or infinite. All are zero then, and must weigh nothing
  };
  /// Ends a sum: batches that are counted from now on belong to the next one. At once; the trainer does not compute.
  virtual void cut_gradients() = 0;
  /// Frees memory of the next parameters that have been published, before a step makes others: the trainer may be
  /// computing gradients, which need as much. Before take_gradients.
  virtual Task<void> free_next() { co_return; }
  /// Hands over what was accumulated before the cut.
  /// \param step  where the optimizer will step with them: the replica may do so stretch by stretch as averages arrive,
  ///              and what is left when finish_step is called. Unset: not at all.
  virtual Task<Gradients> take_gradients(std::optional<Place> step) = 0;
  /// Returns what rounds owe of the gradients in codecs with error feedback, for checkpoints; null: nothing, ever.
  virtual averaging::ResidualsPtr residuals() { return nullptr; }
  /// Forgets what is owed: the model that it belongs to was replaced.
  virtual void forget_residuals() {}
  /// Throws away what was taken, or accumulated before the cut. What is owed stays: the model may stay, too.
  virtual Task<void> drop_gradients() = 0;

  // ---- Optimizer

  /// Tells whether a step can write the next parameters (Place::next): a run that delays steps needs it.
  virtual bool can_step_beside() const { return true; }
  /// Completes the optimizer step with the gradients taken last, whose parts have finished, and advances the schedules
  /// of the learning rate to `epoch`.
  /// \param step  false: there are no gradients to go by; only the epoch advances
  virtual Task<void> finish_step(std::uint64_t epoch, bool step) = 0;

  // ---- Rounds of parameters

  /// Takes what the trainer may change beside parameters for a round of the next parameters, which will begin while it
  /// computes. The trainer does not compute yet.
  virtual Task<void> hold_state() { co_return; }
  /// Returns the tensors of state_infos() for one round.
  virtual Task<std::shared_ptr<averaging::TensorParts>> state_parts(ParameterRound how) = 0;
  /// Ends the round begun with state_parts.
  /// \param averaged  false: the values are what they were
  /// Returns true when publish() has something to do.
  virtual Task<bool> finish_state(bool averaged) = 0;

  // ---- Parameters for an exchange that computes with them by itself: float32 values in host memory, one array for
  // each of them; those with an empty one are left out. On any thread, which they take the time of a copy; in_use() is
  // held meanwhile.

  /// Tells whether the three functions below work.
  virtual bool copies_parameters() const { return false; }
  /// Copies the live parameters; the trainer does not compute.
  virtual void read_parameters(const std::vector<std::span<float>>&) {}
  /// Replaces the live parameters; the trainer does not compute.
  virtual void write_parameters(const std::vector<std::span<float>>&) {}
  /// Has publish() add these values to the live parameters, which the trainer goes on to change. Copies them.
  virtual void change_parameters(const std::vector<std::span<float>>&) {}

  /// Makes the next parameters live. Called while the trainer does not compute, on any thread.
  virtual void publish() = 0;
  /// Tells whether publish() leaves the memory that was live as it is, until the run has the next parameters changed.
  virtual bool publishes_by_exchange() const { return false; }

  // ---- The state as a whole

  /// Copies the newest complete state: the next parameters where a step has finished that is not published, else the
  /// live ones, with the changes that publish() will add to them. Nothing changes meanwhile, but for what the trainer
  /// writes by itself. nullopt: it changes too often, nothing is shared.
  virtual Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) = 0;
  /// Returns the same state without a copy, where the replica can: its reader reads the values where they are. Before
  /// the run has them changed, also by a publish() that is no exchange, it calls averaging::LiveTensors::settle or
  /// drop.
  virtual Task<std::optional<averaging::SharedState>> view(std::uint64_t epoch) { return snapshot(epoch); }
  /// Replaces parameters, statistics and extras by a downloaded state; the trainer does not compute meanwhile. Returns
  /// the state's epoch. Errors (nothing is changed then): Errc::bad_state for a state that does not fit, holds values
  /// that are not finite, or is older than `least_epoch`.
  virtual Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) = 0;
  /// Tells which epoch begins where no step of the run's ends one: after a state was loaded, and with local updates.
  /// Schedules follow it. The trainer does not compute.
  virtual void enter_epoch(std::uint64_t epoch) = 0;

  /// Returns what work on the pool holds as long as it uses the model: close() waits for it.
  virtual std::shared_ptr<const void> in_use() const { return nullptr; }
  /// Waits for work on the pool that still uses the model, such as a copy of it that nobody wants any more. Awaited
  /// between the end of the run and that of the replica, whose destructor would have to wait on the loop's thread.
  virtual Task<void> close() { co_return; }
};

}  // namespace cohive::train
