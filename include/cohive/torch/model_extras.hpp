/// \file
/// ModelExtras: what peers average beside a model's parameters, and newcomers download with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace cohive {

/// All peers of a run need the same ones, in the same order: peers whose lists differ find no common group.
struct ModelExtras {
  /// Tensors that no optimizer changes, such as the running statistics of batch normalization: `model->buffers()`.
  /// Averaged as float32; integers are rounded to the nearest one. What the model changes in them while a round goes on
  /// in the background stays: what the round changed is added to it.
  std::vector<at::Tensor> extra_tensors;
  /// Statistics of the optimizer that are averaged, too, by the names that Python's optimizers give them: "exp_avg",
  /// "exp_avg_sq".
  std::vector<std::string> average_opt_statistics;
};

}  // namespace cohive
