// How often something is tried, or believed, that has led to nothing before.
#pragma once

#include <algorithm>
#include <utility>

#include "cohive/core/time.hpp"

namespace cohive::detail {

/// A pause that is twice as long each time.
class GrowingPause {
 public:
  GrowingPause(Duration first, Duration longest) : first_(first), longest_(longest) {}
  bool is_over(TimePoint now) const { return now >= until_; }
  /// Returns how long it takes.
  Duration begin(TimePoint now) {
    until_ = now + next_;
    return std::exchange(next_, std::min(next_ * 2, longest_));
  }
  /// The next one is as short as the first.
  void forget() { next_ = first_; }
  /// Ends the pause that goes on, and has the next one be as short as the first.
  void end() {
    forget();
    until_ = TimePoint::min();
  }

 private:
  const Duration first_, longest_;
  Duration next_ = first_;
  TimePoint until_ = TimePoint::min();
};

}  // namespace cohive::detail
