// Identities of numbered peers.
#pragma once

#include <string>

#include "cohive/core/keys.hpp"

namespace cohive::transport {

inline const std::string kYamux = "/yamux/1.0.0";  // what both sides of a handshake agree on

inline KeyPair identity(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number));
}

}  // namespace cohive::transport
