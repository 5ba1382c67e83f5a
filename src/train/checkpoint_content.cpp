#include "checkpoint_content.hpp"

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "kept_values.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {
namespace {

using checkpoint::Errc;

constexpr std::string_view kParameter = "parameter.", kExtra = "extra.", kOptimizer = "optimizer.", kUser = "user.",
                           kAverager = "averager.", kOwed = ".owed";
constexpr std::string_view kVersion = "cohive.version", kRunId = "cohive.run_id", kEpoch = "cohive.epoch";
constexpr std::uint64_t kOurVersion = 1;
constexpr std::size_t kOfAll = std::numeric_limits<std::size_t>::max();

/// Where a tensor stands in a state.
struct Slot {
  enum class Kind { parameter, extra, optimizer };
  Kind kind;
  std::size_t index = 0;  ///< kOfAll: a statistic of all parameters together
  std::string statistic = {};
  friend auto operator<=>(const Slot&, const Slot&) = default;
};

/// A whole text as a number, without leading zeros.
std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && text == std::to_string(value) ? std::optional(value) : std::nullopt;
}

std::optional<Slot> slot_of(std::string_view name) {
  const auto rest = [&](std::string_view prefix) { return name.substr(prefix.size()); };
  if (name.starts_with(kParameter)) {
    const auto index = number(rest(kParameter));
    return index ? std::optional(Slot{Slot::Kind::parameter, *index}) : std::nullopt;
  }
  if (name.starts_with(kExtra)) {
    const auto index = number(rest(kExtra));
    return index ? std::optional(Slot{Slot::Kind::extra, *index}) : std::nullopt;
  }
  if (!name.starts_with(kOptimizer)) return std::nullopt;
  const std::string_view statistic = rest(kOptimizer);
  const auto dot = statistic.find('.');
  if (dot == statistic.npos) return Slot{Slot::Kind::optimizer, kOfAll, std::string(statistic)};
  const auto index = number(statistic.substr(0, dot));
  if (!index) return std::nullopt;
  return Slot{Slot::Kind::optimizer, *index, std::string(statistic.substr(dot + 1))};
}

/// Returns the name of a statistic in files.
std::string name_of(const Slot& slot) {
  const std::string of = slot.index == kOfAll ? "" : std::to_string(slot.index) + ".";
  return std::string(kOptimizer) + of + slot.statistic;
}

}  // namespace

void check_names(const std::vector<std::string>& names, std::size_t parameters) {
  const auto refuse = [](const std::string& what) {
    throw std::invalid_argument("cohive: checkpoints.parameter_names " + what);
  };
  if (names.empty()) return;
  if (names.size() != parameters)
    refuse("has " + std::to_string(names.size()) + " names for " + std::to_string(parameters) + " parameters");
  std::set<std::string_view> seen;
  for (const auto& name : names) {
    if (name.empty() || name == "__metadata__" || name.starts_with(kAverager) || name.starts_with(kExchangePrefix) ||
        slot_of(name))
      refuse("must not hold " + log::quoted(name));
    if (!seen.insert(name).second) refuse("holds " + log::quoted(name) + " twice");
  }
}

Origin origin_of(const checkpoint::Metadata& metadata) {
  const auto run_id = metadata.find(kRunId), epoch = metadata.find(kEpoch);
  const auto value = epoch == metadata.end() ? std::nullopt : number(epoch->second);
  if (run_id == metadata.end() || !value) return {};
  return {run_id->second, *value};
}

Result<> check_version(const checkpoint::Metadata& metadata) {
  const auto found = metadata.find(kVersion);
  const auto version = found == metadata.end() ? std::optional(kOurVersion) : number(found->second);
  if (version && *version <= kOurVersion) return ok();
  return Error(Errc::newer_version, log::quoted(found->second) + " is its version, and the newest that is known is " +
                                        std::to_string(kOurVersion));
}

Result<checkpoint::TensorFile> to_file(const averaging::SharedState& state,
                                       std::vector<checkpoint::NamedTensor> of_averager, const std::string& run_id,
                                       const std::vector<std::string>& parameter_names,
                                       const checkpoint::Metadata& strings) {
  if (state.names.size() != state.tensors.size())
    return Error(cohive::Errc::invalid_argument,
                 "this model does not name its tensors, so there are no checkpoints of it");
  checkpoint::TensorFile content;
  // Python's libraries look for the format of the tensors.
  content.metadata = {{"format", "pt"},
                      {std::string(kVersion), std::to_string(kOurVersion)},
                      {std::string(kRunId), run_id},
                      {std::string(kEpoch), std::to_string(epoch_of(state.metadata).value_or(0))}};
  for (const auto& [key, value] : strings) content.metadata.emplace(std::string(kUser) + key, value);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const auto slot = slot_of(state.names[i]);
    const bool named = slot && slot->kind == Slot::Kind::parameter && slot->index < parameter_names.size();
    content.tensors.push_back({named ? parameter_names[slot->index] : state.names[i], state.tensors[i]});
  }
  for (auto& [name, tensor] : of_averager)
    content.tensors.push_back({std::string(kAverager) + name, std::move(tensor)});
  return content;
}

std::vector<checkpoint::NamedTensor> take_of_averager(checkpoint::TensorFile& content) {
  std::vector<checkpoint::NamedTensor> taken, rest;
  for (auto& [name, tensor] : content.tensors) {
    if (name.starts_with(kAverager)) {
      taken.push_back({name.substr(kAverager.size()), std::move(tensor)});
    } else {
      rest.push_back({std::move(name), std::move(tensor)});
    }
  }
  content.tensors = std::move(rest);
  return taken;
}

std::vector<checkpoint::NamedTensor> owed_tensors(const averaging::ResidualsPtr& residuals,
                                                  const std::vector<averaging::TensorInfo>& gradients) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (std::size_t i = 0; residuals && i < residuals->size(); ++i) {
    const auto values = (*residuals)[i].values();
    if (values.empty()) continue;
    const ByteView bytes(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float));
    tensors.push_back({std::to_string(i) + std::string(kOwed),
                       {codec::DType::float32, gradients[i].shape, false, Slice::copy_of(bytes)}});
  }
  return tensors;
}

Result<> take_residuals(std::vector<checkpoint::NamedTensor>& saved, const averaging::ResidualsPtr& residuals,
                        const std::vector<averaging::TensorInfo>& gradients) {
  std::vector<std::pair<std::size_t, codec::Tensor>> owed;
  std::vector<checkpoint::NamedTensor> rest;
  for (auto& one : saved) {
    if (!one.name.ends_with(kOwed)) {
      rest.push_back(std::move(one));
      continue;
    }
    const auto index = number(std::string_view(one.name).substr(0, one.name.size() - kOwed.size()));
    const codec::Tensor& tensor = one.tensor;
    if (!index || !residuals || *index >= residuals->size() || tensor.dtype != codec::DType::float32 ||
        tensor.shape != gradients[*index].shape)
      return Error(Errc::does_not_fit, "no gradient is like " + log::quoted(one.name));
    owed.emplace_back(*index, std::move(one.tensor));
  }
  saved = std::move(rest);
  for (const auto& [index, tensor] : owed) {
    std::vector<float> values(tensor.data.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(float));
    (*residuals)[index].replace(values);
  }
  return ok();
}

checkpoint::Metadata strings_of(const checkpoint::Metadata& metadata) {
  checkpoint::Metadata strings;
  for (const auto& [key, value] : metadata)
    if (key.starts_with(kUser)) strings.emplace(key.substr(kUser.size()), value);
  return strings;
}

Result<StateTensors> to_tensors(checkpoint::TensorFile content, const std::vector<std::string>& parameter_names,
                                std::size_t parameters) {
  std::map<std::string_view, std::size_t> names;
  for (std::size_t i = 0; i < parameter_names.size(); ++i) names.emplace(parameter_names[i], i);
  std::map<Slot, codec::Tensor> slots;
  std::size_t found = 0, extras = 0;
  for (auto& [name, tensor] : content.tensors) {
    const auto named = names.find(name);
    const auto slot = named != names.end() ? std::optional(Slot{Slot::Kind::parameter, named->second}) : slot_of(name);
    if (!slot) return Error(Errc::does_not_fit, "the model has no " + log::quoted(name));
    found += slot->kind == Slot::Kind::parameter && slot->index < parameters;
    extras += slot->kind == Slot::Kind::extra;
    if (slot->kind != Slot::Kind::extra && slot->index >= parameters && slot->index != kOfAll)
      return Error(Errc::does_not_fit,
                   "it has " + log::quoted(name) + ", the model only " + std::to_string(parameters) + " parameters");
    if (!slots.emplace(*slot, std::move(tensor)).second)
      return Error(Errc::does_not_fit, log::quoted(name) + " is there under two names");
  }
  if (found != parameters)
    return Error(Errc::does_not_fit,
                 "it has " + std::to_string(found) + " of the model's " + std::to_string(parameters) + " parameters");
  StateTensors state;
  for (auto& [slot, tensor] : slots) {
    if (slot.kind == Slot::Kind::extra && slot.index >= extras)
      return Error(Errc::does_not_fit, "an extra tensor is missing");
    if (slot.kind == Slot::Kind::optimizer) state.statistics.items.emplace_back(name_of(slot));
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

}  // namespace cohive::train
