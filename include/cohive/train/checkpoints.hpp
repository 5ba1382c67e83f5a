/// \file
/// Checkpoints of a training run: what is in them, and when they are written. See docs/checkpoints.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/time.hpp"

namespace cohive::train {

/// Where, how often and how many checkpoints are written.
struct CheckpointOptions {
  /// Where checkpoints are written by themselves, in the background: a folder that belongs to this process. Made when
  /// missing; empty: nowhere.
  std::string directory;
  /// A checkpoint is due in a new epoch when the last one is so old, or so many epochs old; 0: it does not count.
  Duration every = 10min;
  std::uint64_t every_epochs = 0;  ///< epochs after which one is due; 0: age alone counts
  std::size_t keep = 3;            ///< that stay; older ones are removed when a new one is on the disk
  /// Goes on from the newest whole checkpoint in the directory, if there is one. Without it, a directory that holds
  /// checkpoints is refused.
  bool resume = false;
  /// Names of the parameters in files, in the optimizer's order; empty: "parameter.0" and so on.
  std::vector<std::string> parameter_names;
  /// Returns the caller's own strings for a checkpoint that begins: position in the data, random generators. Called
  /// while the trainer waits in a call, which throws what it throws; there is no checkpoint then until the next is due.
  std::function<checkpoint::Metadata()> strings = nullptr;
};

}  // namespace cohive::train
