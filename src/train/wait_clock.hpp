// WaitClock: what the trainer waits for while it does not compute. It waits in one place at a time, and what the loop
// does meanwhile says what for. Loop thread only.
#pragma once

#include <array>

#include "cohive/core/metrics.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/train/metrics.hpp"

namespace cohive::train {

enum class Wait {
  progress,      ///< the first look at what the other trainers do
  gradients,     ///< the round that averages gradients
  step,          ///< the optimizer step
  parameters,    ///< the round that averages parameters
  delayed_work,  ///< of the epoch before
  download,      ///< of the state of a peer that is ahead
  retry          ///< the pause after a download that failed
};
inline constexpr std::array kWaits = {"progress",     "gradients", "step", "parameters",
                                      "delayed_work", "download",  "retry"};

class WaitClock {
 public:
  WaitClock(Runtime& runtime, const RunMetrics& metrics) : runtime_(runtime) {
    for (std::size_t i = 0; i < counters_.size(); ++i)
      counters_[i] = metrics.counter("cohive_train_wait_seconds_total",
                                     "Seconds that the trainer has waited, by what for.", {{"reason", kWaits[i]}});
  }

  /// The trainer waits for as long as the object lives.
  class Waiting {
   public:
    Waiting(WaitClock& clock, Wait reason) : clock_(clock) {
      clock.reason_ = reason;
      clock.since_ = clock.runtime_.now();
      clock.waiting_ = true;
    }
    Waiting(const Waiting&) = delete;
    ~Waiting() {
      clock_.charge();
      clock_.waiting_ = false;
    }

   private:
    WaitClock& clock_;
  };

  /// From now on it is this that a waiting trainer waits for.
  void turn_to(Wait reason) {
    charge();
    reason_ = reason;
  }
  /// Returns the seconds of each reason, those of the wait that goes on included.
  const std::array<double, kWaits.size()>& seconds() {
    charge();
    return seconds_;
  }
  double total() {
    double sum = 0;
    for (const double one : seconds()) sum += one;
    return sum;
  }
  /// Counts what the wait that goes on has taken so far: one may take many minutes.
  void charge() {
    if (!waiting_) return;
    const TimePoint now = runtime_.now();
    const auto at = static_cast<std::size_t>(reason_);
    counters_[at].increment(to_seconds(now - since_));
    seconds_[at] += to_seconds(now - since_);
    since_ = now;
  }

 private:
  Runtime& runtime_;
  std::array<Counter, kWaits.size()> counters_;
  std::array<double, kWaits.size()> seconds_{};
  Wait reason_ = Wait::progress;
  TimePoint since_{};
  bool waiting_ = false;
};

}  // namespace cohive::train
