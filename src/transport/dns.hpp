// Names in multiaddresses: dns, dns4, dns6 by getaddrinfo, dnsaddr by TXT records. Source: libp2p wire spec,
// section 1.2.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::transport {

/// Numeric addresses come back unchanged. The look-ups run off the loop.
Task<Result<std::vector<Multiaddr>>> resolve_dns(Runtime& runtime, Multiaddr address);

/// Runs `look_up()`, which may wait for a name server for half a minute, on a thread that neither other work nor the
/// end of the runtime or the program waits for. It must own all it touches; the flag it gets is set once nobody wants
/// the result any more.
using LookUp = std::function<std::vector<Multiaddr>(const std::atomic<bool>& given_up)>;
Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up);

}  // namespace cohive::transport
