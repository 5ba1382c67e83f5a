// Beam search over the swarm: asks the nearest known nodes about several keys at once, until for each key the beam is
// explored or the guide has what it wants. Source: docs/wire/hivemind.md, section 3.9.
// Ours: a node that does not answer leaves the beam, so that the next nearest takes its place; and a search for the
// newest copy of a record ends when the nodes that are to hold it, the nearest, all hold the same. Node ids are free:
// of one network block two nodes count as near, so that a machine with many ids does not surround a key; and a node
// that names mostly nodes that do not answer, or have other ids than it says, is not followed further. A node has the
// place that it names itself. Where ids crowd a key (crowding.hpp), the search goes on in disjoint paths, as in
// S/Kademlia: a node is asked on one of the paths that named it, all paths get as many calls, and they go through the
// whole region in which the wanted nodes would be without the crowd, from outside it. Liars that name each other fill
// the paths that lead to them alone; a crowd next to the key fills the part of the region that is next to it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "routing_table.hpp"

namespace cohive::dht {

struct TraversalOptions {
  std::size_t beam_size = 20;   ///< the search is over when so many, the nearest there are, have answered
  std::size_t result_size = 0;  ///< how many it names, beam_size at least; nodes beyond the beam may not answer
  std::size_t num_workers = 4;
  /// Asked before the rest of the beam, which may then be spared; 0: never. See Guide::agree.
  std::size_t quorum = 0;
  bool in_quorum = false;  ///< whether we count as one of it where we are that near
  std::size_t queries_per_call = 1;
  Deadline deadline = Deadline::never();  ///< what is known by then is the result
  /// The network block of a node that has answered; nothing where it does not matter.
  std::function<std::optional<std::uint64_t>(const PeerId&)> block_of = nullptr;
  double swarm_size = 0;  ///< by which crowded keys are known, see estimate_swarm_size(); 0: not at all
};

/// What one call told about one query.
struct TraversalStep {
  std::vector<NodeEntry> nearest;
  bool stop = false;                         ///< the guide has what it wants
  std::optional<DhtId> node = std::nullopt;  ///< the id under which the node has answered, where it told one
};

/// What a search cost for one query.
struct SearchCost {
  std::size_t calls = 0;
  std::size_t hops = 0;  ///< from one node to the next until the nearest one, or the one that had what was wanted
  bool cut_off = false;  ///< the deadline ended the search
  bool crowded = false;  ///< ids crowd the key
};

/// A node to ask.
struct Contact {
  NodeEntry node;
  PeerId referrer;  ///< the peer that named it; empty: it was in our own table
};

class Traversal {
 public:
  /// What the search is for.
  class Guide {
   public:
    virtual ~Guide() = default;
    /// Asks a node about `queries`; one step per query, or nullopt when the node failed. Some may be ids that only lie
    /// near one that was added.
    virtual Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) = 0;
    /// Called once per query with the nearest nodes known, nearest first, asked or not. Of a crowded key every other
    /// one is drawn from the nodes that answered, one of each part of the region in which they would be in turn.
    virtual void found(const DhtId& query, std::vector<NodeEntry> nearest, SearchCost cost) = 0;
    /// Whether the search may end now that all of `quorum` have answered: the nearest nodes there are, and we if we are
    /// among them.
    virtual bool agree(const DhtId& /*query*/, const std::vector<DhtId>& /*quorum*/) { return false; }
  };

  /// Nodes to begin with, for `result_size` of a search: enough for each path.
  static std::size_t seeds_for(std::size_t result_size) { return kPaths * result_size; }

  Traversal(Runtime& runtime, DhtId self, TraversalOptions options, Guide& guide);
  /// Queries must differ from each other. The first nodes are dealt out to the paths.
  void add_query(const DhtId& query, const std::vector<NodeEntry>& initial);
  /// Ends when every query has. False when the deadline ended some.
  Task<bool> run();

 private:
  static constexpr std::size_t kPaths = 3;
  /// Of the region around a crowded key, each by a part of the distance: a crowd that is nearest fills the first.
  static constexpr std::size_t kParts = 5;
  static constexpr std::size_t kLanes = kPaths * (kParts + 1);  // parts of paths, and what is outside the region
  using Paths = std::uint8_t;                                   // a bit for each path
  struct Candidate {
    DhtId distance;
    NodeEntry node;
    PeerId referrer;       // empty: it was in our own table
    std::size_t hops = 1;  // 1: the same
    Paths paths = 0;       // the paths that named it; of an asked node the one that it was asked on
    bool asked = false;
    bool answered = false;
    bool crowded = false;  // nearer nodes of its block have answered
    std::optional<std::uint64_t> block = std::nullopt;
  };
  /// Counts what became of the nodes that one node has named. Those that have another id than it said have failed it.
  struct Named {
    std::size_t failed = 0, answered = 0;
    bool is_fabricating() const;
  };
  struct Query {
    DhtId id;
    std::size_t index = 0;
    std::vector<Candidate> beam;  // ascending by distance; nodes behind beam_size step in for nodes that fail
    std::size_t next = kNone;     // the node to ask next: the nearest in the beam that was not asked
    std::size_t calls = 0;
    std::size_t active = 0;
    std::size_t stopped_at = 0;  // hops to the node that had what was wanted
    bool settling = false;       // the quorum has to answer first
    bool wide = false;           // ids crowd the key: all of the region is asked, on each path in turn
    bool finished = false;
    std::vector<NodeEntry> seeds;
    std::array<std::size_t, kLanes> lane_calls{};
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  static Task<void> work(Traversal& self);
  Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, const std::vector<Query*>& batch);
  DhtId scout(const Query& query);
  void learn(Query& query, const Contact& contact, std::size_t hops, Paths paths, bool asked) const;
  void learn_seeds(Query& query) const;
  void drop_farthest(Query& query) const;
  void set_path(Query& query, const PeerId& peer);
  std::size_t part_of(const Candidate& candidate) const;
  std::size_t lane_of(const Query& query, const Candidate& candidate, std::size_t path) const;
  void update_next(Query& query);
  void update_next_of_paths(Query& query) const;
  bool widen(Query& query);
  std::size_t quorum_of(const Query& query) const;
  static std::size_t nth(const Query& query, std::size_t number);
  static void find_crowds(Query& query);
  void finish_query(Query& query);
  bool choose(Contact& contact, std::vector<Query*>& batch);
  void apply(Query& query, const PeerId& peer, TraversalStep* step);
  void correct_place(Query& query, std::vector<Candidate>::iterator at, const DhtId& id) const;
  std::vector<NodeEntry> result_of(const Query& query) const;
  std::vector<NodeEntry> spread_result_of(const Query& query);
  void finish(Query& query);
  static std::size_t hops_to(const Query& query, const PeerId& peer);
  bool was_asked(const PeerId& peer, const Query& query) const;

  Runtime& runtime_;
  DhtId self_;
  TraversalOptions options_;
  Guide& guide_;
  std::vector<Query> queries_;
  std::vector<Query*> unfinished_;
  bool cut_off_ = false;
  std::unordered_map<PeerId, Named> named_;              // by the node that named them
  std::unordered_map<PeerId, std::vector<bool>> asked_;  // by node: one flag per query
  Condition changed_;
  Event all_finished_;
};

}  // namespace cohive::dht
