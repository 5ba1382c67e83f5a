// Names in multiaddresses: dns, dns4, dns6 by getaddrinfo, dnsaddr by TXT records. Source: libp2p wire spec,
// section 1.2.
#pragma once

#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

/// Numeric addresses come back unchanged. The look-ups run off the loop.
Task<Result<std::vector<Multiaddr>>> resolve_dns(Runtime& runtime, Multiaddr address);

}  // namespace cohive::transport
