// Pauses that are not the same for all.
#pragma once

#include "cohive/core/runtime.hpp"

namespace cohive::detail {

/// Draws a pause between three and five quarters of the mean: peers that began at the same moment are not to go on so.
inline Duration jittered(Runtime& runtime, Duration mean) {
  return from_seconds(to_seconds(mean) * (0.75 + runtime.random_unit() / 2));
}

}  // namespace cohive::detail
