// Beam search over the swarm: asks the nearest known nodes about several keys at once, until for each key the beam is
// explored or the caller is satisfied. Source: hivemind wire spec, section 3.9.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "routing_table.hpp"

namespace cohive::dht {

struct TraversalOptions {
  std::size_t beam_size = 20;
  std::size_t num_workers = 4;
  std::size_t queries_per_call = 1;
};

/// What one call told about one query.
struct TraversalStep {
  std::vector<NodeAddress> nearest;
  bool stop = false;  ///< the caller has what it wants
};

class Traversal {
 public:
  /// Asks `peer` about `queries`; nullopt when it failed.
  using Ask = std::function<Task<std::optional<std::vector<TraversalStep>>>(NodeAddress peer, std::vector<DhtId> queries)>;
  /// Called once per query with the nearest nodes found, nearest first.
  using Found = std::function<void(const DhtId& query, const std::vector<NodeAddress>& nearest)>;

  Traversal(Runtime& runtime, DhtId self, TraversalOptions options, Ask ask, Found found);
  void add_query(const DhtId& query, const std::vector<NodeAddress>& initial);
  /// Ends when every query has.
  Task<void> run();

 private:
  struct Query {
    std::map<DhtId, NodeAddress> candidates;  // by distance, not yet asked
    std::map<DhtId, NodeAddress> nearest;     // by distance, at most beam_size
    std::set<DhtId> known, visited;
    std::size_t active = 0;
    bool finished = false;
  };
  struct Choice {
    DhtId query;
    NodeAddress node;
  };
  static Task<void> work(Traversal& self);
  bool viable(const Query& query, const DhtId& distance) const;
  void learn(const DhtId& id, Query& query, const NodeAddress& node);
  std::optional<Choice> choose();
  std::vector<DhtId> also_ask(const Choice& choice);
  void finish(const DhtId& id);
  void finish_all();

  Runtime& runtime_;
  DhtId self_;
  TraversalOptions options_;
  Ask ask_;
  Found found_;
  std::map<DhtId, Query> queries_;
  std::size_t unfinished_ = 0;
  std::size_t busy_ = 0;
  Condition changed_;
};

}  // namespace cohive::dht
