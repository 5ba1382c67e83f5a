// Every replica checks the epoch and the values of a state in the same way before it takes it over.
#pragma once

#include <optional>
#include <string>

#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/optim/passes.hpp"

namespace cohive::train {

/// Returns the epoch of a state's metadata.
inline std::optional<std::uint64_t> epoch_of(const msgpack::Value& metadata) {
  const auto* map = metadata.get_if<msgpack::Map>();
  const auto* epoch = map ? map->find("epoch") : nullptr;
  return epoch ? epoch->as_uint() : std::nullopt;
}

/// Returns the epoch of a state that is to be loaded. Errors: averaging::Errc::bad_state for one that has none, or is
/// older than `least_epoch`.
inline Result<std::uint64_t> epoch_to_load(const averaging::DownloadedState& state, std::uint64_t least_epoch) {
  const auto bad = [&state](const std::string& what) { return Error(averaging::Errc::bad_state, state.donor, what); };
  const auto epoch = epoch_of(state.metadata);
  if (!epoch) return bad("no epoch in its metadata");
  if (*epoch < least_epoch) return bad("its epoch " + std::to_string(*epoch) + " is older than ours");
  return *epoch;
}

/// The key of these in the metadata of a file's state.
inline constexpr const char* kStatisticsKey = "statistics";
/// Returns the names of a file's statistics, which are the last tensors of its state; null for a state of a peer.
inline const msgpack::Array* names_of_statistics(const averaging::DownloadedState& state) {
  const auto* map = state.metadata.get_if<msgpack::Map>();
  const auto* names = map ? map->find(kStatisticsKey) : nullptr;
  return names ? names->get_if<msgpack::Array>() : nullptr;
}

/// Tells whether all values of a floating type are finite; those of other types are.
inline bool is_finite(const codec::Tensor& tensor) {
  using codec::DType;
  switch (tensor.dtype) {
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16:
      return optim::all_finite({tensor.dtype, tensor.data.data(), tensor.data.size() / codec::size_of(tensor.dtype)});
    default:
      return true;
  }
}

}  // namespace cohive::train
