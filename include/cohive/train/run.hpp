/// \file
/// Run: the epochs of one training run as coroutines on the loop. It knows no machine-learning library: a model is a
/// Replica. Source: docs/wire/hivemind.md, section 7.5.
///
/// Every peer accumulates gradients of its own batches. When the swarm together has seen target_batch_size samples, an
/// epoch ends: gradients are averaged (weighted by samples), every peer takes the same optimizer step, and now and then
/// the parameters are averaged, too. A peer that is new or behind downloads the state of another one.
///
///   trainer                                            loop
///   count(samples) == go_on ............ posts ......> reports progress, begins to look for a group in time
///   count(samples) == synchronise
///     synchronise() ................................> gradients, step, state, as far as they are not delayed
///   publish() <..................................... the delayed rest is done
///
/// Threads: count, publish, epoch, stats and report_loss are for the trainer's thread, the rest for the loop's. Where
/// both are one (simulations), the trainer is a coroutine. train::Trainer is the whole for one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cohive/train/replica.hpp"
#include "cohive/train/run_options.hpp"
#include "cohive/train/step_report.hpp"

namespace cohive::train {

/// A peer's part in a training run: epochs, averaging, catching up, checkpoints. The trainer's thread calls one half of
/// it, tasks on the loop the other.
class Run {
 public:
  /// `dht` and `replica` must outlive it. \param key  signs the progress of this peer
  /// Throws std::invalid_argument: see check(RunOptions).
  Run(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& replica, RunOptions options);
  /// Drops all that goes on; close() first leaves in good order.
  ~Run();
  Run(const Run&) = delete;

  /// Opens the folder of CheckpointOptions::directory, and goes on from the newest whole checkpoint in it if that was
  /// asked for. Before start(), on the loop's thread. Errors: those of checkpoint::Folder, Errc::not_empty of the
  /// checkpoint module for checkpoints that it is not asked to go on from, and those of load_checkpoint.
  Task<Result<>> open_checkpoints();
  /// Begins to report and to serve.
  void start();

  // ---- The trainer's thread

  /// What the trainer does after a batch.
  enum class Next {
    go_on,       ///< compute the next batch
    synchronise  ///< an epoch ends, or this peer is behind: await synchronise() first
  };
  /// Counts a batch whose gradients the replica has accumulated (with local updates: that it has stepped with).
  /// Auxiliary peers count 0.
  Next count(std::int64_t samples);
  /// Forgets what was counted in this epoch, whose gradients the replica has lost. Before count() of the batch that
  /// lost them.
  void forget_samples();
  /// Publishes the next parameters and reports the work that they come from; nullopt when there are none, or they are
  /// being copied.
  std::optional<StepReport> publish();
  /// Returns the epoch of this peer.
  std::uint64_t epoch() const noexcept;
  /// Returns what the run has done so far.
  TrainingStats stats() const;
  /// Returns the run as it was seen last. Any thread.
  GlobalProgress progress() const;
  /// Shows the loss of a batch in the metrics of this peer; where RunOptions::share_loss is set, to monitors as well.
  void report_loss(double loss);
  /// Begins to write a checkpoint in the background when one is due and none is being written.
  void checkpoint_if_due();
  /// Returns the strings of the checkpoint that this run goes on from; empty when there is none.
  checkpoint::Metadata loaded_strings() const;

  // ---- The loop's thread; the trainer does not compute meanwhile

  /// Ends the epoch when it is time, or catches up, as far as count() asked for it.
  Task<StepReport> synchronise();
  /// All that a trainer does after a batch, where trainer and loop are one thread: publishes, counts, synchronises, and
  /// writes a checkpoint when one is due.
  Task<StepReport> step(std::int64_t samples);
  /// Downloads the state if the swarm is ahead. True if it did.
  Task<bool> catch_up();
  /// Waits for delayed work and publishes it. Returns what it has done; StepReport::updated is false when there was
  /// none.
  Task<StepReport> settle();
  /// Goes on from a state that was saved: `write` puts it into the replica, on the pool, while nothing else uses it. An
  /// exception that it throws comes through, and nothing has changed then. After settle().
  Task<void> restore(std::uint64_t epoch, std::function<void()> write);
  /// Averages the parameters once more with the peers that do the same. Returns the size of the group, 0 on failure.
  /// Where the group for the end of this epoch is there already, it is given up, and the batches of the epoch with it.
  Task<std::size_t> average_parameters();
  /// Writes a checkpoint into the folder and waits until it is there; nothing is written when the last one is of the
  /// same state. Errors: Errc::nothing_to_save of the checkpoint module, those of checkpoint::write_file.
  Task<Result<std::filesystem::path>> checkpoint_now();
  /// Writes one into a file of any name.
  Task<Result<>> save_checkpoint(std::filesystem::path path);
  /// Goes on from a file: parameters, statistics, epoch and schedules; a file of another run, or of none, leaves the
  /// epoch as it is. Returns the epoch. Errors (nothing is changed then): those of checkpoint::read_file,
  /// Errc::does_not_fit of that module.
  Task<Result<std::uint64_t>> load_checkpoint(std::filesystem::path path);
  /// Ends the training of this peer together with the peers that end theirs: stops counting as a trainer, applies what
  /// is delayed, and averages the parameters with all that stop now, or an epoch later. Afterwards all of these hold
  /// the same parameters; peers that go on take no part. Waits until the others are more than an epoch ahead, or for
  /// averaging_timeout. Returns the size of the group; 0: no other peer came. Only close() may follow.
  Task<std::size_t> finish();
  /// Leaves: withdraws the report, takes part in rounds whose group has formed, serves members that still wait for
  /// results, until shutdown_timeout at most. Idempotent.
  Task<void> close();

  /// Returns the loop of the run.
  Runtime& runtime() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace cohive::train
