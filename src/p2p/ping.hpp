// Ping: proves that a peer answers and measures the round trip.
//   dialer -> 32 random bytes -> listener;  listener -> the same 32 bytes -> dialer; repeated on one stream.
// Source: docs/wire/libp2p.md, section 5.3.
#pragma once

#include "handlers.hpp"

namespace cohive::p2p {

inline const std::string kPingProtocol = "/ipfs/ping/1.0.0";

void serve_ping(Handlers& handlers, Runtime& runtime);

}  // namespace cohive::p2p
