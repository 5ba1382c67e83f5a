// Peers that are only numbers, for tests in which nobody signs anything.
#pragma once

#include <cstring>

#include "cohive/core/peer_id.hpp"

namespace cohive::dht {

inline PeerId peer_of(std::int64_t number) {
  Bytes key(36, 0);
  std::memcpy(key.data(), &number, sizeof number);
  return PeerId::of_public_key(key);
}

}  // namespace cohive::dht
