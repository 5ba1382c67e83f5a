// Members of a round of the parameters greet each other. Python peers, and those that always send parameters whole,
// tell the epoch alone, a number; others an array. Source: docs/wire/extensions.md, section 19.
#pragma once

#include <cstdint>
#include <optional>

#include "cohive/averaging/group.hpp"

namespace cohive::train {

/// As far as it makes sense: what is missing, or no such number, is as if it was not told.
struct ParameterGreeting {
  std::optional<std::uint64_t> epoch;  ///< that the round belongs to
  /// The checksum of the averaging::CommonState from which this member would send differences; 0: it would from none.
  std::uint64_t common = 0;

  msgpack::Value value() const { return msgpack::Array{{epoch.value_or(0), common}}; }
  static ParameterGreeting of(const averaging::Member& member) {
    const auto* told = member.data.get_if<msgpack::Array>();
    if (!told) return {.epoch = member.data.as_uint()};
    const auto item = [told](std::size_t i) {
      return i < told->items.size() ? told->items[i].as_uint() : std::nullopt;
    };
    return {item(0), item(1).value_or(0)};
  }
};

}  // namespace cohive::train
