#include "routing_table.hpp"

#include <algorithm>

#include "cohive/core/runtime.hpp"

namespace cohive::dht {

RoutingTable::RoutingTable(DhtId self, std::size_t bucket_size, std::size_t depth_modulo)
    : self_(self), bucket_size_(bucket_size), depth_modulo_(std::max<std::size_t>(depth_modulo, 1)), buckets_(1) {
  buckets_[0].upper.bytes.fill(0xff);
}

std::size_t RoutingTable::index_of(const DhtId& id) const {
  const auto at = std::upper_bound(buckets_.begin(), buckets_.end(), id,
                                   [](const DhtId& value, const Bucket& bucket) { return value < bucket.lower; });
  return static_cast<std::size_t>(at - buckets_.begin()) - 1;
}

/// True when the node is in the bucket proper afterwards; else it is a replacement.
bool RoutingTable::place(Bucket& bucket, const DhtId& id, TimePoint now) {
  bucket.updated = now;
  if (const auto at = std::find(bucket.nodes.begin(), bucket.nodes.end(), id); at != bucket.nodes.end()) {
    bucket.nodes.splice(bucket.nodes.end(), bucket.nodes, at);
    return true;
  }
  bucket.replacements.remove(id);
  if (bucket.nodes.size() < bucket_size_) {
    bucket.nodes.push_back(id);
    ++active_;
    return true;
  }
  bucket.replacements.push_back(id);
  if (bucket.replacements.size() > bucket_size_) {  // ours: a bound against floods of invented nodes
    const DhtId oldest = bucket.replacements.front();
    bucket.replacements.pop_front();
    ids_.erase(peers_.at(oldest));
    peers_.erase(oldest);
  }
  return false;
}

std::optional<NodeAddress> RoutingTable::add_or_update(const DhtId& id, const PeerId& peer, TimePoint now) {
  if (id == self_) return std::nullopt;
  // One peer has one node: a restarted peer comes back under a new node id.
  if (const auto old = ids_.find(peer); old != ids_.end() && old->second != id) remove(DhtId(old->second));
  if (const auto old = peers_.find(id); old != peers_.end() && old->second != peer) return std::nullopt;  // taken
  peers_.insert_or_assign(id, peer);
  ids_.insert_or_assign(peer, id);
  for (;;) {
    const std::size_t index = index_of(id);
    Bucket& bucket = buckets_[index];
    if (place(bucket, id, now)) return std::nullopt;
    if (bucket.holds(self_) || bucket.depth % depth_modulo_ != 0) {
      split(index);
      continue;
    }
    for (const DhtId& candidate : bucket.nodes) {
      if (bucket.pinged.contains(candidate)) continue;
      bucket.pinged.insert(candidate);
      return NodeAddress{candidate, peers_.at(candidate)};
    }
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
  for (const auto* list : {&old.nodes, &old.replacements})
    for (const DhtId& id : *list) place(buckets_[index_of(id)], id, updated);
}

void RoutingTable::remove(const DhtId& id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Bucket& bucket = buckets_[index_of(id)];
  const std::size_t before = bucket.nodes.size();
  bucket.nodes.remove(id);
  bucket.replacements.remove(id);
  bucket.pinged.erase(id);
  active_ -= before - bucket.nodes.size();
  ids_.erase(found->second);
  peers_.erase(found);
  if (bucket.nodes.size() < bucket_size_ && !bucket.replacements.empty()) {
    bucket.nodes.push_back(bucket.replacements.back());
    bucket.replacements.pop_back();
    ++active_;
  }
}

void RoutingTable::remove(const PeerId& peer) {
  if (const auto found = ids_.find(peer); found != ids_.end()) remove(DhtId(found->second));
}

void RoutingTable::ping_done(const DhtId& id) { buckets_[index_of(id)].pinged.erase(id); }

std::optional<PeerId> RoutingTable::peer_of(const DhtId& id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<DhtId> RoutingTable::id_of(const PeerId& peer) const {
  const auto found = ids_.find(peer);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<NodeAddress> RoutingTable::nearest(const DhtId& query, std::size_t k, const std::optional<DhtId>& exclude) const {
  std::vector<std::pair<DhtId, const DhtId*>> ranked;
  ranked.reserve(active_);
  for (const Bucket& bucket : buckets_)
    for (const DhtId& id : bucket.nodes)
      if (!exclude || id != *exclude) ranked.emplace_back(id.distance(query), &id);
  const std::size_t kept = std::min(k, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(kept), ranked.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NodeAddress> result;
  result.reserve(kept);
  for (std::size_t i = 0; i < kept; ++i) result.push_back({*ranked[i].second, peers_.at(*ranked[i].second)});
  return result;
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
