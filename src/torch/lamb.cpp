#include "cohive/torch/lamb.hpp"

#include <torch/torch.h>

#include "known_optimizer.hpp"
#include "versions.hpp"

namespace cohive {

Lamb::Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults)
    : torch::optim::Optimizer(groups, std::make_unique<LambOptions>(defaults)) {
  for (const auto& group : param_groups())
    for (const auto& parameter : group.params())
      if (!parameter.is_cpu() || parameter.scalar_type() != torch::kFloat32 || !parameter.is_contiguous())
        throw std::invalid_argument("cohive::Lamb: parameters must be contiguous float32 tensors in host memory");
  const libtorch::KnownOptimizer known(*this);
  const std::size_t count = libtorch::parameters_of(*this).size();
  for (std::size_t i = 0; i < count; ++i) optim::check(known.options(i));
}

torch::Tensor Lamb::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  torch::NoGradGuard no_grad;
  libtorch::KnownOptimizer known(*this);
  auto parameters = libtorch::parameters_of(*this);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    const torch::Tensor gradient = parameters[i].grad().to(torch::kFloat32).contiguous();
    const auto size = static_cast<std::size_t>(parameters[i].numel());
    const std::span<float> values(parameters[i].data_ptr<float>(), size);
    const optim::TensorMemory memory{std::span<const float>(values),
                                     values,
                                     {},
                                     std::span<float>(gradient.data_ptr<float>(), size),
                                     known.statistics(i)};
    optim::TensorStep one(known.options(i), memory, {known.steps_taken(i) + 1});
    one.run(0, size);
    one.settle();
    one.finish(0, size);
    known.count_step(i);
    libtorch::note_written(parameters[i]);
  }
  return loss;
}

// ---- Archives, as those of LibTorch's optimizers

void LambOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(bias_correction);
}

void LambOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, bias_correction);
}

void LambParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

void LambParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg_sq);
}

void Lamb::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

void Lamb::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

}  // namespace cohive
