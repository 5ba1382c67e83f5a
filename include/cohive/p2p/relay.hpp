/// \file
/// Circuit relay v2: what a host grants as a relay, and what relays grant it. See docs/relay.md.
#pragma once

#include <cstdint>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"

namespace cohive::p2p {

/// What a relay grants one circuit; 0 stands for any amount.
struct CircuitLimit {
  Duration duration{};      ///< whole seconds on the wire
  std::uint64_t bytes = 0;  ///< in each direction

  friend bool operator==(const CircuitLimit&, const CircuitLimit&) = default;
};

/// Bounds of the relay service. A circuit takes up to twice `buffer` of memory when its ends are not equally fast.
struct RelayServiceOptions {
  CircuitLimit circuit{.duration = 30min, .bytes = std::uint64_t{4} << 30};  ///< as hivemind asks of its daemons
  Duration reservation = 1h;                                                 ///< until it must be renewed
  std::size_t max_reservations = 256;                                        ///< held at once
  /// Of one IPv4 address or IPv6 /64 network; this machine itself may take all of them.
  std::size_t max_reservations_per_network = 32;
  std::size_t max_circuits = 256;             ///< open at once
  std::size_t max_circuits_per_peer = 64;     ///< that end at one peer, and that come from one
  std::size_t max_circuits_per_network = 64;  ///< that come from one
  std::size_t buffer = std::size_t{1} << 20;  ///< bytes of one direction that wait for the slower end
};

/// A reservation that a relay has granted this host.
struct HeldReservation {
  PeerId relay;        ///< the peer that granted it
  TimePoint expires;   ///< when it ends unless it is renewed, by the runtime's clock
  CircuitLimit limit;  ///< of each circuit to us
};

}  // namespace cohive::p2p
