#include "model_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/optim/passes.hpp"
#include "cohive/optim/step.hpp"
#include "known_optimizer.hpp"
#include "refuse.hpp"
#include "train/detail/loaded_state.hpp"
#include "versions.hpp"

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

Value leaf_tensor(std::size_t index) {
  return msgpack::Map{{{"type", "tensor"}, {"index", static_cast<std::uint64_t>(index)}}};
}

/// Lossy codecs may have made the number a little larger or smaller.
bool counts_steps(const torch::Tensor& value) {
  const double steps = std::round(value.item<double>());
  return steps >= 0 && steps <= optim::kMostSteps;
}

/// A downloaded statistic that is to replace one of ours.
struct Place {
  std::size_t parameter;
  std::string statistic;
};

/// What a donor says of its optimizer; null where it says nothing.
const msgpack::Array* leaves_of(const averaging::DownloadedState& state) {
  const auto* metadata = state.metadata.get_if<msgpack::Map>();
  const auto* layout = metadata ? metadata->find("optimizer_metadata") : nullptr;
  const auto* leaves = layout ? layout->get_if<msgpack::Array>() : nullptr;
  return leaves && !leaves->items.empty() ? leaves : nullptr;
}

/// How many tensors of its optimizer a donor says that it has sent; nothing where it says nothing.
std::optional<std::size_t> statistics_sent(const averaging::DownloadedState& state) {
  const auto* leaves = leaves_of(state);
  if (!leaves) return std::nullopt;
  return static_cast<std::size_t>(std::ranges::count_if(leaves->items, [](const Value& leaf) {
    const auto* entry = leaf.get_if<msgpack::Map>();
    const auto* type = entry ? entry->find("type") : nullptr;
    const auto* text = type ? type->get_if<std::string>() : nullptr;
    return text && *text == "tensor";
  }));
}

/// All statistics that the optimizer keeps, once every parameter has been stepped.
std::vector<Place> statistics_of_all(torch::optim::Optimizer& optimizer) {
  std::vector<Place> statistics;
  std::size_t parameter = 0;
  for (auto& group : optimizer.param_groups()) {
    const auto names = statistics_kept(group.options());
    for (std::size_t i = 0; i < group.params().size(); ++i, ++parameter)
      for (const auto& name : names) statistics.push_back({parameter, name});
  }
  return statistics;
}

/// Returns the name of a statistic in checkpoints.
std::string name_of(std::size_t parameter, const std::string& statistic) {
  return "optimizer." + std::to_string(parameter) + "." + statistic;
}

/// Says in words how the names of a file's statistics differ from those of ours; empty: they do not.
std::string difference_of_names(const msgpack::Array& theirs, const std::vector<Place>& places) {
  std::vector<Value> ours;
  for (const auto& [parameter, statistic] : places) ours.emplace_back(name_of(parameter, statistic));
  const auto [their, our] = std::ranges::mismatch(theirs.items, ours);
  if (their == theirs.items.end() && our == ours.end()) return "";
  const auto* name = their == theirs.items.end() ? nullptr : their->get_if<std::string>();
  return name ? "it has " + log::quoted(*name) : "it lacks some";
}

/// Those of a parameter, with what they are before the first step where there are none yet. Of hivemind's optimizers
/// all are there from the beginning, and a state that lacks some is refused.
NamedStatistics all_statistics_of(torch::optim::Optimizer& optimizer, torch::optim::OptimizerOptions& options,
                                  const torch::Tensor& parameter) {
  NamedStatistics all, existing = statistics_of(optimizer, parameter);
  for (auto& name : statistics_kept(options)) {
    const auto found = std::ranges::find(existing, name, &NamedStatistics::value_type::first);
    torch::Tensor value = found == existing.end() ? initial_statistic(options, parameter, name) : found->second;
    all.emplace_back(std::move(name), std::move(value));
  }
  return all;
}

std::string size_text(const codec::Shape& shape) {
  std::string text;
  for (const auto size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text.empty() ? "1" : text;
}

/// Why a tensor cannot replace one of ours.
std::string misfit(const codec::Tensor& theirs, const torch::Tensor& ours) {
  const codec::Shape here = shape_of(ours);
  if (theirs.shape != here)
    return " has another shape (" + size_text(theirs.shape) + " there, " + size_text(here) + " here)";
  return " has another kind of numbers (" + std::string(codec::name_of(theirs.dtype)) +
         ") or values that are not finite";
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

codec::Shape shape_of(const torch::Tensor& tensor) {
  codec::Shape shape;
  for (const auto size : tensor.sizes()) {
    demand(size <= std::numeric_limits<std::uint32_t>::max(),
           "a tensor has a dimension of " + std::to_string(size) + ": states have none beyond 2^32 - 1");
    shape.push_back(static_cast<std::uint32_t>(size));
  }
  return shape;
}

StateDescription describe_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                std::uint64_t epoch, const std::vector<torch::Tensor>& extras,
                                const OptimizerLayout& layout) {
  StateDescription state;
  const auto add = [&](const torch::Tensor& tensor, codec::Role role, std::string name) {
    state.names.push_back(std::move(name));
    state.infos.push_back(
        {codec::TensorKey(std::uint64_t{state.tensors.size()}), shape_of(tensor), *wire_type_of(tensor), role});
    state.tensors.push_back(tensor);
  };
  std::size_t number = 0;
  for (const auto& parameter : parameters)
    add(parameter, codec::Role::parameter, "parameter." + std::to_string(number++));
  number = 0;
  for (const auto& extra : extras) add(extra, codec::Role::unspecified, "extra." + std::to_string(number++));
  number = 0;
  std::vector<Value> statistics;
  for (auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      for (const auto& [name, statistic] : all_statistics_of(optimizer, group.options(), parameter)) {
        statistics.push_back(leaf_tensor(statistics.size()));
        add(statistic, codec::Role::optimizer, name_of(number, name));
      }
      ++number;
    }
  const auto metadata = [&](std::vector<Value> leaves) {
    leaves.insert(leaves.end(), statistics.begin(), statistics.end());
    return Value(msgpack::Map{
        {{"epoch", epoch}, {"group_bits", ""}, {"optimizer_metadata", msgpack::Array{std::move(leaves)}}}});
  };
  state.metadata = metadata(layout.leaves(optimizer));
  if (auto leaves = layout.leaves_with_schedule(optimizer))
    state.if_refused = {metadata(std::move(*leaves)), "a trainer with a scheduler"};
  return state;
}

namespace {

averaging::SharedState without_tensors(const StateDescription& description) {
  averaging::SharedState state;
  state.metadata = description.metadata;
  state.if_refused = description.if_refused;
  state.infos = description.infos;
  state.names = description.names;
  return state;
}

/// A statistic before the first step is one number for all values, and has no memory of its own.
bool repeats_one_value(const torch::Tensor& tensor) {
  return tensor.numel() > 1 && std::ranges::all_of(tensor.strides(), [](auto stride) { return stride == 0; });
}

/// Where a tensor is, or a copy of it: forward passes change extra tensors when they like.
averaging::LiveTensors::Source source_of(const torch::Tensor& tensor, codec::Role role) {
  const auto bytes = static_cast<std::size_t>(tensor.nbytes());
  const bool one_value = repeats_one_value(tensor);
  if (role != codec::Role::unspecified && tensor.is_cpu() && (one_value || tensor.is_contiguous()))
    return {static_cast<const std::uint8_t*>(tensor.data_ptr()), bytes,
            std::make_shared<torch::Tensor>(tensor.detach()),
            one_value ? static_cast<std::size_t>(tensor.element_size()) : 0};
  const auto copy = std::make_shared<Slice>(to_wire(tensor).data);
  return {copy->data(), bytes, copy};
}

}  // namespace

averaging::SharedState view_of(const StateDescription& description) {
  auto state = without_tensors(description);
  std::vector<averaging::LiveTensors::Source> sources;
  for (std::size_t i = 0; i < description.tensors.size(); ++i) {
    const torch::Tensor& tensor = description.tensors[i];
    sources.push_back(source_of(tensor, description.infos[i].role));
    state.tensors.push_back({*wire_type_of(tensor), shape_of(tensor), tensor.requires_grad(), {}});
  }
  std::vector<std::pair<torch::Tensor, std::uint32_t>> versions;
  for (std::size_t i = 0; i < description.tensors.size(); ++i)
    if (const auto& tensor = description.tensors[i]; description.infos[i].role != codec::Role::unspecified)
      versions.emplace_back(tensor.detach(), version_of(tensor));
  auto unchanged = [versions = std::move(versions)] {
    return std::ranges::all_of(versions, [](const auto& one) { return version_of(one.first) == one.second; });
  };
  state.reader = std::make_shared<averaging::StateReader>(
      std::make_shared<averaging::LiveTensors>(std::move(sources), std::move(unchanged)));
  return state;
}

averaging::SharedState copy_of(const StateDescription& description) {
  auto state = without_tensors(description);
  for (const auto& tensor : description.tensors) state.tensors.push_back(to_wire(tensor));
  return state;
}

namespace {

/// The extra tensors that came after the parameters, to replace ours.
Result<std::vector<torch::Tensor>> check_extras(const averaging::DownloadedState& state, std::size_t parameters,
                                                const std::vector<torch::Tensor>& ours) {
  const auto bad = [&](const std::string& what) { return Error(Errc::bad_state, state.donor, what); };
  const auto sent = statistics_sent(state);
  const auto* const named = train::names_of_statistics(state);
  const std::size_t expected = parameters + ours.size() + sent.value_or(named ? named->items.size() : 0);
  if (state.tensors.size() < expected || (sent && state.tensors.size() != expected))
    return bad("it has " + std::to_string(state.tensors.size()) + " tensors" +
               (sent ? ", " + std::to_string(*sent) + " of them of its optimizer" : "") + ", and this model has " +
               std::to_string(parameters) + " parameters and " + std::to_string(ours.size()) + " extra tensors");
  std::vector<torch::Tensor> extras;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto& wire = state.tensors[parameters + i];
    const auto value = can_replace(wire, ours[i]) ? from_wire(wire) : std::nullopt;
    if (!value) return bad("extra tensor " + std::to_string(i) + misfit(wire, ours[i]));
    extras.push_back(*value);
  }
  return extras;
}

/// The statistics that have come with the parameters, in the order of ours; empty where they are others, which is said.
std::vector<Place> check_statistics(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                    std::size_t sent, OptimizerLayout& layout, CheckedState& checked) {
  auto places = statistics_of_all(optimizer);
  OptimizerLayout::Comparison comparison;
  if (const auto* leaves = leaves_of(state)) comparison = layout.compare(optimizer, *leaves);
  std::string differences;
  for (const auto& difference : comparison.differences) differences += (differences.empty() ? "" : "; ") + difference;
  const auto* const names = train::names_of_statistics(state);
  const std::string other_names = names ? difference_of_names(*names, places) : "";
  if (sent == places.size() && !comparison.other_class && other_names.empty()) {
    if (!differences.empty()) checked.note = "was taken, but its optimizer is not set up as ours: " + differences;
    return places;
  }
  std::string kept;
  for (const auto& name : statistics_kept(optimizer.param_groups().front().options()))
    kept += (kept.empty() ? "" : ", ") + name;
  checked.note = "was taken, but not the statistics of its optimizer: it has " + std::to_string(sent) +
                 " and ours keeps " + std::to_string(places.size()) +
                 (kept.empty() ? "" : " (" + kept + " of each parameter)") +
                 (differences.empty() ? "" : "; " + differences) + (other_names.empty() ? "" : "; " + other_names);
  return {};
}

}  // namespace

Result<CheckedState> check_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                 std::uint64_t least_epoch, const std::vector<torch::Tensor>& extras,
                                 OptimizerLayout& layout) {
  const auto epoch = train::epoch_to_load(state, least_epoch);
  if (!epoch) return epoch.error();
  const auto bad = [&](const std::string& what) { return Error(Errc::bad_state, state.donor, what); };
  const auto parameters = parameters_of(optimizer);
  auto checked_extras = check_extras(state, parameters.size(), extras);
  if (!checked_extras) return checked_extras.error();
  CheckedState checked;
  checked.epoch = *epoch;
  checked.extras = std::move(*checked_extras);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& tensor = state.tensors[i];
    const auto value = has_shape_of(tensor, parameters[i].sizes()) ? from_wire(tensor) : std::nullopt;
    if (!value) return bad("parameter " + std::to_string(i) + misfit(tensor, parameters[i]));
    checked.parameters.push_back(*value);
  }
  const std::size_t before = parameters.size() + extras.size();
  const auto places = check_statistics(optimizer, state, state.tensors.size() - before, layout, checked);
  if (!places.empty()) checked.statistics.resize(parameters.size());
  for (std::size_t at = 0; at < places.size(); ++at) {
    const Place& place = places[at];
    const auto& tensor = state.tensors[before + at];
    const bool step = place.statistic == "step";
    const auto sizes = step ? at::IntArrayRef() : parameters[place.parameter].sizes();
    const auto value = has_shape_of(tensor, sizes) ? from_wire(tensor) : std::nullopt;
    if (!value || (step && !counts_steps(*value))) {
      const auto ours = step ? torch::tensor(0.0f) : parameters[place.parameter];
      return bad(place.statistic + " of parameter " + std::to_string(place.parameter) + misfit(tensor, ours));
    }
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
      make_usable(statistics);
      set_statistics(optimizer, group.options(), of, statistics);
    }
}

Result<std::uint64_t> load_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                 const averaging::DownloadedState& state, std::uint64_t least_epoch,
                                 const std::vector<torch::Tensor>& extras, OptimizerLayout& layout) {
  torch::NoGradGuard no_grad;
  const auto checked = check_state(optimizer, state, least_epoch, extras, layout);
  if (!checked) return checked.error();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(checked->parameters[i]);
  for (std::size_t i = 0; i < extras.size(); ++i) extras[i].copy_(checked->extras[i]);
  load_statistics(optimizer, *checked);
  if (!checked->note.empty()) {
    const bool of_peer = state.donor != PeerId();
    log::warn("torch", "{} {}", of_peer ? "the state of " + state.donor.text() : "the checkpoint", checked->note);
  }
  return checked->epoch;
}

torch::Tensor with_change(const torch::Tensor& parameter, const torch::Tensor& change) {
  torch::NoGradGuard no_grad;
  torch::Tensor sum = parameter + change.to(parameter.options().requires_grad(false));
  return sum.set_requires_grad(parameter.requires_grad());
}

std::optional<averaging::SharedState> copy_unless_changed(const std::vector<torch::Tensor>& parameters,
                                                          const std::function<StateDescription()>& describe) {
  constexpr int kAttempts = 3;
  torch::NoGradGuard no_grad;
  const auto versions = [&] {
    std::uint64_t sum = 0;
    for (const auto& parameter : parameters) sum += version_of(parameter);
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
