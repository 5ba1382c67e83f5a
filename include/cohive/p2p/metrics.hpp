/// \file
/// What the p2p module measures.
#pragma once

#include "cohive/core/metrics.hpp"

namespace cohive::p2p {

struct HostMetrics {
  explicit HostMetrics(Metrics& metrics)
      : connections(metrics.gauge("cohive_p2p_connections", "Open connections.")),
        peers(metrics.gauge("cohive_p2p_peers", "Connected peers.")),
        dials_ok(metrics.counter("cohive_p2p_dials_total", "Dialled addresses.", {{"outcome", "ok"}})),
        dials_failed(metrics.counter("cohive_p2p_dials_total", "Dialled addresses.", {{"outcome", "failed"}})),
        inbound_ok(metrics.counter("cohive_p2p_inbound_total", "Inbound connections.", {{"outcome", "ok"}})),
        inbound_failed(metrics.counter("cohive_p2p_inbound_total", "Inbound connections.", {{"outcome", "failed"}})),
        inbound_refused(metrics.counter("cohive_p2p_inbound_total", "Inbound connections.", {{"outcome", "refused"}})),
        bytes_in(metrics.counter("cohive_p2p_bytes_total", "Bytes on the wire.", {{"direction", "in"}})),
        bytes_out(metrics.counter("cohive_p2p_bytes_total", "Bytes on the wire.", {{"direction", "out"}})),
        identify_failures(metrics.counter("cohive_p2p_identify_failures_total", "Peers that did not identify themselves.")),
        routing_peers(metrics.gauge("cohive_p2p_routing_peers", "Peers in the Kademlia routing table.")) {}
  Gauge connections, peers;
  Counter dials_ok, dials_failed, inbound_ok, inbound_failed, inbound_refused, bytes_in, bytes_out, identify_failures;
  Gauge routing_peers;
};

}  // namespace cohive::p2p
