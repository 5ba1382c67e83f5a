/// \file
/// Time as the loop knows it. Only Runtime reads a clock; everything else is given time points and deadlines.
#pragma once

#include <algorithm>
#include <chrono>

namespace cohive {

/// A time span, in nanoseconds.
using Duration = std::chrono::nanoseconds;
/// Monotonic loop time; under simulation, virtual time.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using namespace std::chrono_literals;

/// Returns the span in seconds.
inline double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
/// Saturates instead of overflowing; negative and NaN become zero.
inline Duration from_seconds(double seconds) {
  if (!(seconds > 0)) return Duration::zero();
  if (seconds >= 4e9) return Duration::max() / 2;
  return Duration(static_cast<Duration::rep>(seconds * 1e9));
}

/// The moment after which a wait gives up. Every wait on a remote peer takes one.
class Deadline {
 public:
  /// Ends at this time.
  explicit Deadline(TimePoint at) : at_(at) {}
  /// Returns a deadline that never comes.
  static Deadline never() { return Deadline(TimePoint::max()); }
  /// Tells whether it never comes.
  bool is_never() const { return at_ == TimePoint::max(); }
  /// Returns its time; the latest that there is for one that never comes.
  TimePoint at() const { return at_; }
  /// Tells whether it has come.
  bool passed(TimePoint now) const { return now >= at_; }
  /// Returns the time until then; zero when it has passed.
  Duration remaining(TimePoint now) const {
    return is_never() ? Duration::max() : std::max(at_ - now, Duration::zero());
  }
  /// The earlier of the two.
  Deadline min(Deadline other) const { return at_ < other.at_ ? *this : other; }

 private:
  TimePoint at_;
};

}  // namespace cohive
