/// \file
/// What the transport module measures.
#pragma once

#include "cohive/core/metrics.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

struct TransportMetrics {
  explicit TransportMetrics(Runtime& runtime)
      : handshake_seconds(runtime.metrics().histogram("cohive_transport_handshake_seconds",
                                                      "Time of handshakes that succeeded, in both directions.",
                                                      {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10})) {}
  Histogram handshake_seconds;
};

}  // namespace cohive::transport
