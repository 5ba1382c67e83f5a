// What a host tells in the status of its process: the sections "node" and "peers".
#pragma once

#include "cohive/core/status.hpp"
#include "connection_table.hpp"
#include "reachability_state.hpp"
#include "relay_client.hpp"

namespace cohive::p2p {

class HostStatus {
 public:
  HostStatus(const Self& self, const ConnectionTable& table, const OwnAddresses& own,
             const ReachabilityState& reachability, const RelayClient& relays);

  /// Brings the metrics of this file up to date.
  void measure();

 private:
  std::string node() const;
  std::string peers() const;
  const Self& self_;
  const ConnectionTable& table_;
  const OwnAddresses& own_;
  const ReachabilityState& reachability_;
  const RelayClient& relays_;
  Gauge relayed_;
  Subscription node_, peers_;
};

}  // namespace cohive::p2p
