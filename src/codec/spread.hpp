// Mean and deviation of values, in one pass over them.
#pragma once

#include "codec/detail/values.hpp"
#include "kernels.hpp"

namespace cohive::codec {

/// Sums over values around one of them; enough for a mean and, once that is rounded, the spread around it.
struct Spread {
  double pilot = 0;
  Moments moments;
  std::size_t count = 0;

  double mean() const;
  /// Root of the sum of squared distances from `centre`.
  double norm(double centre) const;
};

/// Values [first, first + count); none for no values.
Spread spread_of(const Values& values, std::size_t first, std::size_t count);

}  // namespace cohive::codec
