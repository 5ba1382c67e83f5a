// The nodes that this one knows, by id: buckets that split near its own. Source: docs/wire/hivemind.md, section 3.3.
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

/// A node of the DHT as its peers know it: an id of the key space, and the peer behind it.
struct NodeEntry {
  DhtId id;
  PeerId peer;
  friend bool operator==(const NodeEntry&, const NodeEntry&) = default;
};

/// How many nodes of one network block a table takes, replacements included; 0: any number.
struct BlockLimits {
  std::size_t in_table = 0;
  std::size_t in_bucket = 0;
};

class RoutingTable {
 public:
  RoutingTable(DhtId self, std::size_t bucket_size, std::size_t depth_modulo, BlockLimits limits = {});

  /// Adds or refreshes. When the bucket is full and may not split: the least recently seen node, to be pinged.
  /// \param block  where the node speaks from, see p2p/network_block.hpp; nullopt: from somewhere that is not counted.
  ///               A block that has its share in a bucket that may not split gets no more, but its least recently seen
  ///               node there is to be pinged.
  std::optional<NodeEntry> add_or_update(const DhtId& id, const PeerId& peer, TimePoint now,
                                         std::optional<std::uint64_t> block = std::nullopt);
  /// Drops a node; the newest replacement takes its place.
  void remove(const DhtId& id);
  void remove(const PeerId& peer);

  std::optional<PeerId> peer_of(const DhtId& id) const;
  std::optional<DhtId> id_of(const PeerId& peer) const;
  /// The k nearest by XOR distance, ascending. Replacements do not count.
  std::vector<NodeEntry> nearest(const DhtId& query, std::size_t k,
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
    std::vector<NodeEntry> nodes;    // least recently seen first
    std::deque<DhtId> replacements;  // oldest first
    std::unordered_set<DhtId> pinged;
    TimePoint updated{};
    bool holds(const DhtId& id) const { return lower <= id && id <= upper; }
  };
  using Block = std::uint64_t;
  bool may_split(const Bucket& bucket) const { return bucket.holds(self_) || bucket.depth % depth_modulo_ != 0; }
  bool is_of(const DhtId& id, Block block) const;
  std::size_t count(const Bucket& bucket, Block block) const;
  bool evict(const DhtId& id, Block block, std::optional<NodeEntry>& doubtful);
  bool thin_out(const DhtId& id, Block block);
  void forget(std::unordered_map<DhtId, PeerId>::iterator node);
  std::size_t index_of(const DhtId& id) const;
  void split(std::size_t index);
  bool place(Bucket& bucket, const NodeEntry& node, TimePoint now);
  void collect(std::size_t first, std::size_t last, std::size_t bit, const DhtId& query, std::size_t wanted,
               std::vector<NodeEntry>& found) const;

  DhtId self_;
  std::size_t bucket_size_, depth_modulo_;
  std::vector<Bucket> buckets_;  // ascending
  std::unordered_map<DhtId, PeerId> peers_;
  std::unordered_map<PeerId, DhtId> ids_;
  BlockLimits limits_;
  std::unordered_map<DhtId, Block> blocks_;  // of nodes that have one
  std::unordered_map<Block, std::size_t> of_block_;
  std::size_t active_ = 0;
};

}  // namespace cohive::dht
