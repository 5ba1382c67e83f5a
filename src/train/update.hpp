// The work at the end of one epoch, from the time at which the trainer has to wait for it.
#pragma once

#include <exception>
#include <functional>

#include "cohive/core/sync.hpp"
#include "cohive/train/step_report.hpp"
#include "trainer_counts.hpp"

namespace cohive::train {

struct Update {
  Update(Runtime& runtime, std::uint64_t to, Counted of)
      : epoch(to), counted(of), released(runtime, "the end of an epoch"), done(runtime, "delayed work of an epoch") {}
  const std::uint64_t epoch;  ///< that it leads to
  const Counted counted;      ///< of this peer
  Event released;             ///< the trainer may go on
  Event done;
  bool late = false;         ///< other peers ended the epoch before we looked for a group
  bool missed = false;       ///< the other peers have averaged without us
  bool publishable = false;  ///< the next parameters are ready
  StepReport report;         ///< complete when done
  /// It has ended early by this, such as an error of a device: thrown once to the trainer.
  std::exception_ptr failure = nullptr;
};

}  // namespace cohive::train
