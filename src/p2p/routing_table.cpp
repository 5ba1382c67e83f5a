#include "routing_table.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace cohive::p2p {

RoutingTable::RoutingTable(const PeerId& self, BlockLimits limits, Useful useful)
    : self_(self), self_key_(key_of(self)), limits_(limits), useful_(std::move(useful)) {}

RoutingTable::Key RoutingTable::distance(const Key& a, const Key& b) {
  Key result;
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = a[i] ^ b[i];
  return result;
}

std::size_t RoutingTable::bucket_of(const Key& key) const {
  const Key gap = distance(key, self_key_);
  for (std::size_t i = 0; i < gap.size(); ++i)
    if (gap[i]) return i * 8 + static_cast<std::size_t>(std::countl_zero(gap[i]));
  return 256;
}

std::vector<PeerId> RoutingTable::nearest(const Key& key, std::size_t count,
                                          const std::function<bool(const PeerId&)>& wanted) const {
  // The first 64 bits decide: no two of a table's peers agree on them but by chance.
  const auto prefix = [](const Key& of) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | of[i];
    return bits;
  };
  const std::uint64_t wanted_prefix = prefix(key);
  std::vector<std::pair<std::uint64_t, const PeerId*>> ranked;
  ranked.reserve(entries_.size());
  for (const auto& [peer, entry] : entries_) ranked.emplace_back(prefix(entry.key) ^ wanted_prefix, &peer);
  // A heap: only peers that are taken out are put in order, and only they are looked at closely.
  const auto farther = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::make_heap(ranked.begin(), ranked.end(), farther);
  std::vector<PeerId> result;
  for (auto end = ranked.end(); end != ranked.begin() && result.size() < count; --end) {
    std::pop_heap(ranked.begin(), end, farther);
    const PeerId& nearest = *std::prev(end)->second;
    if (wanted(nearest)) result.push_back(nearest);
  }
  return result;
}

std::span<const PeerId> RoutingTable::peers_in(std::size_t bucket) const {
  const auto found = buckets_.find(bucket);
  return found == buckets_.end() ? std::span<const PeerId>() : found->second;
}

void RoutingTable::remove(const PeerId& peer) {
  const auto found = entries_.find(peer);
  if (found == entries_.end()) return;
  std::erase(buckets_[bucket_of(found->second.key)], peer);
  entries_.erase(found);
}

bool RoutingTable::would_take(const PeerId& peer) const {
  const std::size_t bucket = bucket_of(key_of(peer));
  return !is_full(bucket) || replaceable_in(bucket, {});
}

void RoutingTable::insert(const PeerId& peer, std::optional<std::uint64_t> block) {
  if (peer == self_ || entries_.contains(peer)) return;
  const Key key = key_of(peer);
  const std::size_t bucket = bucket_of(key);
  if (block && !evict(bucket, *block)) return;
  if (is_full(bucket)) {
    const auto gone = replaceable_in(bucket, {});
    if (!gone) return;
    remove(*gone);
  }
  buckets_[bucket].push_back(peer);
  entries_.emplace(peer, Entry{key, block});
}

/// Keeps a block to its share of the table and of the bucket. False when all of its places are in use.
bool RoutingTable::evict(std::size_t bucket, std::uint64_t block) {
  const auto in_table = std::ranges::count_if(entries_, [block](const auto& one) { return one.second.block == block; });
  const auto in_bucket =
      std::ranges::count_if(peers_in(bucket), [&](const PeerId& peer) { return entries_.at(peer).block == block; });
  const auto reached = [](auto count, std::size_t limit) { return limit > 0 && std::cmp_greater_equal(count, limit); };
  const bool bucket_reached = reached(in_bucket, limits_.in_bucket);
  if (!bucket_reached && !reached(in_table, limits_.in_table)) return true;
  const auto gone = bucket_reached ? replaceable_in(bucket, block) : replaceable_of(block);
  if (gone) remove(*gone);
  return gone.has_value();
}

/// Of a bucket, and of a block or all: a peer that is not worth its place, the oldest one.
std::optional<PeerId> RoutingTable::replaceable_in(std::size_t bucket, std::optional<std::uint64_t> block) const {
  for (const PeerId& peer : peers_in(bucket))
    if ((!block || entries_.at(peer).block == block) && !useful_(peer)) return peer;
  return std::nullopt;
}

/// Of a block, in the whole table: a peer that is not worth its place.
std::optional<PeerId> RoutingTable::replaceable_of(std::uint64_t block) const {
  for (const auto& [peer, entry] : entries_)
    if (entry.block == block && !useful_(peer)) return peer;
  return std::nullopt;
}

}  // namespace cohive::p2p
