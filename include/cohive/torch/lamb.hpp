/// \file
/// Lamb: layer-wise adaptive moments (You et al. 2020), which LibTorch lacks, as one of its optimizers. See docs/optimizer-steps.md.
#pragma once

#include <torch/optim/optimizer.h>

namespace cohive {

/// The options of LAMB, as torch::optim has those of Adam.
struct LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  LambOptions(double learning_rate = 1e-3) : lr_(learning_rate) {}
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 1e-2;
  TORCH_ARG(bool, bias_correction) = true;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { lr_ = lr; }
};

/// What LAMB keeps of a parameter.
struct LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Parameters are float32 tensors in host memory. Throws std::invalid_argument for other tensors, and for options out of range.
class Lamb : public torch::optim::Optimizer {
 public:
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults = {});
  explicit Lamb(std::vector<torch::Tensor> parameters, LambOptions defaults = {})
      : Lamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace cohive
