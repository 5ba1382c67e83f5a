// What the parts of a DHT node share: the facade (dht.cpp), getting and caching (getting.cpp), storing (storing.cpp).
#pragma once

#include <set>
#include <unordered_map>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "protocol.hpp"
#include "traversal.hpp"

namespace cohive::dht {

/// Keys that one traversal looks for: choosing what to ask next looks at each of them.
inline constexpr std::size_t kKeysPerSearch = 1024;
inline constexpr std::size_t kQueriesPerTurn = 128;  // prepared in one turn of the loop

/// One key being looked up.
struct Lookup {
  Lookup(Runtime& runtime, const DhtId& id, double enough)
      : key(id), sufficient(enough), done(runtime, "a DHT lookup") {}
  bool satisfied() const { return best && best->expiration >= sufficient; }
  /// Takes a record that was checked before: two dictionaries are merged within the limits, of plain values the later
  /// one wins.
  void take(const StoredRecord& record, const StorageLimits& limits);

  DhtId key;
  double sufficient;  ///< stop at a record that expires then or later
  std::optional<StoredRecord> best;
  std::optional<DhtId> source;                    ///< the node that had the best record
  std::size_t answers = 0;                        ///< of other nodes
  std::vector<std::size_t> counts;                ///< of entries, as each node tells that may have sent some of them
  bool cut_off = false;                           ///< a deadline ended the search
  std::unordered_map<DhtId, std::size_t> copies;  ///< by node that answered: fingerprint of what it has
  Event done;
};
using LookupPtr = std::shared_ptr<Lookup>;

/// What Dht::get_sampled found last, of a few keys.
class SampledRecords {
 public:
  /// Keeps a dictionary, to merge later ones with. \param latest  Unix seconds: entries that expire later are left out
  void keep(const DhtId& key, StoredRecord record, double latest);
  /// Null where nothing is kept.
  const StoredRecord* find(const DhtId& key) const;
  /// Frees those whose entries have all expired.
  void forget_expired(double now);

 private:
  std::unordered_map<DhtId, StoredRecord> records_;
  std::deque<DhtId> order_;
};

/// Cached keys that were asked for, by the time at which to look them up again.
class RefreshQueue {
 public:
  void schedule(const DhtId& key, double at) {
    remove(key);
    at_[key] = at;
    order_.insert({at, key});
  }
  void remove(const DhtId& key) {
    const auto found = at_.find(key);
    if (found == at_.end()) return;
    order_.erase({found->second, key});
    at_.erase(found);
  }
  bool empty() const { return order_.empty(); }
  double next_time() const { return order_.begin()->first; }
  DhtId pop() {
    const DhtId key = order_.begin()->second;
    remove(key);
    return key;
  }

 private:
  std::unordered_map<DhtId, double> at_;
  std::set<std::pair<double, DhtId>> order_;
};

/// What Dht::Impl::explore found around a key.
struct Explored {
  std::vector<NodeEntry> nearest;
  bool crowded = false;
};

/// A crowded key has more replicas, as half of them are drawn from the region around it.
inline std::size_t replicas_of(std::size_t usual, bool crowded) {
  return crowded ? 2 * usual : usual;
}

struct Dht::Impl {
  Impl(p2p::Host& host, DhtOptions opts);

  // dht.cpp
  Task<Result<>> start(std::vector<Multiaddr> initial_peers);
  Task<Result<>> join(std::vector<Multiaddr> initial_peers);
  Task<Result<>> join_through(Multiaddr address, Deadline deadline, bool validate);
  Task<Result<>> greet(PeerId peer, bool validate);
  Task<void> be_known(Deadline deadline);
  /// Finds the nodes nearest to each key and hears from them; the table fills on the way.
  /// \param watchful  whether the search shall mind crowds, see expect_crowds()
  Task<std::unordered_map<DhtId, Explored>> explore(std::vector<DhtId> keys, std::size_t beam, Deadline deadline,
                                                    bool watchful = false);
  Task<void> refresh_buckets();
  TraversalOptions search_options(std::size_t beam, std::size_t keys) const;
  void expect_crowds(TraversalOptions& search) const;
  std::size_t seeds_for(const TraversalOptions& search) const;
  std::optional<std::uint64_t> block_of(const PeerId& peer) const;
  /// Asks one node on behalf of a search, minding the blacklist.
  Task<std::optional<std::vector<Finding>>> ask(Contact contact, std::vector<DhtId> keys, Draw draw = {});
  /// Asks as ask() does, for a search that wants the nodes near its keys and no records.
  Task<std::optional<std::vector<TraversalStep>>> ask_for_nodes(Contact contact, std::vector<DhtId> keys);

  // rejoining.cpp
  Task<void> stay_joined();
  Task<void> look_for_missing(std::size_t turn);
  Task<void> look_behind_a_name();
  Task<bool> meet(Multiaddr address);
  Task<bool> meet(PeerId peer);
  Duration spread(Duration period) const;

  /// \param left  bytes that may still be saved
  Task<Result<>> save_records(Storage& store, std::shared_ptr<StateWriter> writer, std::size_t& left);

  /// When an operation on so many keys ends, if its caller does not say.
  Deadline deadline_for(std::size_t keys, std::optional<Deadline> given) const;
  /// What it means that no node answered: Errc::unreachable, unless there is none but us.
  bool should_know_nodes() const;

  // getting.cpp
  Task<std::vector<Result<GetResult>>> get_many(std::vector<Key> keys, bool latest, Deadline deadline);
  Task<Result<GetResult>> get_sampled(Key key, std::size_t replicas, Draw draw, Deadline deadline);
  Task<void> look_up(std::vector<LookupPtr> lookups, Deadline deadline);
  Task<void> look_up_shared(std::vector<LookupPtr> lookups, Deadline deadline);
  bool look_up_locally(Lookup& lookup, bool use_cache);
  void draw_locally(Lookup& lookup, Draw draw);
  bool agree(const Lookup& lookup, const std::vector<DhtId>& nodes) const;
  Task<void> consider(LookupPtr lookup, StoredRecord candidate, DhtId source);
  Task<void> consider_value(LookupPtr lookup, StoredRecord candidate, DhtId source);
  Task<void> consider_entries(LookupPtr lookup, StoredRecord candidate, DhtId source);
  Task<std::vector<bool>> check(std::vector<Record> records);
  void remember(const LookupPtr& lookup, const std::vector<NodeEntry>& nearest);
  Task<void> cache_entries(LookupPtr lookup);
  Task<void> cache_on(PeerId peer, WireRecord record);
  void schedule_refresh(const DhtId& key, double at);
  Task<void> refresh_cache();
  Task<Result<GetResult>> result_of(LookupPtr lookup) const;
  Task<std::optional<GetResult>> decode(LookupPtr lookup) const;
  std::optional<msgpack::Value> value_of(const DhtId& key, const std::string& tag, const std::string& bytes,
                                         double expiration) const;

  // storing.cpp
  Task<std::vector<Result<>>> store_many(std::vector<StoreItem> items, Deadline deadline);
  struct StorePlan;
  Result<std::string> tag_for(const StoreItem& item) const;
  Task<Result<>> check_value(const std::string& value) const;
  Task<void> search_and_store(std::vector<StorePlan>& plans, Deadline deadline);
  Task<void> store_on_replicas(StorePlan& plan, std::vector<NodeEntry> candidates);
  Task<void> store_on(StorePlan& plan, NodeEntry node, std::size_t& pending, Condition& changed);
  Task<Result<>> result_of(const StorePlan& plan, std::size_t record);
  void cache_stored(const StorePlan& plan);

  const DhtOptions options;
  DhtMetrics metrics;
  Protocol protocol;
  Runtime& runtime;
  std::vector<Multiaddr> initial;  ///< peers to come back through
  bool staying = false;
  std::unordered_map<DhtId, LookupPtr> pending;  // searches that further callers may join
  RefreshQueue refreshes;
  SampledRecords sampled;
  std::size_t restored_parts = 0;
  Condition refreshes_changed;
  bool closed = false;
  TaskGroup tasks;
};

}  // namespace cohive::dht
