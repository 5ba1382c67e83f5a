/// \file
/// PerformanceEma: how fast a trainer is, as hivemind measures it. Source: docs/wire/hivemind.md, section 7.1.
#pragma once

namespace cohive::train {

/// Samples per second as an exponential average of the time per sample.
class PerformanceEma {
 public:
  /// \param alpha  weight of the newest update, above 0 and at most 1
  explicit PerformanceEma(double alpha = 0.1) : alpha_(alpha) {}
  /// `samples` were processed until `now` (seconds) since the last call.
  void update(double samples, double now);
  /// Time until the next update does not count.
  void reset_timer(double now) { last_ = now; }
  /// Returns the speed; 1e-20, never 0, before anything was measured.
  double samples_per_second() const { return samples_per_second_; }

 private:
  double alpha_;
  double ema_ = 0, last_ = -1, samples_per_second_ = 1e-20;
  int updates_ = 0;
};

}  // namespace cohive::train
