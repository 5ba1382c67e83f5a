// Measures the turns of loops: which took long, and how much of that the processor computed.
//
// Asking for a thread's processor time costs a system call, and a turn often less. So the wall clock, which costs
// little, tells which turns were long, and the processor time is looked at now and then, and when one was.
#pragma once

#include <optional>

#include "cohive/core/time.hpp"

namespace cohive {

class TurnMeter {
 public:
  /// Of a turn, without the time of work that is not the loop's.
  struct Long {
    Duration wall;
    Duration processor;  ///< at least
  };
  /// \param limit  by the wall clock, from which on a turn is long  \param look_every  the error of processor times
  TurnMeter(Duration limit, Duration look_every) noexcept : limit_(limit), look_every_(look_every) {}

  /// The first of several turns begins.
  void begin() noexcept;
  /// A turn ends and the next one begins. Returns what it took if it was long.
  std::optional<Long> end() noexcept;
  /// When the last turn ended.
  TimePoint ended() const noexcept { return TimePoint(began_); }
  /// Work that is not the loop's begins, inside a turn.
  void pause() noexcept;
  /// It ends.
  void go_on() noexcept;

 private:
  void look_if_due() noexcept;

  const Duration limit_, look_every_;
  Duration looked_at_{}, used_then_{};  // the last look at both clocks, before the turn began
  Duration began_{};                    // by the wall clock
  Duration paused_at_{}, used_at_pause_{};
  Duration elsewhere_{}, used_elsewhere_{};  // in this turn
};

}  // namespace cohive
