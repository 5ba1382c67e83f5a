// Who is where in the id space: buckets that split near ourselves. Source: hivemind wire spec, section 3.3.
#pragma once

#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"
#include "cohive/dht/dht_id.hpp"

namespace cohive::dht {

struct NodeAddress {
  DhtId id;
  PeerId peer;
  friend bool operator==(const NodeAddress&, const NodeAddress&) = default;
};

class RoutingTable {
 public:
  RoutingTable(DhtId self, std::size_t bucket_size, std::size_t depth_modulo);

  /// Adds or refreshes. When the bucket is full and may not split: the least recently seen node, to be pinged.
  std::optional<NodeAddress> add_or_update(const DhtId& id, const PeerId& peer, TimePoint now);
  /// Drops a node; the newest replacement takes its place.
  void remove(const DhtId& id);
  void remove(const PeerId& peer);

  std::optional<PeerId> peer_of(const DhtId& id) const;
  std::optional<DhtId> id_of(const PeerId& peer) const;
  /// The k nearest by XOR distance, ascending. Replacements do not count.
  std::vector<NodeAddress> nearest(const DhtId& query, std::size_t k,
                                   const std::optional<DhtId>& exclude = std::nullopt) const;
  bool contains(const DhtId& id) const { return peers_.contains(id); }
  std::size_t size() const { return active_; }
  std::size_t bucket_count() const { return buckets_.size(); }
  std::size_t replacement_count() const { return peers_.size() - active_; }
  /// A random id in each bucket not touched since `before`.
  std::vector<DhtId> stale_buckets(TimePoint before, Runtime& runtime) const;

 private:
  struct Bucket {
    DhtId lower, upper;  // both inside; they share their first `depth` bits and no more
    std::size_t depth = 0;
    std::vector<NodeAddress> nodes;  // least recently seen first
    std::deque<DhtId> replacements;  // oldest first
    std::unordered_set<DhtId> pinged;
    TimePoint updated{};
    bool holds(const DhtId& id) const { return lower <= id && id <= upper; }
  };
  std::size_t index_of(const DhtId& id) const;
  void split(std::size_t index);
  bool place(Bucket& bucket, const NodeAddress& node, TimePoint now);
  void collect(std::size_t first, std::size_t last, std::size_t bit, const DhtId& query, std::size_t wanted,
               std::vector<NodeAddress>& found) const;

  DhtId self_;
  std::size_t bucket_size_, depth_modulo_;
  std::vector<Bucket> buckets_;  // ascending
  std::unordered_map<DhtId, PeerId> peers_;
  std::unordered_map<PeerId, DhtId> ids_;
  std::size_t active_ = 0;
};

}  // namespace cohive::dht
