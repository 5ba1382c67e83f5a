// Round trips as cohive-dht prints them.
#pragma once

#include "cohive/core/time.hpp"

namespace cohive::tools {

inline double milliseconds(Duration duration) {
  return to_seconds(duration) * 1000;
}

}  // namespace cohive::tools
