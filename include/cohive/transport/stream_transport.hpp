/// \file
/// The transport of byte connections: a Network, and the handshakes of upgrade.hpp on top of it.
#pragma once

#include <memory>

#include "cohive/transport/transport.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::transport {

/// Handles numeric TCP addresses, of IPv4 and IPv6. Under a cap on upload, less is queued below the streams than
/// `options` allow. `network` must outlive the transport.
std::unique_ptr<Transport> make_stream_transport(Network& network, KeyPair identity, TransportOptions options = {});

}  // namespace cohive::transport
