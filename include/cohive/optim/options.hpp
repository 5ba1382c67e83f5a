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
  double lr = 1e-3;         ///< learning rate
  double momentum = 0;      ///< decay of the running sum of gradients; 0: none is kept
  double dampening = 0;     ///< share of a gradient that does not enter the running sum
  double weight_decay = 0;  ///< times the parameters, added to the gradient
  bool nesterov = false;    ///< add the running sum once more, as after another step; with momentum only
};

/// The options of torch.optim.Adam.
struct AdamOptions {
  double lr = 1e-3;         ///< learning rate
  double beta1 = 0.9;       ///< decay of the average of gradients, per step
  double beta2 = 0.999;     ///< the same of their squares
  double eps = 1e-8;        ///< added to the root that gradients are divided by
  double weight_decay = 0;  ///< added to the gradient
  bool amsgrad = false;     ///< divide by the largest average of squares so far
};

/// The options of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate
  double beta1 = 0.9;          ///< decay of the average of gradients, per step
  double beta2 = 0.999;        ///< the same of their squares
  double eps = 1e-8;           ///< added to the root that gradients are divided by
  double weight_decay = 1e-2;  ///< taken from the parameters
  bool amsgrad = false;        ///< divide by the largest average of squares so far
};

/// The options of torch.optim.RMSprop.
struct RmspropOptions {
  double lr = 1e-2;         ///< learning rate
  double alpha = 0.99;      ///< decay of the average of squares, per step
  double eps = 1e-8;        ///< added to the root that gradients are divided by
  double weight_decay = 0;  ///< times the parameters, added to the gradient
  double momentum = 0;      ///< decay of the running sum of steps; 0: none is kept
  bool centered = false;    ///< divide by the deviation from the average gradient
};

/// The options of torch.optim.Adagrad.
struct AdagradOptions {
  double lr = 1e-2;                      ///< learning rate
  double lr_decay = 0;                   ///< step t has lr / (1 + (t - 1) * lr_decay)
  double weight_decay = 0;               ///< times the parameters, added to the gradient
  double initial_accumulator_value = 0;  ///< what sums of squares begin with
  double eps = 1e-10;                    ///< added to the root of the sum of squares
};

/// Layer-wise adaptive moments (You et al. 2020, algorithm 2).
struct LambOptions {
  double lr = 1e-3;             ///< learning rate
  double beta1 = 0.9;           ///< decay of the average of gradients, per step
  double beta2 = 0.999;         ///< the same of their squares
  double eps = 1e-6;            ///< added to the root that gradients are divided by
  double weight_decay = 1e-2;   ///< times the parameters, added to the update before the trust ratio
  bool bias_correction = true;  ///< divide the averages by what they lack in the first steps
  /// Bounds of the norm of a tensor's parameters in its trust ratio; 0: none.
  double smallest_norm = 0;
  double largest_norm = 0;  ///< see smallest_norm
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
