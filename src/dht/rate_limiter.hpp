// How much work each peer may ask for: a bucket per peer, which fills with time.
#pragma once

#include <unordered_map>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"
#include "core/token_bucket.hpp"

namespace cohive::dht {

class RateLimiter {
 public:
  /// \param per_second  what flows in  \param burst  what a bucket holds; a new peer's is full
  RateLimiter(double per_second, double burst) : per_second_(per_second), burst_(burst) {}

  /// Takes `cost` from the peer's bucket; false when it is empty. What is missing to the whole cost is owed: a large
  /// request is not passed by small ones for ever, and is served even where a bucket never holds as much. Without a
  /// rate all is allowed.
  bool allow(const PeerId& peer, double cost, TimePoint now) {
    if (per_second_ <= 0) return true;
    if (buckets_.size() >= kMaxPeers && !buckets_.contains(peer)) forget_full(now);
    TokenBucket& bucket = buckets_[peer];
    bucket.fill(now, per_second_, burst_);
    if (bucket.level <= 0) return false;
    bucket.level -= cost;
    return true;
  }
  std::size_t size() const { return buckets_.size(); }

 private:
  static constexpr std::size_t kMaxPeers = 10'000;
  /// A full bucket is that of a stranger.
  void forget_full(TimePoint now) {
    std::erase_if(buckets_, [&](const auto& item) { return item.second.level_at(now, per_second_, burst_) >= burst_; });
    if (buckets_.size() >= kMaxPeers) buckets_.clear();
  }
  double per_second_, burst_;
  std::unordered_map<PeerId, TokenBucket> buckets_;
};

}  // namespace cohive::dht
