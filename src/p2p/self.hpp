// What every part of a host knows of the host. The parts know each other in one direction only; constructor arguments
// say which:
//   Handlers < ConnectionTable < Inbound, Dialler, Identify < PeerRouting < Reachability < Host
#pragma once

#include "cohive/core/keys.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/p2p/reputation.hpp"

namespace cohive::p2p {

struct Self {
  /// Makes the transports, and fits the options to what they can do.
  Self(Runtime& loop, KeyPair key, HostOptions opts, const std::vector<transport::MakeTransport>& make_transports);
  /// See transport::Transport::endpoint.
  std::optional<transport::Endpoint> endpoint(const Multiaddr& address) const {
    return transport::endpoint_of(transports, address);
  }
  Runtime& runtime;
  KeyPair identity;
  PeerId id;
  HostOptions options;
  MemoryBudget memory;                   ///< of all that peers fill
  transport::Upgrader upgrader;          ///< of all direct connections of the host
  transport::Upgrader circuit_upgrader;  ///< of those through relays
  transport::Transports transports;
  HostMetrics metrics;
  Reputation reputation;
  bool closed = false;
};

}  // namespace cohive::p2p
