// Source: torch/optim/_muon.py of PyTorch 2.11; https://kellerjordan.github.io/posts/muon.
#include "cohive/torch/muon.hpp"

#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

namespace cohive {
namespace {

namespace to = torch::optim;

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // of the polynomial, steepest at 0

void demand(bool fine, const std::string& sentence) {
  if (!fine) throw std::invalid_argument("cohive::Muon: " + sentence);
}

void check(const MuonOptions& o) {
  demand(o.lr() >= 0 && o.weight_decay() >= 0 && o.eps() > 0, "lr, weight_decay and eps must not be negative");
  demand(o.momentum() > 0 && o.momentum() < 1, "momentum must be above 0 and below 1");
  demand(o.ns_steps() >= 1 && o.ns_steps() < 100, "ns_steps must be from 1 to 99");
}

/// The group numbers that AdamW steps.
std::vector<std::size_t> other_groups(std::vector<to::OptimizerParamGroup>& groups) {
  std::vector<std::size_t> others;
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (dynamic_cast<to::AdamWOptions*>(&groups[g].options())) others.push_back(g);
  return others;
}

std::string key(const char* what, std::size_t number) {
  return what + std::to_string(number);
}

}  // namespace

torch::Tensor orthogonalised(const torch::Tensor& matrix, std::int64_t steps, double eps) {
  const bool tall = matrix.size(0) > matrix.size(1);
  torch::Tensor x = matrix.to(matrix.is_cpu() ? torch::kFloat32 : torch::kBFloat16);
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(eps);  // so that no singular value is above 1
  for (std::int64_t i = 0; i < steps; ++i) {
    const torch::Tensor gram = x.mm(x.t());
    x = torch::addmm(x, torch::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return (tall ? x.t() : x).to(matrix.scalar_type());
}

Muon::Muon(const std::vector<to::OptimizerParamGroup>& groups, MuonOptions defaults)
    : to::Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  check(defaults);
  for (auto& group : param_groups()) {
    if (dynamic_cast<to::AdamWOptions*>(&group.options())) continue;
    const auto* options = dynamic_cast<MuonOptions*>(&group.options());
    demand(options != nullptr, "a group has MuonOptions or torch::optim::AdamWOptions");
    check(*options);
    for (const auto& parameter : group.params())
      demand(parameter.dim() >= 2, "biases and other vectors belong in a group with torch::optim::AdamWOptions");
  }
  std::vector<to::OptimizerParamGroup> others;
  for (const std::size_t g : other_groups(param_groups()))
    others.emplace_back(param_groups()[g].params(), param_groups()[g].options().clone());
  if (!others.empty()) others_ = std::make_unique<to::AdamW>(std::move(others));
}

torch::Tensor Muon::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  torch::NoGradGuard no_grad;
  for (auto& group : param_groups())
    if (const auto* options = dynamic_cast<MuonOptions*>(&group.options()))
      for (auto& parameter : group.params())
        if (parameter.grad().defined()) step_matrix(parameter, *options);
  if (others_) step_others();
  return loss;
}

void Muon::step_matrix(torch::Tensor& parameter, const MuonOptions& options) {
  auto& kept = state()[parameter.unsafeGetTensorImpl()];
  if (!kept) kept = std::make_unique<to::SGDParamState>();
  auto& average = static_cast<to::SGDParamState&>(*kept).momentum_buffer();
  if (!average.defined()) average = torch::zeros_like(parameter, parameter.options().requires_grad(false));
  const torch::Tensor& gradient = parameter.grad();
  average.lerp_(gradient, 1 - options.momentum());
  const torch::Tensor update = options.nesterov() ? gradient.lerp(average, options.momentum()) : average;
  const torch::Tensor matrix = update.flatten(1);
  const double shape = static_cast<double>(matrix.size(0)) / static_cast<double>(matrix.size(1));
  parameter.mul_(1 - options.lr() * options.weight_decay());
  parameter.add_(orthogonalised(matrix, options.ns_steps(), options.eps()).view_as(parameter),
                 -options.lr() * std::sqrt(std::max(1.0, shape)));
}

/// By LibTorch's AdamW, which sees our options and statistics while it steps.
void Muon::step_others() {
  const auto groups = other_groups(param_groups());
  for (std::size_t i = 0; i < groups.size(); ++i)
    others_->param_groups()[i].set_options(param_groups()[groups[i]].options().clone());
  std::swap(state(), others_->state());
  others_->step();
  std::swap(state(), others_->state());
}

// ---- Archives

void MuonOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(ns_steps);
}

void MuonOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, ns_steps);
}

void Muon::save(torch::serialize::OutputArchive& archive) const {
  std::size_t number = 0;
  archive.write("groups", c10::IValue(static_cast<std::int64_t>(param_groups().size())));
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    torch::serialize::OutputArchive options(archive.compilation_unit());
    param_groups()[g].options().serialize(options);
    archive.write(key("options", g), options);
    for (const auto& parameter : param_groups()[g].params()) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      if (found != state().end()) {
        torch::serialize::OutputArchive kept(archive.compilation_unit());
        found->second->serialize(kept);
        archive.write(key("state", number), kept);
      }
      ++number;
    }
    archive.write(key("parameters", g), c10::IValue(static_cast<std::int64_t>(number)));
  }
}

void Muon::load(torch::serialize::InputArchive& archive) {
  const auto number_at = [&](const std::string& name) {
    c10::IValue value;
    archive.read(name, value);
    return value.toInt();
  };
  TORCH_CHECK(number_at("groups") == static_cast<std::int64_t>(param_groups().size()), "other groups of parameters");
  std::size_t number = 0;
  std::remove_cvref_t<decltype(state())> states;
  std::vector<std::unique_ptr<to::OptimizerOptions>> read;
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    auto& group = param_groups()[g];
    torch::serialize::InputArchive options;
    archive.read(key("options", g), options);
    read.push_back(group.options().clone());
    read.back()->serialize(options);
    for (const auto& parameter : group.params()) {
      torch::serialize::InputArchive kept;
      if (!archive.try_read(key("state", number++), kept)) continue;
      std::unique_ptr<to::OptimizerParamState> made = std::make_unique<to::SGDParamState>();
      if (dynamic_cast<to::AdamWOptions*>(&group.options())) made = std::make_unique<to::AdamWParamState>();
      made->serialize(kept);
      states[parameter.unsafeGetTensorImpl()] = std::move(made);
    }
    TORCH_CHECK(number_at(key("parameters", g)) == static_cast<std::int64_t>(number), "another number of parameters");
  }
  state() = std::move(states);
  for (std::size_t g = 0; g < read.size(); ++g) param_groups()[g].set_options(std::move(read[g]));
}

}  // namespace cohive
