// The peers that serve peer routing, by their distance from us. Source: docs/wire/libp2p.md, section 9.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/peer_id.hpp"

namespace cohive::p2p {

class RoutingTable {
 public:
  using Key = crypto::Sha256Digest;
  static constexpr std::size_t kBucketSize = 20;  // k

  /// How many peers of one network block may be in the table and in one bucket; 0: any number.
  struct BlockLimits {
    std::size_t in_table, in_bucket;
  };
  /// Returns whether a peer is worth its place: it is connected, and peers could be told how to reach it.
  using Useful = std::function<bool(const PeerId&)>;
  RoutingTable(const PeerId& self, BlockLimits limits, Useful useful);

  /// \param block  of the address that the peer speaks from, see network_block.hpp
  void insert(const PeerId& peer, std::optional<std::uint64_t> block);
  void remove(const PeerId& peer);
  bool contains(const PeerId& peer) const { return entries_.contains(peer); }
  std::size_t size() const noexcept { return entries_.size(); }
  /// Returns whether a new peer would find a place.
  bool would_take(const PeerId& peer) const;
  /// The peers that `wanted` takes, of the `count` nearest.
  std::vector<PeerId> nearest(const Key& key, std::size_t count,
                              const std::function<bool(const PeerId&)>& wanted) const;

  static Key key_of(const PeerId& peer) { return crypto::sha256(peer.bytes()); }
  static Key distance(const Key& a, const Key& b);

 private:
  struct Entry {
    Key key;
    std::optional<std::uint64_t> block;
  };
  std::size_t bucket_of(const Key& key) const;
  std::span<const PeerId> peers_in(std::size_t bucket) const;
  bool is_full(std::size_t bucket) const { return peers_in(bucket).size() >= kBucketSize; }
  std::optional<PeerId> replaceable_in(std::size_t bucket, std::optional<std::uint64_t> block) const;
  std::optional<PeerId> replaceable_of(std::uint64_t block) const;
  bool evict(std::size_t bucket, std::uint64_t block);

  PeerId self_;
  Key self_key_;
  BlockLimits limits_;
  Useful useful_;
  std::unordered_map<PeerId, Entry> entries_;
  std::unordered_map<std::size_t, std::vector<PeerId>> buckets_;  // no more than kBucketSize peers in each
};

}  // namespace cohive::p2p
