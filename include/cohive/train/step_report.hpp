/// \file
/// StepReport tells a trainer what one call did, TrainingStats what all calls have done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cohive::train {

/// Tells what one call did.
struct StepReport {
  std::uint64_t epoch = 0;     ///< after the call
  bool epoch_changed = false;  ///< an epoch has ended in this call
  bool loaded_state = false;   ///< caught up with the swarm; the batch that waited for it did not count
  /// Delayed work of an earlier epoch came into place with this call; the groups below are those of its rounds.
  bool updated = false;
  std::size_t grad_group = 0;    ///< peers whose gradients were averaged; 0: local gradients only, or not known yet
  std::size_t state_group = 0;   ///< the same for the parameters; 0 in epochs without such a round, too
  std::uint64_t bytes_sent = 0;  ///< tensor payload of the rounds that this report is about

  /// Adds what an earlier call has done that nobody was told of.
  void include(const StepReport& earlier) {
    updated |= earlier.updated;
    epoch_changed |= earlier.epoch_changed;
    loaded_state |= earlier.loaded_state;
    bytes_sent += earlier.bytes_sent;
    if (grad_group == 0) grad_group = earlier.grad_group;
    if (state_group == 0) state_group = earlier.state_group;
  }
};

/// Counters since construction.
struct TrainingStats {
  std::uint64_t epoch = 0;               ///< of this peer
  double global_samples = 0,             ///< of the whole run, in its current epoch, as last seen
      samples_per_second = 0,            ///< of the whole run
      target_samples = 0;                ///< of an epoch: target_batch_size, or what the run has agreed on
  std::string rounds;                    ///< what was told last of rounds that fit the links; empty: nothing
  std::size_t peers = 0;                 ///< trainers in sight, as GlobalProgress::peers
  std::uint64_t grad_rounds = 0,         ///< of gradients that have succeeded
      grad_rounds_failed = 0,            ///< after which this peer went on with its own gradients
      state_rounds = 0,                  ///< of parameters that have succeeded
      state_rounds_failed = 0;           ///< after which this peer kept its own parameters
  std::uint64_t grad_rounds_agreed = 0;  ///< of grad_rounds: in a codec of RunOptions::agreed_grad_compression
  std::uint64_t state_downloads = 0;     ///< states of other peers that were downloaded and taken over
  std::uint64_t states_followed = 0;     ///< times that a peer behind took the epoch of a round of parameters with them
  std::vector<std::uint64_t> rounds_by_group_size;  ///< gradient rounds with n members at index n
  double samples_averaged = 0;      ///< of this peer: that its rounds of an outer optimizer have counted
  std::uint64_t bytes_sent = 0,     ///< tensor payload of all successful rounds
      bytes_received = 0;           ///< the same
  std::uint64_t checkpoints = 0,    ///< written
      checkpoints_failed = 0;       ///< that could not be written
  double seconds_synchronised = 0;  ///< that the trainer waited in synchronise()
};

}  // namespace cohive::train
