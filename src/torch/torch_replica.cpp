#include "torch_replica.hpp"

#include <algorithm>
#include <unordered_set>

#include "cohive/core/log.hpp"
#include "cohive/torch/muon.hpp"
#include "device_backend.hpp"
#include "foreign_model.hpp"
#include "fused_model.hpp"
#include "refuse.hpp"

namespace cohive::libtorch {

bool fit_for_fused_steps(const std::vector<torch::Tensor>& parameters) {
  return std::ranges::all_of(parameters, [&](const torch::Tensor& parameter) {
    return parameter.device() == parameters.front().device() && parameter.scalar_type() == torch::kFloat32 &&
           parameter.is_contiguous() && parameter.storage_offset() == 0 && parameter.storage().use_count() == 1 &&
           static_cast<std::size_t>(parameter.nbytes()) <= parameter.storage().nbytes();
  });
}

std::vector<torch::optim::OptimizerParamGroup> make_masters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  torch::NoGradGuard no_grad;
  std::vector<torch::optim::OptimizerParamGroup> masters;
  for (const auto& group : groups) {
    std::vector<torch::Tensor> tensors;
    for (const auto& parameter : group.params())
      tensors.push_back(
          parameter.detach().to(torch::kCPU, torch::kFloat32, false, true).contiguous().set_requires_grad(true));
    if (group.has_options())
      masters.emplace_back(std::move(tensors), group.options().clone());
    else
      masters.emplace_back(std::move(tensors));
  }
  return masters;
}

void check_parameters(const std::vector<torch::Tensor>& parameters) {
  demand(!parameters.empty(), "the optimizer has no parameters");
  std::unordered_set<const void*> known;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string which = "parameter " + std::to_string(i);
    demand(parameters[i].defined(), which + " is undefined");
    demand(dtype_of(parameters[i]).has_value(), which + " must be float32, float64, float16 or bfloat16");
    demand(known.insert(parameters[i].unsafeGetTensorImpl()).second,
           which + " is in the optimizer's groups twice: it would take two steps in one");
  }
}

RoundExtras make_round_extras(const ModelParts& parts, const OptimizerOptions& options) {
  const bool added_by_difference = options.use_local_updates && options.delay_state_averaging;
  return RoundExtras(parts.optimizer, parts.extras, options.offload_optimizer && !added_by_difference);
}

namespace {

bool have_one_device(const std::vector<torch::Tensor>& parameters) {
  return std::ranges::all_of(parameters,
                             [&](const auto& other) { return other.device() == parameters.front().device(); });
}

/// What computes with parameters, or their masters, where they are; null: nothing but LibTorch does.
std::shared_ptr<train::Backend> backend_of(Runtime& runtime, const std::vector<torch::Tensor>& parameters,
                                           const std::shared_ptr<TrainerStream>& trainer) {
  if (!have_one_device(parameters)) {
    log::warn("torch", "parameters on several devices are averaged in host memory, copied by LibTorch");
    return nullptr;
  }
  const bool doubles =
      std::ranges::any_of(parameters, [](const auto& p) { return p.scalar_type() == torch::kFloat64; });
  return doubles ? nullptr : make_backend(runtime, parameters.front().device(), trainer);
}

/// What copies between parameters of one device and their masters; null: LibTorch does.
std::shared_ptr<train::DeviceLink> link_for(Runtime& runtime, const ModelParts& parts) {
  const auto& parameters = parts.parameters;
  if (parameters_of(parts.optimizer).front().is_same(parameters.front())) return nullptr;
  return have_one_device(parameters) ? make_link(runtime, parameters.front().device()) : nullptr;
}

}  // namespace

std::unique_ptr<TorchReplica> make_replica(Runtime& runtime, ModelParts parts, const OptimizerOptions& options) {
  check_parameters(parts.parameters);
  demand(options.auxiliary || std::ranges::any_of(parts.parameters, [](const auto& p) { return p.requires_grad(); }),
         "no parameter has requires_grad: there is nothing to train");
  demand(dynamic_cast<torch::optim::LBFGS*>(&parts.optimizer) == nullptr,
         "LBFGS evaluates the model several times in a step, which peers cannot do together; use another optimizer");
  const auto steps_on = parameters_of(parts.optimizer);
  const bool masters = !steps_on.front().is_same(parts.parameters.front());
  auto trainer = parts.trainer ? parts.trainer : trainer_stream_of(parts.parameters.front().device());
  const auto turn = trainer->in_turn();  // statistics that are made now are for its next steps
  auto backend = masters ? train::host_backend(runtime) : backend_of(runtime, steps_on, trainer);
  // Local steps are made by the trainer's thread, and on a device by LibTorch; offloaded ones on the host.
  const bool by_libtorch = !steps_on.front().is_cpu() && (options.use_local_updates || options.offload_optimizer);
  auto known = KnownOptimizer::of(parts.optimizer);
  if (known && backend && !by_libtorch && fit_for_fused_steps(steps_on)) {
    auto link = link_for(runtime, parts);
    return std::make_unique<FusedModel>(runtime, std::move(backend), std::move(link), std::move(trainer),
                                        std::move(parts), std::move(*known), options);
  }
  demand(
      !dynamic_cast<Muon*>(&parts.optimizer) || (!options.delay_optimizer_step && !options.offload_optimizer),
      "Muon steps where the model is, since its matrix products take long on a processor: leave offload_optimizer and "
      "delay_optimizer_step out");
  demand(!options.delay_optimizer_step && !options.offload_optimizer,
         "offload_optimizer and delay_optimizer_step need one of LibTorch's optimizers (or cohive::Lamb), and "
         "parameters that are float32 in host memory (delay_optimizer_step: or all on one GPU, where cohive is built "
         "with its CUDA part) or an optimizer that cohive makes: pass the parameters and a function that makes it");
  return std::make_unique<ForeignModel>(runtime, std::move(backend), std::move(trainer), std::move(parts), options);
}

}  // namespace cohive::libtorch
