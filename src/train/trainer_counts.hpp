// TrainerCounts: the trainer's thread counts what the loop reads, and the other way round. Thread-safe.
#pragma once

#include <mutex>
#include <optional>

#include "cohive/train/run.hpp"

namespace cohive::train {

/// The batches of this peer in an epoch.
struct Counted {
  double samples = 0;
  std::uint64_t batches = 0;
  double seconds = 0;  ///< that they took, without waits for the run; of the first one after a pause nothing
};

class TrainerCounts {
 public:
  void add_batch(double samples, TimePoint now);
  /// The trainer has waited until now.
  void waited(TimePoint now);
  Counted counted() const;
  /// Returns what was counted in this epoch, and begins anew.
  Counted take();
  /// Returns false where the loop has been told of batches and has not looked yet.
  bool tells_loop();
  /// Called when the loop looks.
  void loop_looks();

  std::uint64_t epoch() const;
  /// Loop thread. Returns false where it is this epoch already.
  bool enter(std::uint64_t epoch);

  /// Asks the trainer to synchronise after its next batch, whatever the progress.
  void demand();
  bool demanded() const;
  void demand_met();

  /// Members of a round that this peer is in wait for the end of its epoch; take() begins another one.
  void note_awaited();
  bool awaited() const;

  /// \param change  gets the TrainingStats, and takes no time
  template <class F>
  void note(F change) {
    const std::lock_guard lock(mutex_);
    change(stats_);
  }
  TrainingStats stats() const;

 private:
  mutable std::mutex mutex_;
  Counted counted_;
  std::optional<TimePoint> computes_since_;
  std::uint64_t epoch_ = 0;
  bool told_ = false, demanded_ = false, awaited_ = false;
  TrainingStats stats_;
};

}  // namespace cohive::train
