/// \file
/// The optimizers: their options, with the names and defaults of torch::optim, and the statistics that they keep.
/// docs/optimizer-steps.md has the formulas.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

namespace cohive::optim {

/// The options of torch.optim.SGD.
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// The options of torch.optim.Adam.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient
  bool amsgrad = false;
};

/// The options of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< taken from the parameters
  bool amsgrad = false;
};

/// The options of torch.optim.RMSprop.
struct RmspropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

/// The options of torch.optim.Adagrad.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};

/// Layer-wise adaptive moments (You et al. 2020, algorithm 2).
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  bool bias_correction = true;
  /// Bounds of the norm of a tensor's parameters in its trust ratio; 0: none.
  double smallest_norm = 0;
  double largest_norm = 0;
};

/// The options of one optimizer, which say which one it is.
using Options = std::variant<SgdOptions, AdamOptions, AdamWOptions, RmspropOptions, AdagradOptions, LambOptions>;

/// A statistic that an optimizer keeps of every parameter.
struct StateField {
  std::string_view name;  ///< as in torch::optim, such as "exp_avg"
  double initial = 0;     ///< what it holds before the first step
};

/// The most statistics that an optimizer keeps.
inline constexpr std::size_t kMostStateFields = 3;

/// Lists the statistics in the order in which TensorMemory::state has them.
std::vector<StateField> state_fields(const Options& options);

/// Checks that all options are in the ranges that torch::optim demands.
/// \throws std::invalid_argument with a sentence that names the option
void check(const Options& options);

}  // namespace cohive::optim
