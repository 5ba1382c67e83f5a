// A simulated run of local steps on machines of unlike speed, of which one is killed, stopped or suspended now and
// then: how many of the samples that its machines have time for come to count in its rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cohive/train/run_options.hpp"

namespace cohive::sim {

struct UnevenRun {
  std::size_t trainers = 16;
  std::size_t slow = 2;          ///< of these
  double times_slower = 4;       ///< is a local step of a slow one
  Duration step = 1s;            ///< of the others, a local one
  double steps_per_round = 30;   ///< of a trainer that is not slow
  Duration fault_every = 30s;    ///< 0: none
  Duration restart = 5s;         ///< until a trainer that was killed, or whose machine has vanished, is replaced
  Duration longest_stop = 10s;   ///< of a trainer that is stopped
  Duration longest_sleep = 30s;  ///< of a machine that is suspended
  Duration first = 2min;         ///< in which nothing is counted
  Duration then = 20min;         ///< in which it is
  std::uint64_t seed = 1;
  std::function<void(train::RunOptions&)> tune = nullptr;
};

struct UnevenReport {
  double counted = 0;     ///< samples per second that rounds have averaged, or will
  double made = 0;        ///< samples per second of the local steps that were made
  double possible = 0;    ///< the same, if all machines that were up had computed all of the time
  double slow_share = 0;  ///< of the samples of slow trainers, those that count
  std::size_t faults = 0;
  std::size_t rounds = 0;  ///< of each trainer, added up
  std::uint64_t downloads = 0;
  double offences = 0;         ///< that hosts have reported of each other: none, as all of them are honest
  bool equal_anchors = false;  ///< to the bit, some rounds after the last fault

  std::string text() const;
};

UnevenReport run_uneven(const UnevenRun& run);

}  // namespace cohive::sim
