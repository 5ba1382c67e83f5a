/// \file
/// Trainer: a training run as one thread of a program uses it, whatever the model is made with. It owns a Run and its
/// Replica, which live on the loop of a Swarm, and waits for them on the calling thread. cohive::Optimizer is made with
/// it; so is a binding for another language, with a BufferReplica over that language's arrays.
///
///   cohive::Swarm swarm({.initial_peers = peers});
///   train::BufferReplica* model = nullptr;
///   train::Trainer trainer(swarm, {.run_id = "run", .target_batch_size = 4096}, [&](Runtime& loop, TrainerThread&) {
///     auto made = std::make_shared<train::BufferReplica>(loop, tensors, optim::AdamOptions{});
///     model = made.get();
///     return made;
///   });
///   while (trainer.epoch() < 100) {
///     compute(gradients);
///     model->add_gradients(gradients, batch_size);
///     trainer.step(batch_size);
///   }
///   trainer.finish();
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "cohive/train/run.hpp"
#include "cohive/train/swarm.hpp"
#include "cohive/train/trainer_thread.hpp"

namespace cohive::train {

/// Thread-safe: calls that use the model go one at a time, a second thread waits for the first. The model's parameters
/// change only inside of them. Never call it on the loop's thread.
///
/// Calls that wait throw ErrorException with Errc::cancelled after cancel_wait(), and with Errc::closed after close().
/// An exception of the model or of its optimizer ends the call that waits, and comes through as it was thrown.
class Trainer {
 public:
  /// Makes the model; called once, on the loop's thread. The Trainer has it destroyed there. \param thread  outlives it
  using MakeReplica = std::function<std::shared_ptr<Replica>(Runtime& runtime, TrainerThread& thread)>;

  /// Joins the run, and goes on from its checkpoint where the options say so. `swarm` outlives this object.
  /// Throws std::invalid_argument with a sentence for options that contradict one another (check(RunOptions)) or that
  /// the model does not go with, ErrorException for checkpoints that cannot be gone on from, and what `make` throws.
  Trainer(Swarm& swarm, RunOptions options, const MakeReplica& make);
  /// Closes, and destroys the model.
  ~Trainer();
  Trainer(const Trainer&) = delete;

  // ---- Training

  /// Hands the gradients of a batch over to the replica (or steps with them, with local updates) on the calling thread,
  /// and returns how many samples count: 0 where the batch does not.
  using TakeBatch = std::function<std::int64_t()>;
  /// After each batch: publishes parameters that were prepared in the background, takes the batch, and counts it.
  /// Returns at once, except when an epoch ends (the part of it that is not delayed) or this peer must catch up.
  /// \param before_wait  called on the calling thread before it waits for the end of an epoch, or for a download: hands
  ///                     over gradients that were added up elsewhere; may be null
  StepReport step(const TakeBatch& take, const std::function<void()>& before_wait = nullptr);
  /// The same for a batch that the replica has been given already. \param samples  0: auxiliary peers
  StepReport step(std::int64_t samples);
  /// Publishes what was prepared in the background, without a batch. Does not wait: nullopt when there is nothing.
  std::optional<StepReport> publish();
  /// Forgets what was counted in this epoch, whose gradients the replica has lost; see Run::forget_samples. Inside of
  /// step(), as where it takes a batch.
  void forget_samples();
  /// The same between two calls. \param forget_batches  has the replica forget them, too
  void forget(const std::function<void()>& forget_batches);
  /// Waits for delayed work and publishes it. The next step() reports it.
  void settle();

  /// Downloads the state of the swarm if it is ahead; true if it did.
  bool load_state_from_peers();
  /// Averages the parameters once more with the peers that do the same. Returns the size of the group; 0: no group.
  std::size_t average_parameters();
  /// Ends the training together with the peers that end theirs now; see Run::finish. Returns the size of the last
  /// group. Only close(), stats() and the destructor may follow.
  std::size_t finish();

  // ---- States

  /// Writes the state into a file; see Run::save_checkpoint for this and the next ones, and for their errors.
  Result<> save_checkpoint(const std::filesystem::path& path);
  /// Goes on from a file. Returns its epoch.
  Result<std::uint64_t> load_checkpoint(const std::filesystem::path& path);
  /// Writes a checkpoint into CheckpointOptions::directory and returns when it is on the disk.
  Result<std::filesystem::path> checkpoint_now();
  /// Goes on from a state that was saved elsewhere, after settle(): see Run::restore. \param write  called on the pool
  void restore(std::uint64_t epoch, std::function<void()> write);
  /// Returns what CheckpointOptions::strings returned for the checkpoint that was loaded; empty when none was.
  checkpoint::Metadata loaded_strings() const;

  // ---- Beside the training: these never wait

  /// Returns the epoch of this peer, which the swarm may have passed.
  std::uint64_t epoch() const noexcept;
  /// Returns what the run has done since construction.
  TrainingStats stats() const;
  /// Returns the run as it was seen last.
  GlobalProgress progress() const;
  /// Shows the loss of a batch; see Run::report_loss.
  void report_loss(double loss);
  /// Ends the wait of the call that waits now, which throws; nothing where none does. What it began goes on, and the
  /// next call waits for that first: until then the model may still change. Any thread, not a signal handler.
  void cancel_wait();
  /// Has a function asked about every 100 ms by a thread that waits, on that thread: true is as cancel_wait(). For
  /// signals of an interpreter. Before the first call that waits.
  void give_up_when(std::function<bool()> asked);

  /// Leaves the run, within RunOptions::shutdown_timeout; a call that another thread waits in ends first, as after
  /// cancel_wait(), and what it began is dropped. Idempotent.
  void close();

  /// The run, whose functions for the loop's thread are to be called there (Swarm::call), while no call waits.
  Run& run() noexcept;
  /// Returns the swarm of the constructor.
  Swarm& swarm() const noexcept;
  /// Returns the options of the run.
  const RunOptions& options() const noexcept;
  /// Runs `function` on the loop's thread and waits for it: for what a replica has that lives there.
  void on_loop(const std::function<void()>& function);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::train
