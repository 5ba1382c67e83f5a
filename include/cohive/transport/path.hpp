/// \file
/// What the kernel knows of the path of a connection.
#pragma once

#include <cstdint>
#include <optional>

#include "cohive/core/time.hpp"

namespace cohive::transport {

/// Round trips are zero where the kernel does not tell.
struct PathState {
  Duration round_trip{};              ///< of late, smoothed
  Duration shortest{};                ///< a single round trip, of some minutes
  std::optional<std::uint64_t> lost;  ///< packets that were sent again, or have come in another order, since it began
};

}  // namespace cohive::transport
