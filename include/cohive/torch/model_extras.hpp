/// \file
/// ModelExtras: what peers average beside a model's parameters, and newcomers download with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace cohive {

/// How the optimizers of Python trainers in the run differ from this one. hivemind refuses a state, or misreads it,
/// whose settings are not those of its own optimizer: keys depend on the scheduler and on the release of PyTorch.
struct PythonPeers {
  /// Whether they have a scheduler; unset: as this trainer, or as a donor was found to have it. A peer that refuses the
  /// state without one is then tried with one.
  std::optional<bool> scheduler = {};
  /// Their release of PyTorch, such as "2.6", 2.4 at least; empty: that of this LibTorch, or as a donor was found to
  /// have it.
  std::string torch = {};
};
/// Throws std::invalid_argument with a sentence for a release of PyTorch that is none, or too old.
void check(const PythonPeers& peers);

/// All peers of a run need the same tensors, in the same order: peers whose lists differ find no common group.
struct ModelExtras {
  /// Tensors that no optimizer changes, such as the running statistics of batch normalization: `model->buffers()`.
  /// Averaged as float32; integers are rounded to the nearest one. What the model changes in them while a round goes on
  /// in the background stays: what the round changed is added to it.
  std::vector<at::Tensor> extra_tensors;
  /// Statistics of the optimizer that are averaged, too, by the names that Python's optimizers give them: "exp_avg",
  /// "exp_avg_sq".
  std::vector<std::string> average_opt_statistics;
  PythonPeers python = {};  ///< what newcomers that run hivemind expect
};

}  // namespace cohive
