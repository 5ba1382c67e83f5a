#include "known_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "cohive/optim/step.hpp"
#include "cohive/torch/lamb.hpp"
#include "cohive/torch/muon.hpp"
#include "train/detail/usable_statistics.hpp"

namespace cohive::libtorch {
namespace {

namespace to = torch::optim;

/// Of all statistics, sorted; "step" is no tensor.
constexpr const char* kStatistics[] = {"exp_avg",         "exp_avg_sq", "grad_avg", "max_exp_avg_sq",
                                       "momentum_buffer", "square_avg", "step",     "sum"};

template <class Options>
optim::Options moments(const Options& o) {
  const auto [beta1, beta2] = o.betas();
  if constexpr (std::is_same_v<Options, to::AdamOptions>)
    return optim::AdamOptions{o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.amsgrad()};
  else if constexpr (std::is_same_v<Options, to::AdamWOptions>)
    return optim::AdamWOptions{o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.amsgrad()};
  else
    return optim::LambOptions{o.lr(), beta1, beta2, o.eps(), o.weight_decay(), o.bias_correction()};
}

/// Nothing for a class that is unknown. Muon steps by itself; of a matrix it keeps what SGD with momentum keeps.
std::optional<optim::Options> translate(to::OptimizerOptions& options) {
  if (auto* o = dynamic_cast<to::SGDOptions*>(&options))
    return optim::SgdOptions{o->lr(), o->momentum(), o->dampening(), o->weight_decay(), o->nesterov()};
  if (auto* o = dynamic_cast<to::AdamWOptions*>(&options)) return moments(*o);
  if (auto* o = dynamic_cast<to::AdamOptions*>(&options)) return moments(*o);
  if (auto* o = dynamic_cast<to::RMSpropOptions*>(&options))
    return optim::RmspropOptions{o->lr(), o->alpha(), o->eps(), o->weight_decay(), o->momentum(), o->centered()};
  if (auto* o = dynamic_cast<to::AdagradOptions*>(&options))
    return optim::AdagradOptions{o->lr(), o->lr_decay(), o->weight_decay(), o->initial_accumulator_value(), o->eps()};
  if (auto* o = dynamic_cast<LambOptions*>(&options)) return moments(*o);
  if (auto* o = dynamic_cast<MuonOptions*>(&options))
    return optim::SgdOptions{o->lr(), o->momentum(), 0, o->weight_decay(), o->nesterov()};
  return std::nullopt;
}

/// Calls `f(state, step)` with the state of its own type and the place of its step count, null for SGD.
template <class F>
bool with_state(to::OptimizerParamState* state, F f) {
  if (auto* s = dynamic_cast<to::SGDParamState*>(state)) return f(*s, nullptr), true;
  if (auto* s = dynamic_cast<to::AdamWParamState*>(state)) return f(*s, &s->step()), true;
  if (auto* s = dynamic_cast<to::AdamParamState*>(state)) return f(*s, &s->step()), true;
  if (auto* s = dynamic_cast<to::RMSpropParamState*>(state)) return f(*s, &s->step()), true;
  if (auto* s = dynamic_cast<to::AdagradParamState*>(state)) return f(*s, &s->step()), true;
  if (auto* s = dynamic_cast<LambParamState*>(state)) return f(*s, &s->step()), true;
  return false;
}

/// The tensor that a state keeps under a name; null when it has none of that name.
torch::Tensor* field(to::OptimizerParamState* state, std::string_view name) {
  torch::Tensor* found = nullptr;
  with_state(state, [&](auto& s, const std::int64_t*) {
    using State = std::decay_t<decltype(s)>;
    if constexpr (std::is_same_v<State, to::SGDParamState>) {
      if (name == "momentum_buffer") found = &s.momentum_buffer();
    } else if constexpr (std::is_same_v<State, to::AdagradParamState>) {
      if (name == "sum") found = &s.sum();
    } else if constexpr (std::is_same_v<State, to::RMSpropParamState>) {
      if (name == "square_avg") found = &s.square_avg();
      if (name == "momentum_buffer") found = &s.momentum_buffer();
      if (name == "grad_avg") found = &s.grad_avg();
    } else {
      if (name == "exp_avg") found = &s.exp_avg();
      if (name == "exp_avg_sq") found = &s.exp_avg_sq();
      if constexpr (!std::is_same_v<State, LambParamState>)
        if (name == "max_exp_avg_sq") found = &s.max_exp_avg_sq();
    }
  });
  return found;
}

std::unique_ptr<to::OptimizerParamState> empty_state(const optim::Options& options) {
  struct Make {
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::SgdOptions&) {
      return std::make_unique<to::SGDParamState>();
    }
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::AdamOptions&) {
      return std::make_unique<to::AdamParamState>();
    }
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::AdamWOptions&) {
      return std::make_unique<to::AdamWParamState>();
    }
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::RmspropOptions&) {
      return std::make_unique<to::RMSpropParamState>();
    }
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::AdagradOptions&) {
      return std::make_unique<to::AdagradParamState>();
    }
    std::unique_ptr<to::OptimizerParamState> operator()(const optim::LambOptions&) {
      return std::make_unique<LambParamState>();
    }
  };
  return std::visit(Make(), options);
}

bool counts_steps(const optim::Options& options) {
  return !std::holds_alternative<optim::SgdOptions>(options);
}

to::OptimizerParamState* state_of(to::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

/// With all its tensors.
to::OptimizerParamState& made_state(to::Optimizer& optimizer, const torch::Tensor& parameter,
                                    const optim::Options& options) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = empty_state(options);
  for (const auto& wanted : optim::state_fields(options)) {
    torch::Tensor& tensor = *field(state.get(), wanted.name);
    if (!tensor.defined())
      tensor = torch::full_like(parameter, wanted.initial, parameter.options().requires_grad(false));
  }
  return *state;
}

}  // namespace

std::vector<torch::Tensor> parameters_of(const std::vector<to::OptimizerParamGroup>& groups) {
  std::vector<torch::Tensor> result;
  for (const auto& group : groups) result.insert(result.end(), group.params().begin(), group.params().end());
  return result;
}
std::vector<torch::Tensor> parameters_of(to::Optimizer& optimizer) {
  return parameters_of(optimizer.param_groups());
}

std::optional<KnownOptimizer> KnownOptimizer::of(to::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type != typeid(to::SGD) && type != typeid(to::Adam) && type != typeid(to::AdamW) && type != typeid(to::RMSprop) &&
      type != typeid(to::Adagrad) && type != typeid(Lamb))
    return std::nullopt;
  return KnownOptimizer(optimizer);
}

KnownOptimizer::KnownOptimizer(to::Optimizer& optimizer)
    : optimizer_(&optimizer), parameters_(parameters_of(optimizer)) {
  const auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups_.insert(groups_.end(), groups[i].params().size(), i);
  look_at_state();
}

/// Momentum begins with the first step, and what others sent of a parameter that has taken none is zeros.
void KnownOptimizer::look_at_state() {
  stepped_.clear();
  for (const auto& parameter : parameters_) {
    auto* const sgd = dynamic_cast<to::SGDParamState*>(state_of(*optimizer_, parameter));
    stepped_.push_back(sgd && sgd->momentum_buffer().defined() && sgd->momentum_buffer().any().item<bool>());
  }
}

optim::Options KnownOptimizer::options(std::size_t parameter) const {
  return *translate(optimizer_->param_groups()[groups_[parameter]].options());
}

std::array<optim::View, optim::kMostStateFields> KnownOptimizer::statistics(std::size_t parameter) {
  const auto how = options(parameter);
  auto& state = made_state(*optimizer_, parameters_[parameter], how);
  std::array<optim::View, optim::kMostStateFields> views;
  std::size_t count = 0;
  for (const auto& wanted : optim::state_fields(how)) {
    torch::Tensor& tensor = *field(&state, wanted.name);
    if (!tensor.is_contiguous()) tensor = tensor.contiguous();
    views[count++] = std::span<float>(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
  }
  return views;
}

std::int64_t KnownOptimizer::steps_taken(std::size_t parameter) {
  std::int64_t steps = stepped_[parameter] ? 1 : 0;
  with_state(state_of(*optimizer_, parameters_[parameter]), [&](auto&, const std::int64_t* counted) {
    if (counted) steps = *counted;
  });
  return steps;
}

void KnownOptimizer::count_step(std::size_t parameter) {
  stepped_[parameter] = true;
  with_state(state_of(*optimizer_, parameters_[parameter]), [](auto& state, const std::int64_t* counted) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(state)>, to::SGDParamState>) state.step(*counted + 1);
  });
}

NamedStatistics statistics_of(to::Optimizer& optimizer, const torch::Tensor& parameter) {
  NamedStatistics result;
  auto* state = state_of(optimizer, parameter);
  if (!state) return result;
  for (const char* name : kStatistics) {
    if (std::string_view(name) == "step") {
      with_state(state, [&](auto&, const std::int64_t* steps) {
        if (steps) result.emplace_back(name, torch::tensor(static_cast<float>(*steps)));
      });
    } else if (const auto* tensor = field(state, name); tensor && tensor->defined()) {
      result.emplace_back(name, *tensor);
    }
  }
  return result;
}

std::vector<std::string> statistics_kept(to::OptimizerOptions& options) {
  const auto known = translate(options);
  if (!known) return {};
  std::vector<std::string> names;
  for (const auto& wanted : optim::state_fields(*known)) names.emplace_back(wanted.name);
  if (counts_steps(*known)) names.emplace_back("step");
  std::sort(names.begin(), names.end());
  return names;
}

torch::Tensor made_statistic(to::Optimizer& optimizer, to::OptimizerOptions& options, const torch::Tensor& parameter,
                             const std::string& name) {
  auto& state = made_state(optimizer, parameter, *translate(options));
  if (name != "step") return *field(&state, name);
  torch::Tensor steps;
  with_state(&state, [&](auto&, const std::int64_t* counted) { steps = torch::tensor(static_cast<float>(*counted)); });
  return steps;
}

torch::Tensor initial_statistic(to::OptimizerOptions& options, const torch::Tensor& parameter,
                                const std::string& name) {
  if (name == "step") return torch::tensor(0.0f);
  const auto fields = optim::state_fields(*translate(options));
  const auto field = std::ranges::find(fields, name, &optim::StateField::name);
  return torch::full({}, field->initial, parameter.options().requires_grad(false)).expand(parameter.sizes());
}

void move_statistics_to_parameters(to::Optimizer& optimizer) {
  for (const auto& parameter : parameters_of(optimizer))
    for (const char* name : kStatistics)
      if (auto* tensor = field(state_of(optimizer, parameter), name); tensor && tensor->defined())
        *tensor = tensor->to(parameter.device());
}

void set_steps(to::Optimizer& optimizer, const torch::Tensor& parameter, double steps) {
  with_state(state_of(optimizer, parameter), [&](auto& state, const std::int64_t*) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(state)>, to::SGDParamState>)
      state.step(std::llround(std::clamp(steps, 0.0, optim::kMostSteps)));
  });
}

void make_usable(const NamedStatistics& statistics) {
  torch::NoGradGuard no_grad;
  const auto named = [&](std::string_view name) {
    const auto found = std::ranges::find(statistics, name, &NamedStatistics::value_type::first);
    return found == statistics.end() ? torch::Tensor() : found->second;
  };
  for (const auto& [name, values] : statistics)
    if (train::is_of_squares(name)) values.clamp_(0);
  for (const auto& moments : train::kMoments) {
    const auto mean = named(moments.mean), squares = named(moments.squares);
    if (!mean.defined() || !squares.defined()) continue;
    const auto wide = at::promote_types(mean.scalar_type(), torch::kFloat32);
    mean.masked_fill_(mean.to(wide).square() > squares.to(wide) * moments.most, 0);
  }
}

void set_statistics(to::Optimizer& optimizer, to::OptimizerOptions& options, const torch::Tensor& parameter,
                    const NamedStatistics& statistics) {
  auto state = empty_state(*translate(options));
  for (const auto& [name, value] : statistics) {
    if (name != "step") {
      *field(state.get(), name) = value;
      continue;
    }
    with_state(state.get(), [&](auto& s, const std::int64_t*) {
      if constexpr (!std::is_same_v<std::decay_t<decltype(s)>, to::SGDParamState>)
        s.step(static_cast<std::int64_t>(std::llround(value.template item<double>())));
    });
  }
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

}  // namespace cohive::libtorch
