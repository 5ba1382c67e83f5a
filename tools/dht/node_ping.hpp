// The call with which a node joins a DHT: whether a peer is a node of one, and what time it is there.
#pragma once

#include <optional>

#include "cohive/dht/dht_id.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::tools {

/// Seconds by which clocks may differ: a node that differs more does not let another one join.
inline constexpr double kClockTolerance = 3;

struct NodePing {
  std::optional<dht::DhtId> node_id;  ///< nullopt: a client
  double seconds = 0;                 ///< from question to answer
  /// Seconds that the clock of the peer is ahead of ours, at least; nullopt: it does not tell the time.
  std::optional<double> clock_ahead;
};
/// Errors: Errc::malformed for a reply without sense, and those of rpc::call_unary.
Task<Result<NodePing>> ping_node(p2p::Host& host, PeerId peer, Deadline deadline);

}  // namespace cohive::tools
