/// \file
/// Lamb: layer-wise adaptive moments (You et al. 2020), which LibTorch lacks, as one of its optimizers. See
/// docs/optimizer-steps.md.
#pragma once

#include <torch/optim/optimizer.h>

namespace cohive {

/// The options of LAMB, as torch::optim has those of Adam.
struct LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  /// Takes the learning rate; the other options are set by their names.
  LambOptions(double learning_rate = 1e-3) : lr_(learning_rate) {}
  TORCH_ARG(double, lr) = 1e-3;  ///< learning rate
  /// The type of `betas`.
  using betas_t = std::tuple<double, double>;
  /// Decay of the averages of gradients and of their squares, per step.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;            ///< added to the root of the mean square
  TORCH_ARG(double, weight_decay) = 1e-2;   ///< times the parameters, added to the update before the trust ratio
  TORCH_ARG(bool, bias_correction) = true;  ///< divide the averages by what they lack in the first steps

 public:
  /// Reads the options of an archive.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes the options into an archive.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Returns the learning rate, for LibTorch's schedulers.
  double get_lr() const override { return lr(); }
  /// Sets the learning rate, for the same.
  void set_lr(const double lr) override { lr_ = lr; }
};

/// What LAMB keeps of a parameter.
struct LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;          ///< steps that the parameter has taken
  TORCH_ARG(torch::Tensor, exp_avg);     ///< average of the gradients, in the shape of the parameter
  TORCH_ARG(torch::Tensor, exp_avg_sq);  ///< average of their squares, in the same shape

 public:
  /// Reads the statistics of an archive.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes the statistics into an archive.
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Parameters are float32 tensors in host memory. Throws std::invalid_argument for other tensors, and for options out
/// of range.
class Lamb : public torch::optim::Optimizer {
 public:
  /// Steps the parameters of several groups; a group without options of its own has `defaults`.
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults = {});
  /// Steps parameters that are one group.
  explicit Lamb(std::vector<torch::Tensor> parameters, LambOptions defaults = {})
      : Lamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
  /// Steps all parameters that have a gradient. Returns the loss of `closure`, an undefined tensor without it.
  torch::Tensor step(LossClosure closure = nullptr) override;
  /// Writes options and statistics, as LibTorch's optimizers do.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads what save() has written.
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace cohive
