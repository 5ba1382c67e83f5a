// Trainer: one run of cohive-train, from the first batch to the summary. Where several processes of one machine are
// ranks of a node (LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them), rank 0 speaks for all: it alone is a peer
// of the swarm, prints, and writes checkpoints and results; the other ranks add the gradients of their batches to its
// own.
#pragma once

#include <memory>

#include "cohive/torch/local_group.hpp"
#include "common/output_file.hpp"
#include "train/options.hpp"
#include "train/workload.hpp"

namespace cohive::tools {

/// Reads which rank of how many this process is. Throws Exit with code 2 for numbers that are none, and for options
/// that do not go with several ranks.
LocalGroupOptions ranks_of_environment(const TrainOptions& options);

/// What a trainer writes at its end.
struct Results {
  OutputFile save, summary;
};

/// Trains until the options or a signal end it (signals.hpp), and returns the exit code. At the end every output is
/// tried; each one that fails is a line on stderr.
int train(const TrainOptions& options, const Results& results, LocalGroupOptions ranks,
          std::unique_ptr<Workload> workload);

}  // namespace cohive::tools
