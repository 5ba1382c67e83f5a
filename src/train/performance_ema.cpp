#include "cohive/train/performance_ema.hpp"

#include <algorithm>
#include <cmath>

namespace cohive::train {

namespace {
constexpr double kMinTime = 1e-12;  // seconds per sample; batches reported at one instant are not infinitely fast
}  // namespace

void PerformanceEma::update(double samples, double now) {
  if (samples <= 0 || last_ < 0) {
    last_ = now;
    return;
  }
  ++updates_;
  ema_ = alpha_ * (now - last_) / samples + (1 - alpha_) * ema_;
  const double adjusted = ema_ / (1 - std::pow(1 - alpha_, updates_));
  samples_per_second_ = 1 / std::max(adjusted, kMinTime);
  last_ = now;
}

}  // namespace cohive::train
