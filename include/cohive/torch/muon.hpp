/// \file
/// Muon: momentum whose matrices are made orthogonal before they are added (Jordan et al. 2024), as torch.optim.Muon of
/// PyTorch 2.9 has it, for LibTorch. See docs/optimizer-steps.md.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

namespace cohive {

/// The options of a group of matrices.
struct MuonOptions : public torch::optim::OptimizerCloneableOptions<MuonOptions> {
  /// Takes the learning rate; the other options are set by their names.
  MuonOptions(double learning_rate = 0.02) : lr_(learning_rate) {}
  TORCH_ARG(double, lr) = 0.02;           ///< of a square matrix; one with more rows takes sqrt(rows / columns) of it
  TORCH_ARG(double, momentum) = 0.95;     ///< decay of the average of gradients, per step; above 0, below 1
  TORCH_ARG(bool, nesterov) = true;       ///< step by what the average will be rather than by the average
  TORCH_ARG(double, weight_decay) = 0.1;  ///< times the learning rate and the parameters, subtracted from them
  TORCH_ARG(double, eps) = 1e-7;          ///< the least norm that a matrix is divided by
  TORCH_ARG(int64_t, ns_steps) = 5;       ///< iterations of Newton and Schulz, 1 to 99

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

/// Returns the matrix with nearly the same singular vectors, and singular values of about 1 (0.5 to 1.5): `steps`
/// iterations of Newton and Schulz in quintic form, in bfloat16 on a GPU and in float32 elsewhere. \param eps  the
/// least norm that the matrix is divided by
torch::Tensor orthogonalised(const torch::Tensor& matrix, std::int64_t steps = 5, double eps = 1e-7);

/// Groups with MuonOptions, or without options, hold parameters of two dimensions or more, of which the first counts as
/// rows and all others together as columns. Groups with torch::optim::AdamWOptions are stepped by AdamW: embeddings,
/// the head, norms and biases belong there. A step multiplies matrices, 5 * 3 times each, so it is made where the model
/// is: cohive::Optimizer refuses to offload it. What it keeps of a matrix is "momentum_buffer", in LibTorch's
/// SGDParamState.
class Muon : public torch::optim::Optimizer {
 public:
  /// Steps the parameters of several groups; a group without options of its own has `defaults`. Throws
  /// std::invalid_argument for options of other classes or out of range, and for vectors in a group of matrices.
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults = {});
  /// Steps matrices that are one group.
  explicit Muon(std::vector<torch::Tensor> matrices, MuonOptions defaults = {})
      : Muon({torch::optim::OptimizerParamGroup(std::move(matrices))}, std::move(defaults)) {}
  /// Steps all parameters that have a gradient. Returns the loss of `closure`, an undefined tensor without it.
  torch::Tensor step(LossClosure closure = nullptr) override;
  /// Writes options and statistics.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads what save() has written. Throws c10::Error for an archive of other groups, and changes nothing then.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void step_matrix(torch::Tensor& parameter, const MuonOptions& options);
  void step_others();

  std::unique_ptr<torch::optim::AdamW> others_;  // of the groups with AdamWOptions; it borrows state and options
};

}  // namespace cohive
