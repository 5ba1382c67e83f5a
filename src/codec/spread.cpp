#include "spread.hpp"

#include <algorithm>
#include <cmath>

namespace cohive::codec {
namespace {

// Sums of longer runs are added to each other, which keeps their rounding small.
constexpr std::size_t kSpreadRun = std::size_t{1} << 18;

}  // namespace

double Spread::mean() const {
  return pilot + moments.sum / static_cast<double>(count);
}

double Spread::norm(double centre) const {
  const double shift = centre - pilot;
  const double squares = moments.squares - 2 * shift * moments.sum + static_cast<double>(count) * shift * shift;
  return std::sqrt(squares < 0 ? 0 : squares);  // NaN stays
}

Spread spread_of(const Values& values, std::size_t first, std::size_t count) {
  Spread spread{0, {}, count};
  if (count == 0) return spread;
  alignas(64) float scratch[Values::kBlock];
  const float pilot = *values.block(first, 1, scratch);
  spread.pilot = static_cast<double>(pilot);
  for (std::size_t at = 0; at < count; at += kSpreadRun) {
    Moments run;
    for_blocks(values, first + at, std::min(kSpreadRun, count - at),
               [&](const float* block, std::size_t, std::size_t here) {
                 const Moments part = kernels().moments(block, pilot, here);
                 run.sum += part.sum;
                 run.squares += part.squares;
               });
    spread.moments.sum += run.sum;
    spread.moments.squares += run.squares;
  }
  return spread;
}

}  // namespace cohive::codec
