/// \file
/// The transport of byte connections: a Network, and the handshakes of upgrade.hpp on top of it.
#pragma once

#include <memory>

#include "cohive/transport/transport.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::transport {

/// Makes transports over `network`, which must outlive them. They handle numeric TCP addresses, of IPv4 and IPv6. Under
/// a cap on upload, less is queued below the streams than the options of their upgraders allow.
MakeTransport stream_transport(Network& network);

/// Reads an address as their Transport::endpoint does, for when there is none of them yet.
std::optional<Endpoint> stream_endpoint(const Multiaddr& address);

}  // namespace cohive::transport
