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
  Self(Runtime& loop, KeyPair key, HostOptions opts)
      : runtime(loop),
        identity(std::move(key)),
        id(identity.peer_id()),
        options(std::move(opts)),
        metrics(runtime.metrics()),
        reputation(runtime, metrics) {}
  Runtime& runtime;
  KeyPair identity;
  PeerId id;
  HostOptions options;
  HostMetrics metrics;
  Reputation reputation;
  bool closed = false;
};

}  // namespace cohive::p2p
