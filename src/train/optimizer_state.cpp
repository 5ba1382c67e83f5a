#include "optimizer_state.hpp"

#include <cmath>

#include "cohive/averaging/errors.hpp"

namespace cohive::train {
namespace {

using averaging::Errc;
using msgpack::Value;

constexpr std::pair<codec::DType, torch::ScalarType> kTypes[] = {{codec::DType::float32, torch::kFloat32},
                                                                 {codec::DType::float64, torch::kFloat64},
                                                                 {codec::DType::float16, torch::kFloat16},
                                                                 {codec::DType::bfloat16, torch::kBFloat16}};

torch::ScalarType torch_type(codec::DType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == type) return theirs;
  throw std::invalid_argument("not a type of floating-point tensors");
}

/// A copy on the host in the tensor's own type.
codec::Tensor to_wire(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kCPU).contiguous();
  codec::Tensor result;
  result.dtype = *dtype_of(flat);
  for (auto size : tensor.sizes()) result.shape.push_back(static_cast<std::uint32_t>(size));
  result.requires_grad = tensor.requires_grad();
  result.data =
      Slice::copy_of({static_cast<const std::uint8_t*>(flat.data_ptr()), static_cast<std::size_t>(flat.nbytes())});
  return result;
}

bool has_shape_of(const codec::Tensor& wire, at::IntArrayRef sizes) {
  if (!codec::is_floating(wire.dtype) || wire.shape.size() != sizes.size()) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (wire.shape[i] != static_cast<std::uint64_t>(sizes[i])) return false;
  return true;
}

/// On the host, in the type it came in; nothing when a value is not finite: it would spoil the model. Memory that
/// nobody else shares is used as it is.
std::optional<torch::Tensor> from_wire(const codec::Tensor& wire) {
  std::vector<std::int64_t> sizes(wire.shape.begin(), wire.shape.end());
  if (wire.data.size() != *codec::element_count(wire.shape) * codec::size_of(wire.dtype)) return std::nullopt;
  const auto options = torch::TensorOptions(torch_type(wire.dtype));
  if (wire.data.empty()) return torch::empty(sizes, options);
  Slice memory = wire.data.unique() ? wire.data : Slice::copy_of(wire.data);
  void* data = memory.mutable_data();
  torch::Tensor result = torch::from_blob(data, sizes, [memory](void*) mutable { memory = {}; }, options);
  if (!all_finite(result)) return std::nullopt;
  return result;
}

Value leaf(Value value) {
  return msgpack::Map{{{"type", "value"}, {"value", std::move(value)}}};
}
Value leaf_tensor(std::size_t index) {
  return msgpack::Map{{{"type", "tensor"}, {"index", static_cast<std::uint64_t>(index)}}};
}

/// Group options as torch's Python side flattens them: keys sorted, tuples in order, parameters as their numbers.
template <class Options>
void describe_adam(const Options& o, std::size_t first, std::size_t count, bool decoupled, std::vector<Value>& out) {
  out.push_back(leaf(o.amsgrad()));
  out.push_back(leaf(std::get<0>(o.betas())));
  out.push_back(leaf(std::get<1>(o.betas())));
  out.push_back(leaf(false));      // capturable
  out.push_back(leaf(decoupled));  // decoupled_weight_decay
  out.push_back(leaf(false));      // differentiable
  out.push_back(leaf(o.eps()));
  out.push_back(leaf(Value()));  // foreach
  out.push_back(leaf(Value()));  // fused
  out.push_back(leaf(o.lr()));
  out.push_back(leaf(false));  // maximize
  for (std::size_t i = 0; i < count; ++i) out.push_back(leaf(static_cast<std::uint64_t>(first + i)));
  out.push_back(leaf(o.weight_decay()));
}

void describe_sgd(const torch::optim::SGDOptions& o, std::size_t first, std::size_t count, std::vector<Value>& out) {
  out.push_back(leaf(o.dampening()));
  out.push_back(leaf(false));
  out.push_back(leaf(Value()));
  out.push_back(leaf(Value()));
  out.push_back(leaf(o.lr()));
  out.push_back(leaf(false));
  out.push_back(leaf(o.momentum()));
  out.push_back(leaf(o.nesterov()));
  for (std::size_t i = 0; i < count; ++i) out.push_back(leaf(static_cast<std::uint64_t>(first + i)));
  out.push_back(leaf(o.weight_decay()));
}

/// What an optimizer keeps of one parameter, by the options of its group. Sorted by name: exp_avg, exp_avg_sq,
/// max_exp_avg_sq with amsgrad, step; or momentum_buffer. Nothing for kinds that we do not know.
struct Kept {
  enum class Kind { nothing, momentum, adam, adamw } kind = Kind::nothing;
  bool amsgrad = false;
  std::size_t count() const {
    if (kind == Kind::nothing || kind == Kind::momentum) return kind == Kind::momentum ? 1 : 0;
    return amsgrad ? 4 : 3;
  }
  bool is_step(std::size_t number) const { return kind != Kind::momentum && number + 1 == count(); }
};

Kept kept_by(torch::optim::OptimizerOptions& options) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return {Kept::Kind::adamw, adamw->amsgrad()};
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return {Kept::Kind::adam, adam->amsgrad()};
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options); sgd && sgd->momentum() != 0)
    return {Kept::Kind::momentum};
  return {};
}

template <class State>
std::vector<torch::Tensor> adam_statistics(State& s) {
  std::vector<torch::Tensor> statistics{s.exp_avg(), s.exp_avg_sq()};
  if (s.max_exp_avg_sq().defined()) statistics.push_back(s.max_exp_avg_sq());
  statistics.push_back(torch::tensor(static_cast<float>(s.step())));
  return statistics;
}

std::vector<torch::Tensor> statistics_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  auto* state = found->second.get();
  if (auto* s = dynamic_cast<torch::optim::AdamWParamState*>(state)) return adam_statistics(*s);
  if (auto* s = dynamic_cast<torch::optim::AdamParamState*>(state)) return adam_statistics(*s);
  if (auto* s = dynamic_cast<torch::optim::SGDParamState*>(state); s && s->momentum_buffer().defined())
    return {s->momentum_buffer()};
  return {};
}

/// Lossy codecs may have made the number a little larger or smaller.
double steps_in(const torch::Tensor& value) {
  return std::round(value.item<double>());
}
bool counts_steps(const torch::Tensor& value) {
  constexpr double kMost = 1e15;  // that a double tells apart
  return steps_in(value) >= 0 && steps_in(value) <= kMost;
}

template <class State>
std::unique_ptr<torch::optim::OptimizerParamState> make_adam(const std::vector<torch::Tensor>& t, bool amsgrad) {
  auto state = std::make_unique<State>();
  state->exp_avg(t[0]);
  state->exp_avg_sq(t[1]);
  if (amsgrad) state->max_exp_avg_sq(t[2]);
  state->step(static_cast<std::int64_t>(steps_in(t.back())));
  return state;
}

std::unique_ptr<torch::optim::OptimizerParamState> make_state(Kept kept, const std::vector<torch::Tensor>& statistics) {
  if (kept.kind == Kept::Kind::adamw) return make_adam<torch::optim::AdamWParamState>(statistics, kept.amsgrad);
  if (kept.kind == Kept::Kind::adam) return make_adam<torch::optim::AdamParamState>(statistics, kept.amsgrad);
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(statistics[0]);
  return state;
}

/// A downloaded tensor that is to replace one of ours.
struct Place {
  std::size_t parameter;
  bool statistic = false, step = false;
};

}  // namespace

bool all_finite(const torch::Tensor& tensor) {
  constexpr std::int64_t kStep = 1 << 20;  // torch::isfinite makes temporary tensors of the size of its argument
  const torch::Tensor flat = tensor.view(-1);
  for (std::int64_t at = 0; at < flat.numel(); at += kStep)
    if (!torch::isfinite(flat.narrow(0, at, std::min(kStep, flat.numel() - at))).all().item<bool>()) return false;
  return true;
}

std::optional<codec::DType> dtype_of(const torch::Tensor& tensor) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == tensor.scalar_type()) return ours;
  return std::nullopt;
}

std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> result;
  for (auto& group : optimizer.param_groups())
    result.insert(result.end(), group.params().begin(), group.params().end());
  return result;
}

StateDescription describe_state(torch::optim::Optimizer& optimizer, std::uint64_t epoch,
                                const std::string& group_bits) {
  StateDescription state;
  std::vector<Value> layout;
  std::size_t first = 0;
  for (auto& group : optimizer.param_groups()) {
    const std::size_t count = group.params().size();
    if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&group.options()))
      describe_adam(*adamw, first, count, true, layout);
    if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&group.options()))
      describe_adam(*adam, first, count, false, layout);
    if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&group.options())) describe_sgd(*sgd, first, count, layout);
    first += count;
  }
  const auto parameters = parameters_of(optimizer);
  for (const auto& parameter : parameters) state.tensors.push_back(parameter);
  std::size_t index = 0;
  for (const auto& parameter : parameters)
    for (const auto& statistic : statistics_of(optimizer, parameter)) {
      layout.push_back(leaf_tensor(index++));
      state.tensors.push_back(statistic);
    }
  state.metadata = msgpack::Map{
      {{"epoch", epoch}, {"group_bits", group_bits}, {"optimizer_metadata", msgpack::Array{std::move(layout)}}}};
  return state;
}

averaging::SharedState copy_of(const StateDescription& description) {
  averaging::SharedState state;
  state.metadata = description.metadata;
  for (const auto& tensor : description.tensors) state.tensors.push_back(to_wire(tensor));
  return state;
}

Result<std::uint64_t> unpack_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                   std::uint64_t least_epoch) {
  const auto* metadata = state.metadata.get_if<msgpack::Map>();
  const auto* epoch_value = metadata ? metadata->find("epoch") : nullptr;
  const auto epoch = epoch_value ? epoch_value->as_uint() : std::nullopt;
  if (!epoch) return Error(Errc::bad_state, state.donor, "no epoch in its metadata");
  if (*epoch < least_epoch)
    return Error(Errc::bad_state, state.donor, "its epoch " + std::to_string(*epoch) + " is older than ours");
  const auto parameters = parameters_of(optimizer);
  if (state.tensors.size() < parameters.size()) return Error(Errc::bad_state, state.donor, "too few tensors");
  // Statistics only when they are exactly what this optimizer keeps: a wrong guess would be worse than a fresh start.
  std::vector<Kept> kept;
  for (auto& group : optimizer.param_groups()) kept.insert(kept.end(), group.params().size(), kept_by(group.options()));
  std::vector<Place> places;
  for (std::size_t i = 0; i < parameters.size(); ++i) places.push_back({i});
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (std::size_t k = 0; k < kept[i].count(); ++k) places.push_back({i, true, kept[i].is_step(k)});
  if (state.tensors.size() != places.size()) places.resize(parameters.size());
  std::vector<torch::Tensor> values;
  for (const Place& place : places) {
    const codec::Tensor& tensor = state.tensors[values.size()];
    const torch::Tensor& parameter = parameters[place.parameter];
    const auto sizes = place.step ? at::IntArrayRef() : parameter.sizes();
    const auto value = has_shape_of(tensor, sizes) ? from_wire(tensor) : std::nullopt;
    if (!value || (place.step && !counts_steps(*value))) {
      const auto what =
          (place.statistic ? "a statistic of parameter " : "parameter ") + std::to_string(place.parameter);
      return Error(Errc::bad_state, state.donor, what + " has another shape or values that are not finite");
    }
    values.push_back(*value);
  }
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) torch::Tensor(parameters[i]).copy_(values[i]);
  for (std::size_t next = parameters.size(); next < values.size();) {
    const std::size_t i = places[next].parameter;
    std::vector<torch::Tensor> statistics;
    for (std::size_t k = 0; k < kept[i].count(); ++k, ++next)
      statistics.push_back(places[next].step ? values[next]
                                             : values[next].to(parameters[i].options().requires_grad(false)));
    optimizer.state()[parameters[i].unsafeGetTensorImpl()] = make_state(kept[i], statistics);
  }
  return *epoch;
}

}  // namespace cohive::train
