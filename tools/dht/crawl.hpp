// A map of a swarm: asks every node for its neighbours until no new node is heard of. What others say of a peer's id is
// left out where the peer itself says something else.
#pragma once

#include <optional>
#include <vector>

#include "cohive/dht/dht.hpp"

namespace cohive::tools {

struct CrawledNode {
  dht::DhtId id;
  PeerId peer;
  bool reachable = false;
  Duration latency{};                 ///< of one rpc_find on an open connection
  std::size_t neighbours = 0;         ///< distinct nodes it named
  std::vector<dht::DhtId> named;      ///< these, where CrawlOptions::details asks for them
  std::optional<double> clock_ahead;  ///< seconds, of ours; where asked for, and told
  std::string agent;                  ///< peer-supplied text
  std::vector<Multiaddr> addresses;
};

struct CrawlOptions {
  std::size_t parallel = 64;
  std::size_t max_nodes = 100'000;
  bool details = false;                       ///< which node names which, and what time it is there
  Duration patience = std::chrono::hours(1);  ///< after which nodes not yet asked are left out
};

/// In the order of their ids.
Task<std::vector<CrawledNode>> crawl(Dht& dht, CrawlOptions options);

}  // namespace cohive::tools
