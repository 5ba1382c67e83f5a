#pragma once

#include <algorithm>
#include <limits>

#include "cohive/core/time.hpp"

namespace cohive {

/// What a peer may still ask for: flows in with time, up to a burst. A new bucket is full.
struct TokenBucket {
  double level = std::numeric_limits<double>::infinity();
  TimePoint filled{};

  /// Returns the level at `now`, before anything is taken.
  double level_at(TimePoint now, double per_second, double burst) const {
    return std::min(burst, level + to_seconds(now - filled) * per_second);
  }
  void fill(TimePoint now, double per_second, double burst) {
    level = level_at(now, per_second, burst);
    filled = now;
  }
  /// Takes one; false, and nothing is taken, when there is none.
  bool take_one(TimePoint now, double per_second, double burst) {
    fill(now, per_second, burst);
    if (level < 1) return false;
    --level;
    return true;
  }
};

}  // namespace cohive
