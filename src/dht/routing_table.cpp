#include "routing_table.hpp"

#include <algorithm>

#include "cohive/core/runtime.hpp"

namespace cohive::dht {
namespace {

// Replacements of one bucket: a bound against floods of invented nodes, far above what a swarm of thousands needs.
constexpr std::size_t kMaxReplacements = 1000;

bool bit_of(const DhtId& id, std::size_t bit) {
  return id.bytes[bit / 8] >> (7 - bit % 8) & 1;
}

/// Of the first `limit` bits: how many two ids have in common before they differ.
std::size_t shared_bits(const DhtId& a, const DhtId& b, std::size_t limit) {
  const DhtId gap = a.distance(b);
  std::size_t bits = 0;
  while (bits < limit && !bit_of(gap, bits)) ++bits;
  return bits;
}

}  // namespace

RoutingTable::RoutingTable(DhtId self, std::size_t bucket_size, std::size_t depth_modulo, BlockLimits limits)
    : self_(self),
      bucket_size_(bucket_size),
      depth_modulo_(std::max<std::size_t>(depth_modulo, 1)),
      buckets_(1),
      limits_(limits) {
  buckets_[0].upper.bytes.fill(0xff);
}

std::size_t RoutingTable::index_of(const DhtId& id) const {
  const auto at = std::upper_bound(buckets_.begin(), buckets_.end(), id,
                                   [](const DhtId& value, const Bucket& bucket) { return value < bucket.lower; });
  return static_cast<std::size_t>(at - buckets_.begin()) - 1;
}

/// True when the node is in the bucket proper afterwards; else it is a replacement.
bool RoutingTable::place(Bucket& bucket, const NodeEntry& node, TimePoint now) {
  bucket.updated = now;
  bucket.pinged.erase(node.id);
  const auto at = std::find(bucket.nodes.begin(), bucket.nodes.end(), node);
  if (at != bucket.nodes.end()) {
    std::rotate(at, at + 1, bucket.nodes.end());
    return true;
  }
  std::erase(bucket.replacements, node.id);
  if (bucket.nodes.size() < bucket_size_) {
    bucket.nodes.push_back(node);
    ++active_;
    return true;
  }
  bucket.replacements.push_back(node.id);
  if (bucket.replacements.size() > kMaxReplacements) {
    const auto oldest = peers_.find(bucket.replacements.front());
    bucket.replacements.pop_front();
    forget(oldest);
  }
  return false;
}

void RoutingTable::forget(std::unordered_map<DhtId, PeerId>::iterator node) {
  if (const auto at = blocks_.find(node->first); at != blocks_.end()) {
    if (--of_block_[at->second] == 0) of_block_.erase(at->second);
    blocks_.erase(at);
  }
  ids_.erase(node->second);
  peers_.erase(node);
}

bool RoutingTable::is_of(const DhtId& id, Block block) const {
  const auto found = blocks_.find(id);
  return found != blocks_.end() && found->second == block;
}

std::size_t RoutingTable::count(const Bucket& bucket, Block block) const {
  std::size_t sum = 0;
  for (const NodeEntry& node : bucket.nodes) sum += is_of(node.id, block);
  for (const DhtId& id : bucket.replacements) sum += is_of(id, block);
  return sum;
}

/// False when the block of a new node has its share already.
bool RoutingTable::evict(const DhtId& id, Block block, std::optional<NodeEntry>& doubtful) {
  const auto all = of_block_.find(block);
  if (all == of_block_.end()) return true;
  // A swarm within one block must know itself well: buckets near us split, and each half has room again.
  while (limits_.in_bucket > 0 && count(buckets_[index_of(id)], block) >= limits_.in_bucket) {
    Bucket& bucket = buckets_[index_of(id)];
    if (may_split(bucket)) {
      split(index_of(id));
      continue;
    }
    for (const NodeEntry& candidate : bucket.nodes) {
      if (!is_of(candidate.id, block) || !bucket.pinged.insert(candidate.id).second) continue;
      doubtful = candidate;
      break;
    }
    return false;
  }
  return limits_.in_table == 0 || all->second < limits_.in_table || thin_out(id, block);
}

/// Takes a place from where the block has most among buckets that are not nearer to us: few far nodes are enough to
/// find a way, but all near ones are wanted. False when the newcomer would change nothing for the better.
bool RoutingTable::thin_out(const DhtId& id, Block block) {
  const Bucket& own = buckets_[index_of(id)];
  const std::size_t own_bits = shared_bits(own.lower, self_, own.depth);
  const std::size_t own_count = count(own, block);
  const Bucket* crowded = nullptr;
  std::size_t most = 0;
  for (const Bucket& bucket : buckets_) {
    const std::size_t bits = shared_bits(bucket.lower, self_, bucket.depth);
    if (&bucket == &own || bits > own_bits) continue;
    const std::size_t here = count(bucket, block);
    if (here <= most || here <= (bits < own_bits ? 1 : own_count + 1)) continue;
    crowded = &bucket;
    most = here;
  }
  if (!crowded) return false;
  const auto of_block = [&](const DhtId& one) { return is_of(one, block); };
  const auto spare = std::find_if(crowded->replacements.begin(), crowded->replacements.end(), of_block);
  const auto node = std::find_if(crowded->nodes.begin(), crowded->nodes.end(),
                                 [&](const NodeEntry& one) { return of_block(one.id); });
  remove(DhtId(spare != crowded->replacements.end() ? *spare : node->id));
  return true;
}

std::optional<NodeEntry> RoutingTable::add_or_update(const DhtId& id, const PeerId& peer, TimePoint now,
                                                     std::optional<Block> block) {
  if (id == self_) return std::nullopt;
  // One peer has one node: a restarted peer comes back under a new node id.
  if (const auto old = ids_.find(peer); old != ids_.end() && old->second != id) remove(DhtId(old->second));
  // A node id belongs to the peer that had it first: no peer takes over the place of another by claiming its id.
  if (const auto old = peers_.find(id); old != peers_.end() && old->second != peer) return std::nullopt;
  if (block && !peers_.contains(id)) {
    std::optional<NodeEntry> doubtful;
    if (!evict(id, *block, doubtful)) return doubtful;
    blocks_.emplace(id, *block);
    ++of_block_[*block];
  }
  peers_.emplace(id, peer);
  ids_.emplace(peer, id);
  for (;;) {
    const std::size_t index = index_of(id);
    Bucket& bucket = buckets_[index];
    if (place(bucket, {id, peer}, now)) return std::nullopt;
    if (may_split(bucket)) {
      split(index);
      continue;
    }
    for (const NodeEntry& candidate : bucket.nodes)
      if (bucket.pinged.insert(candidate.id).second) return candidate;
    return std::nullopt;
  }
}

void RoutingTable::split(std::size_t index) {
  Bucket old = std::move(buckets_[index]);
  // The range is a power of two: lower has zeros where upper has ones. The midpoint sets the highest such bit.
  Bucket left, right;
  left.depth = right.depth = old.depth + 1;
  left.updated = right.updated = old.updated;
  left.lower = right.lower = old.lower;
  left.upper = right.upper = old.upper;
  for (std::size_t byte = 0; byte < DhtId::kSize; ++byte) {
    const auto differing = static_cast<std::uint8_t>(old.lower.bytes[byte] ^ old.upper.bytes[byte]);
    if (!differing) continue;
    std::uint8_t bit = 0x80;
    while (!(differing & bit)) bit >>= 1;
    left.upper.bytes[byte] = static_cast<std::uint8_t>(old.upper.bytes[byte] & ~bit);
    right.lower.bytes[byte] = static_cast<std::uint8_t>(old.lower.bytes[byte] | bit);
    break;
  }
  active_ -= old.nodes.size();
  buckets_[index] = std::move(left);
  buckets_.insert(buckets_.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(right));
  const TimePoint updated = old.updated;
  for (const NodeEntry& node : old.nodes) place(buckets_[index_of(node.id)], node, updated);
  for (const DhtId& id : old.replacements) place(buckets_[index_of(id)], {id, peers_.at(id)}, updated);
}

void RoutingTable::remove(const DhtId& id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Bucket& bucket = buckets_[index_of(id)];
  const auto removed = std::erase_if(bucket.nodes, [&](const NodeEntry& node) { return node.id == id; });
  if (removed == 0) std::erase(bucket.replacements, id);
  bucket.pinged.erase(id);
  active_ -= removed;
  forget(found);
  if (bucket.nodes.size() < bucket_size_ && !bucket.replacements.empty()) {
    const DhtId newest = bucket.replacements.back();
    bucket.replacements.pop_back();
    bucket.nodes.push_back({newest, peers_.at(newest)});
    ++active_;
  }
}

void RoutingTable::remove(const PeerId& peer) {
  if (const auto found = ids_.find(peer); found != ids_.end()) remove(DhtId(found->second));
}

std::optional<PeerId> RoutingTable::peer_of(const DhtId& id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<DhtId> RoutingTable::id_of(const PeerId& peer) const {
  const auto found = ids_.find(peer);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

/// Buckets [first, last) agree on the bits before `bit`. Every id in the half that shares the query's next bit is
/// nearer than every id in the other half, so that half goes first and the other one only if it is needed.
void RoutingTable::collect(std::size_t first, std::size_t last, std::size_t bit, const DhtId& query, std::size_t wanted,
                           std::vector<NodeEntry>& found) const {
  if (found.size() >= wanted || first == last) return;
  if (last - first == 1) {
    const auto start = static_cast<std::ptrdiff_t>(found.size());
    found.insert(found.end(), buckets_[first].nodes.begin(), buckets_[first].nodes.end());
    std::sort(found.begin() + start, found.end(),
              [&](const NodeEntry& a, const NodeEntry& b) { return a.id.distance(query) < b.id.distance(query); });
    return;
  }
  const auto begin = buckets_.begin();
  const auto middle = static_cast<std::size_t>(
      std::partition_point(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(last),
                           [bit](const Bucket& bucket) { return !bit_of(bucket.lower, bit); }) -
      begin);
  if (bit_of(query, bit)) {
    collect(middle, last, bit + 1, query, wanted, found);
    collect(first, middle, bit + 1, query, wanted, found);
  } else {
    collect(first, middle, bit + 1, query, wanted, found);
    collect(middle, last, bit + 1, query, wanted, found);
  }
}

std::vector<NodeEntry> RoutingTable::nearest(const DhtId& query, std::size_t k,
                                             const std::optional<DhtId>& exclude) const {
  std::vector<NodeEntry> found;
  found.reserve(k + bucket_size_);
  collect(0, buckets_.size(), 0, query, k + (exclude ? 1 : 0), found);
  if (exclude) std::erase_if(found, [&](const NodeEntry& node) { return node.id == *exclude; });
  if (found.size() > k) found.resize(k);
  return found;
}

std::vector<DhtId> RoutingTable::stale_buckets(TimePoint before, Runtime& runtime) const {
  std::vector<DhtId> result;
  for (const Bucket& bucket : buckets_) {
    if (bucket.updated >= before) continue;
    DhtId id = DhtId::random(runtime);
    for (std::size_t i = 0; i < DhtId::kSize; ++i) {
      const auto free_bits = static_cast<std::uint8_t>(bucket.lower.bytes[i] ^ bucket.upper.bytes[i]);
      id.bytes[i] = static_cast<std::uint8_t>((bucket.lower.bytes[i] & ~free_bits) | (id.bytes[i] & free_bits));
    }
    result.push_back(id);
  }
  return result;
}

}  // namespace cohive::dht
