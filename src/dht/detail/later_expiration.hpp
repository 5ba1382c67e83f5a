// When a record expires that its owner renews.
#pragma once

#include <algorithm>

namespace cohive::dht {

/// Returns an expiration that nodes take in place of the last one: the wanted one, unless a clock that was ahead has
/// left a record that lives longer. What expires before that would be refused until then.
/// \param wanted  Unix seconds  \param newest  the latest expiration so far, which is noted here; 0 at first
inline double later_expiration(double wanted, double& newest) {
  constexpr double kLater = 1e-3;  // seconds
  return newest = std::max(wanted, newest + kLater);
}

}  // namespace cohive::dht
