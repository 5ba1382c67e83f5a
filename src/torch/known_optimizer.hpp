// The optimizers of LibTorch that cohive steps by itself: their options, and their statistics where LibTorch keeps
// them. A user's checkpoints, and whatever else reads an optimizer's state, see what LibTorch would have left there.
#pragma once

#include <torch/torch.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohive/optim/step.hpp"

namespace cohive::libtorch {

/// All parameters, in the order of the parameter groups.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);
std::vector<torch::Tensor> parameters_of(const std::vector<torch::optim::OptimizerParamGroup>& groups);

class KnownOptimizer {
 public:
  /// Returns nothing for a class that is none of LibTorch's or cohive's own: a class derived from one may step
  /// otherwise.
  static std::optional<KnownOptimizer> of(torch::optim::Optimizer& optimizer);
  /// \param optimizer  is of one of these classes, or derived from one
  explicit KnownOptimizer(torch::optim::Optimizer& optimizer);

  /// Returns the options of a parameter's step, as they are now.
  optim::Options options(std::size_t parameter) const;
  /// Returns the statistics of a parameter in the order of optim::state_fields; makes the missing ones.
  std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter);
  std::int64_t steps_taken(std::size_t parameter);
  void count_step(std::size_t parameter);
  /// Looks at the state anew, after it was replaced.
  void look_at_state();

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<std::size_t> groups_;  // of each parameter
  std::vector<torch::Tensor> parameters_;
  std::vector<bool> stepped_;  // SGD does not count its steps, but the first one is another than the later ones
};

/// A statistic of a parameter under the name that Python's optimizers give it, as they are flattened: sorted by name.
/// "step" is a float32 scalar.
using NamedStatistics = std::vector<std::pair<std::string, torch::Tensor>>;
/// Returns what an optimizer keeps of a parameter; empty where it keeps nothing (yet), or for an unknown class.
NamedStatistics statistics_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);
/// Returns the names of what an optimizer with these options will keep of a parameter, sorted.
std::vector<std::string> statistics_kept(torch::optim::OptimizerOptions& options);
/// Returns one of these statistics; makes what the optimizer does not keep of the parameter yet. The tensor is the
/// optimizer's own, except for "step".
torch::Tensor made_statistic(torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                             const torch::Tensor& parameter, const std::string& name);
/// Returns what one of these statistics is before the first step, without making it in the optimizer.
torch::Tensor initial_statistic(torch::optim::OptimizerOptions& options, const torch::Tensor& parameter,
                                const std::string& name);
/// Moves what an optimizer keeps of each parameter to the parameter's device.
void move_statistics_to_parameters(torch::optim::Optimizer& optimizer);
/// Sets the number of steps that a parameter has taken: the nearest one that makes sense.
void set_steps(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, double steps);
/// Makes statistics of a parameter that have come from elsewhere such that a step can use them: no square is below 0,
/// and a mean of gradients that their squares rule out becomes 0.
void make_usable(const NamedStatistics& statistics);
/// Replaces what an optimizer keeps of a parameter by values under the names that statistics_kept returned.
void set_statistics(torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                    const torch::Tensor& parameter, const NamedStatistics& statistics);

}  // namespace cohive::libtorch
