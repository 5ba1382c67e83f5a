#include "model_state.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/optim/passes.hpp"
#include "cohive/optim/step.hpp"
#include "cohive/torch/lamb.hpp"
#include "known_optimizer.hpp"

namespace cohive::libtorch {
namespace {

using averaging::Errc;
using msgpack::Value;

constexpr std::pair<codec::DType, torch::ScalarType> kTypes[] = {
    {codec::DType::float32, torch::kFloat32}, {codec::DType::float64, torch::kFloat64},
    {codec::DType::float16, torch::kFloat16}, {codec::DType::bfloat16, torch::kBFloat16},
    {codec::DType::int64, torch::kInt64},     {codec::DType::int32, torch::kInt32},
    {codec::DType::int16, torch::kInt16},     {codec::DType::int8, torch::kInt8},
    {codec::DType::uint8, torch::kUInt8},     {codec::DType::boolean, torch::kBool}};

torch::ScalarType torch_type(codec::DType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == type) return theirs;
  throw std::invalid_argument("not a type of tensors in states");
}

codec::Shape shape_of(const torch::Tensor& tensor) {
  codec::Shape shape;
  for (auto size : tensor.sizes()) shape.push_back(static_cast<std::uint32_t>(size));
  return shape;
}

/// A copy on the host in the tensor's own type.
codec::Tensor to_wire(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kCPU).contiguous();
  return {*wire_type_of(flat), shape_of(tensor), tensor.requires_grad(),
          Slice::copy_of({static_cast<const std::uint8_t*>(flat.data_ptr()), static_cast<std::size_t>(flat.nbytes())})};
}

bool has_shape(const codec::Tensor& wire, at::IntArrayRef sizes) {
  if (wire.shape.size() != sizes.size()) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (wire.shape[i] != static_cast<std::uint64_t>(sizes[i])) return false;
  return true;
}

/// A tensor of floating-point numbers of this shape.
bool has_shape_of(const codec::Tensor& wire, at::IntArrayRef sizes) {
  return codec::is_floating(wire.dtype) && has_shape(wire, sizes);
}

/// A tensor that can replace another one. What one side has as numbers of another kind is something else.
bool can_replace(const codec::Tensor& wire, const torch::Tensor& tensor) {
  const bool known = std::ranges::any_of(kTypes, [&](const auto& type) { return type.first == wire.dtype; });
  return known && codec::is_floating(wire.dtype) == tensor.is_floating_point() && has_shape(wire, tensor.sizes());
}

/// On the host, in the type it came in; nothing when a value is not finite: it would spoil the model. Memory that
/// nothing else shares is used as it is.
std::optional<torch::Tensor> from_wire(const codec::Tensor& wire) {
  std::vector<std::int64_t> sizes(wire.shape.begin(), wire.shape.end());
  const std::size_t count = *codec::element_count(wire.shape);
  if (wire.data.size() != count * codec::size_of(wire.dtype)) return std::nullopt;
  const bool truth = wire.dtype == codec::DType::boolean;  // of which a byte may be anything
  const auto options = torch::TensorOptions(truth ? torch::kUInt8 : torch_type(wire.dtype));
  if (wire.data.empty()) return torch::empty(sizes, options);
  const bool aligned = reinterpret_cast<std::uintptr_t>(wire.data.data()) % alignof(std::max_align_t) == 0;
  Slice memory = wire.data.unique() && aligned ? wire.data : Slice::copy_of(wire.data);
  void* data = memory.mutable_data();
  if (codec::is_floating(wire.dtype) && !optim::all_finite(optim::ConstView(wire.dtype, data, count)))
    return std::nullopt;
  const auto values = torch::from_blob(data, sizes, [memory](void*) mutable { memory = {}; }, options);
  return truth ? values.ne(0) : values;
}

Value leaf(Value value) {
  return msgpack::Map{{{"type", "value"}, {"value", std::move(value)}}};
}
Value leaf_tensor(std::size_t index) {
  return msgpack::Map{{{"type", "tensor"}, {"index", static_cast<std::uint64_t>(index)}}};
}

/// The options of a group as torch's Python side flattens them: keys sorted, tuples in order, and in their midst, under "params", the
/// parameters as their numbers.
class GroupLayout {
 public:
  GroupLayout(std::size_t first, std::size_t count, std::vector<Value>& out) : first_(first), count_(count), out_(out) {}
  void add(std::initializer_list<Value> values) {
    for (const auto& value : values) out_.push_back(leaf(value));
  }
  void add_parameters() {
    for (std::size_t i = 0; i < count_; ++i) out_.push_back(leaf(static_cast<std::uint64_t>(first_ + i)));
  }

 private:
  std::size_t first_, count_;
  std::vector<Value>& out_;
};

template <class Options>
void describe_moments(const Options& o, bool decoupled, GroupLayout& out) {
  const auto [beta1, beta2] = o.betas();
  // amsgrad, betas, capturable, decoupled_weight_decay, differentiable, eps, foreach, fused, lr, maximize
  out.add({o.amsgrad(), beta1, beta2, false, decoupled, false, o.eps(), Value(), Value(), o.lr(), false});
  out.add_parameters();
  out.add({o.weight_decay()});
}

void describe_group(torch::optim::OptimizerOptions& options, GroupLayout& out) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return describe_moments(*adamw, true, out);
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return describe_moments(*adam, false, out);
  if (auto* o = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    // dampening, differentiable, foreach, fused, lr, maximize, momentum, nesterov
    out.add({o->dampening(), false, Value(), Value(), o->lr(), false, o->momentum(), o->nesterov()});
    out.add_parameters();
    out.add({o->weight_decay()});
  } else if (auto* o = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    // alpha, capturable, centered, differentiable, eps, foreach, lr, maximize, momentum
    out.add({o->alpha(), false, o->centered(), false, o->eps(), Value(), o->lr(), false, o->momentum()});
    out.add_parameters();
    out.add({o->weight_decay()});
  } else if (auto* o = dynamic_cast<torch::optim::AdagradOptions*>(&options)) {
    // differentiable, eps, foreach, fused, initial_accumulator_value, lr, lr_decay, maximize
    out.add({false, o->eps(), Value(), Value(), o->initial_accumulator_value(), o->lr(), o->lr_decay(), false});
    out.add_parameters();
    out.add({o->weight_decay()});
  } else if (auto* o = dynamic_cast<LambOptions*>(&options)) {
    const auto [beta1, beta2] = o->betas();
    out.add({beta1, beta2, o->bias_correction(), o->eps(), o->lr()});
    out.add_parameters();
    out.add({o->weight_decay()});
  }
}

/// Lossy codecs may have made the number a little larger or smaller.
bool counts_steps(const torch::Tensor& value) {
  const double steps = std::round(value.item<double>());
  return steps >= 0 && steps <= optim::kMostSteps;
}

/// A downloaded tensor that is to replace one of ours.
struct Place {
  std::size_t parameter;
  std::string statistic = {};  ///< empty: the parameter itself
};

/// How many tensors of its optimizer a donor says that it has sent; nothing where it says nothing.
std::optional<std::size_t> statistics_sent(const msgpack::Map& metadata) {
  const auto* layout = metadata.find("optimizer_metadata");
  const auto* leaves = layout ? layout->get_if<msgpack::Array>() : nullptr;
  if (!leaves || leaves->items.empty()) return std::nullopt;
  return static_cast<std::size_t>(std::ranges::count_if(leaves->items, [](const Value& leaf) {
    const auto* entry = leaf.get_if<msgpack::Map>();
    const auto* type = entry ? entry->find("type") : nullptr;
    const auto* text = type ? type->get_if<std::string>() : nullptr;
    return text && *text == "tensor";
  }));
}

/// \param tensors  but for extra ones
std::vector<Place> places_of(torch::optim::Optimizer& optimizer, std::size_t parameters, std::size_t tensors) {
  std::vector<Place> places, statistics;
  for (std::size_t i = 0; i < parameters; ++i) places.push_back({i});
  std::size_t parameter = 0;
  for (auto& group : optimizer.param_groups())
    for (std::size_t i = 0; i < group.params().size(); ++i, ++parameter)
      for (auto& name : statistics_kept(group.options())) statistics.push_back({parameter, std::move(name)});
  if (places.size() + statistics.size() == tensors)
    places.insert(places.end(), std::make_move_iterator(statistics.begin()), std::make_move_iterator(statistics.end()));
  return places;
}

}  // namespace

std::optional<codec::DType> wire_type_of(const torch::Tensor& tensor) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == tensor.scalar_type()) return ours;
  return std::nullopt;
}

std::optional<codec::DType> dtype_of(const torch::Tensor& tensor) {
  const auto type = wire_type_of(tensor);
  return type && codec::is_floating(*type) ? type : std::nullopt;
}

StateDescription describe_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                std::uint64_t epoch, const std::vector<torch::Tensor>& extras) {
  StateDescription state;
  std::vector<Value> layout;
  std::size_t first = 0;
  for (auto& group : optimizer.param_groups()) {
    GroupLayout out(first, group.params().size(), layout);
    describe_group(group.options(), out);
    first += group.params().size();
  }
  const auto add = [&](const torch::Tensor& tensor, codec::Role role, std::string name) {
    state.names.push_back(std::move(name));
    state.infos.push_back(
        {codec::TensorKey(std::uint64_t{state.tensors.size()}), shape_of(tensor), *wire_type_of(tensor), role});
    state.tensors.push_back(tensor);
  };
  std::size_t number = 0;
  for (const auto& parameter : parameters) add(parameter, codec::Role::parameter, "parameter." + std::to_string(number++));
  number = 0;
  for (const auto& extra : extras) add(extra, codec::Role::unspecified, "extra." + std::to_string(number++));
  number = 0;
  std::size_t index = 0;
  for (const auto& parameter : parameters_of(optimizer)) {
    const std::string of = "optimizer." + std::to_string(number++) + ".";
    for (const auto& [name, statistic] : statistics_of(optimizer, parameter)) {
      layout.push_back(leaf_tensor(index++));
      add(statistic, codec::Role::optimizer, of + name);
    }
  }
  state.metadata = msgpack::Map{
      {{"epoch", epoch}, {"group_bits", ""}, {"optimizer_metadata", msgpack::Array{std::move(layout)}}}};
  return state;
}

averaging::SharedState copy_of(const StateDescription& description) {
  averaging::SharedState state;
  state.metadata = description.metadata;
  state.infos = description.infos;
  state.names = description.names;
  for (const auto& tensor : description.tensors) state.tensors.push_back(to_wire(tensor));
  return state;
}

namespace {

/// The extra tensors that came after the parameters, to replace ours.
Result<std::vector<torch::Tensor>> check_extras(const averaging::DownloadedState& state, std::size_t parameters,
                                                const std::vector<torch::Tensor>& ours) {
  const auto bad = [&](const std::string& what) { return Error(Errc::bad_state, state.donor, what); };
  if (state.tensors.size() < parameters + ours.size()) return bad("too few tensors");
  const auto sent = statistics_sent(*state.metadata.get_if<msgpack::Map>());
  if (sent && state.tensors.size() != parameters + ours.size() + *sent)
    return bad("it has another number of extra tensors than our " + std::to_string(ours.size()));
  std::vector<torch::Tensor> extras;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto& wire = state.tensors[parameters + i];
    const auto value = can_replace(wire, ours[i]) ? from_wire(wire) : std::nullopt;
    if (!value)
      return bad("extra tensor " + std::to_string(i) +
                 " has another shape, another kind of numbers or values that are not finite");
    extras.push_back(*value);
  }
  return extras;
}

}  // namespace

Result<CheckedState> check_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                 std::uint64_t least_epoch, const std::vector<torch::Tensor>& extras) {
  const auto* metadata = state.metadata.get_if<msgpack::Map>();
  const auto* epoch_value = metadata ? metadata->find("epoch") : nullptr;
  const auto epoch = epoch_value ? epoch_value->as_uint() : std::nullopt;
  if (!epoch) return Error(Errc::bad_state, state.donor, "no epoch in its metadata");
  if (*epoch < least_epoch)
    return Error(Errc::bad_state, state.donor, "its epoch " + std::to_string(*epoch) + " is older than ours");
  const auto parameters = parameters_of(optimizer);
  auto checked_extras = check_extras(state, parameters.size(), extras);
  if (!checked_extras) return checked_extras.error();
  CheckedState checked;
  checked.epoch = *epoch;
  checked.extras = std::move(*checked_extras);
  const std::size_t others = state.tensors.size() - extras.size();
  const auto places = places_of(optimizer, parameters.size(), others);
  if (places.size() == others) checked.statistics.resize(parameters.size());
  for (std::size_t at = 0; at < places.size(); ++at) {
    const Place& place = places[at];
    const auto& tensor = state.tensors[at < parameters.size() ? at : at + extras.size()];
    const bool step = place.statistic == "step";
    const auto sizes = step ? at::IntArrayRef() : parameters[place.parameter].sizes();
    const auto value = has_shape_of(tensor, sizes) ? from_wire(tensor) : std::nullopt;
    if (!value || (step && !counts_steps(*value))) {
      const auto what = (place.statistic.empty() ? "parameter " : place.statistic + " of parameter ") +
                        std::to_string(place.parameter);
      return Error(Errc::bad_state, state.donor, what + " has another shape or values that are not finite");
    }
    if (place.statistic.empty())
      checked.parameters.push_back(*value);
    else
      checked.statistics[place.parameter].emplace_back(place.statistic, *value);
  }
  return checked;
}

void load_statistics(torch::optim::Optimizer& optimizer, const CheckedState& state) {
  if (state.statistics.empty()) return;
  std::size_t parameter = 0;
  for (auto& group : optimizer.param_groups())
    for (const auto& of : group.params()) {
      auto statistics = state.statistics[parameter++];
      if (statistics.empty()) continue;
      for (auto& [name, value] : statistics)
        if (name != "step") value = value.to(of.options().requires_grad(false));
      set_statistics(optimizer, group.options(), of, statistics);
    }
}

Result<std::uint64_t> load_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                 const averaging::DownloadedState& state, std::uint64_t least_epoch,
                                 const std::vector<torch::Tensor>& extras) {
  torch::NoGradGuard no_grad;
  const auto checked = check_state(optimizer, state, least_epoch, extras);
  if (!checked) return checked.error();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(checked->parameters[i]);
  for (std::size_t i = 0; i < extras.size(); ++i) extras[i].copy_(checked->extras[i]);
  load_statistics(optimizer, *checked);
  return checked->epoch;
}

std::optional<averaging::SharedState> copy_unless_changed(const std::vector<torch::Tensor>& parameters,
                                                          const std::function<StateDescription()>& describe) {
  constexpr int kAttempts = 3;
  torch::NoGradGuard no_grad;
  const auto versions = [&] {
    std::uint64_t sum = 0;
    for (const auto& parameter : parameters) sum += parameter.is_inference() ? 0 : parameter._version();
    return sum;
  };
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::uint64_t before = versions();
    auto copy = copy_of(describe());
    if (versions() == before) return copy;
  }
  return std::nullopt;
}

}  // namespace cohive::libtorch
