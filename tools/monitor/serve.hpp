// cohive-monitor serve: the page of a whole run.
//   /  /status            as every program has them (p2p/metrics_server.hpp), with the run under "swarm"
//   /api/v1/state         the run alone, as JSON
//   /api/v1/is_reachable/<peer id>   whether the peer can be reached from here, tried now: GET or POST, and not for a
//   page
//                                    of another site
//   /metrics              the run, for Prometheus
//   /readyz               200 while the swarm answers looks at the run
#pragma once

#include <string>

#include "monitor/collector.hpp"

namespace cohive::tools {

struct ServeOptions {
  CollectorOptions collector;
  std::optional<LookHistory> history;  ///< what the file at collector.history_path holds; nullopt: nothing
  std::string address = "127.0.0.1:9470";
  std::string token;
  std::size_t peer_series = 100;  ///< trainers that /metrics tells one by one, at most
  bool json = false;              ///< print the addresses as JSON
};

/// Serves until it is dropped. Throws ErrorException for an address that cannot be had.
Task<int> serve_run(Dht& dht, ServeOptions options);

}  // namespace cohive::tools
