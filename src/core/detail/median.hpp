// The middle one of some numbers.
#pragma once

#include <algorithm>
#include <vector>

namespace cohive {

/// Returns the larger one of the two in the middle where the count is even. There is a value at least.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace cohive
