// Trainer: one run of cohive-train, from the first batch to the summary. Where several processes of one machine are
// ranks of a node (LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them), rank 0 speaks for all: it alone is a peer of
// the swarm, prints, and writes checkpoints and results; the other ranks add the gradients of their batches to its own.
#pragma once

#include <csignal>
#include <memory>

#include "cohive/torch/local_group.hpp"
#include "train/options.hpp"
#include "train/workload.hpp"

namespace cohive::tools {

/// Reads which rank of how many this process is. Throws Exit with code 2 for numbers that are none, and for options
/// that do not go with several ranks.
LocalGroupOptions ranks_of_environment(const TrainOptions& options);

/// Trains until the options or a signal end it, and returns the exit code.
/// \param stop  set by signal handlers
int train(const TrainOptions& options, LocalGroupOptions ranks, std::unique_ptr<Workload> workload,
          const volatile std::sig_atomic_t& stop);

}  // namespace cohive::tools
