// What is counted for a peer by the connection to it: the network that it is in, and the memory that it fills.
#pragma once

#include <string>

#include "cohive/core/memory_budget.hpp"
#include "cohive/core/network_of.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::p2p {

/// Returns the network that the peer is connected from; a peer without a connection is one by itself.
inline std::string network_of_peer(const Host& host, const PeerId& peer) {
  const auto address = host.remote_address(peer);
  return address ? network_of(*address) : peer.binary();
}

/// Returns a charge of nothing yet, to what the peer fills; one that counts nothing where it has no connection.
inline MemoryBudget::Charge charge_for(const Host& host, const PeerId& peer) {
  const auto address = host.remote_address(peer);
  return address ? MemoryBudget::Charge(host.memory().account(peer, *address)) : MemoryBudget::Charge();
}

}  // namespace cohive::p2p
