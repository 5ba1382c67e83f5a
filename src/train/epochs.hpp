// The end of an epoch.
//   gradients of the group, weighted by samples > optimizer step > now and then the parameters of the group
// or whatever else the run exchanges, in the order of its list.
// All of it is one coroutine. The trainer goes on after it, or before the part of it that the options delay. Loop
// thread.
#pragma once

#include <memory>

#include "run_rounds.hpp"
#include "run_status.hpp"

namespace cohive::train {

class Epochs {
 public:
  Epochs(RunContext& run, RunRounds& rounds, RunStatus& status) : run_(run), rounds_(rounds), status_(status) {}

  /// Tells the swarm what the trainer has counted, and looks whether it is time to find a group.
  void note_progress();
  /// As RunRounds::consider, unless the last rounds are still in use. An auxiliary peer enters the run's epoch first.
  void consider_rounds();
  /// Tells whether the trainer has batches for the end of this epoch, or is about to make them.
  bool trains() const;
  /// The trainer has caught up in this epoch, between two batches.
  void note_caught_up() { caught_up_ = true; }

  /// Ends the epoch, until the trainer may go on. Returns false where the other peers have averaged without us.
  Task<bool> end(StepReport& report);
  /// Waits for what the last epoch has left to do, and publishes it. Returns false where the other peers did it without
  /// us.
  Task<bool> settle(StepReport& report);

  void enter(std::uint64_t epoch);
  /// The parameters are those of `epoch`, whatever came before.
  void take(std::uint64_t epoch);
  /// The batches of this epoch began from parameters that are not ours any more.
  Task<void> drop_batches();

 private:
  void follow_the_run();
  Counted take_batches();
  static Task<void> advance(Epochs& self, std::shared_ptr<Update> update);
  Task<void> make(Update& update);
  Task<std::shared_ptr<const averaging::RoundReport>> take_part(Update& update, std::size_t number, bool first);
  void release(Update& update);
  void finished(Update& update);
  void carry(Scheduled& scheduled, double samples, bool missed);
  double fragments() const;

  RunContext& run_;
  RunRounds& rounds_;
  RunStatus& status_;
  std::shared_ptr<Update> update_;  // the last one, until the trainer has seen its end
  bool caught_up_ = false;          // in this epoch, between two batches
  int alone_ = 0;                   // epochs that have ended in a row with nobody else in sight
};

}  // namespace cohive::train
