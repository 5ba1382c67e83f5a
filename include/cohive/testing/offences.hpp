/// \file
/// What the hosts of a simulation hold against other peers. Among honest peers that is nothing, whatever goes wrong.
#pragma once

#include "cohive/core/runtime.hpp"
#include "cohive/p2p/metrics.hpp"

namespace cohive::sim {

/// Returns how many offences the hosts of a runtime have reported: cohive_p2p_offences_total, for all reasons.
inline double offences(Runtime& runtime) {
  double sum = 0;
  for (const Counter& counter : p2p::HostMetrics(runtime.metrics()).offences) sum += counter.value();
  return sum;
}

}  // namespace cohive::sim
