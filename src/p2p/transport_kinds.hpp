// The transports of a host that is given a network: Host(network, ...). A further one is a file of its own, and a line
// here.
#pragma once

#include <array>

#include "cohive/transport/stream_transport.hpp"

namespace cohive::p2p {

struct TransportKind {
  /// Returns the maker of a transport over a network.
  transport::MakeTransport (*over)(transport::Network& network);
  /// Reads an address as Transport::endpoint of that transport does, for when there is none yet.
  std::optional<transport::Endpoint> (*endpoint)(const Multiaddr& address);
};

/// The first one that handles an address dials it.
inline constexpr std::array kTransports{TransportKind{transport::stream_transport, transport::stream_endpoint}};

}  // namespace cohive::p2p
