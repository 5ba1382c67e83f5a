// How much work peers may ask for: a bucket for each peer, which fills with time, and a larger one for each network, as
// an attacker has one network and any number of identities.
#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"
#include "core/detail/token_bucket.hpp"

namespace cohive::dht {

class RateLimiter {
 public:
  static constexpr double kPeersOfANetwork = 16;  ///< so many may ask for all that one may

  /// \param per_second  what flows in  \param burst  what a bucket holds; a new peer's is full
  RateLimiter(double per_second, double burst)
      : peers_{per_second, burst, {}}, networks_{kPeersOfANetwork * per_second, kPeersOfANetwork * burst, {}} {}

  /// Takes `cost` from the buckets of the peer and its network; false when one of them is empty. What is missing to the
  /// whole cost is owed: a large request is not passed by small ones for ever, and is served even where a bucket never
  /// holds as much. Without a rate all is allowed.
  /// \param network  empty for peers of this machine, which are not counted together
  bool allow(const PeerId& peer, const std::string& network, double cost, TimePoint now) {
    if (peers_.per_second <= 0) return true;
    TokenBucket& own = peers_.filled(peer, now);
    TokenBucket* all = network.empty() ? nullptr : &networks_.filled(network, now);
    if (own.level <= 0 || (all && all->level <= 0)) return false;
    own.level -= cost;
    if (all) all->level -= cost;
    return true;
  }
  /// Takes what a request has turned out to cost beyond that.
  void charge(const PeerId& peer, const std::string& network, double cost, TimePoint now) {
    if (peers_.per_second <= 0) return;
    peers_.filled(peer, now).level -= cost;
    if (!network.empty()) networks_.filled(network, now).level -= cost;
  }
  std::size_t size() const { return std::max(peers_.buckets.size(), networks_.buckets.size()); }

 private:
  static constexpr std::size_t kMaxBuckets = 10'000;
  template <class Key>
  struct Buckets {
    double per_second, burst;
    std::unordered_map<Key, TokenBucket> buckets;

    TokenBucket& filled(const Key& key, TimePoint now) {
      if (buckets.size() >= kMaxBuckets && !buckets.contains(key)) evict(now);
      TokenBucket& bucket = buckets[key];
      bucket.fill(now, per_second, burst);
      return bucket;
    }
    /// A full bucket is that of a stranger. When too few are, the half goes that owes least.
    void evict(TimePoint now) {
      std::vector<double> levels;
      for (const auto& [key, bucket] : buckets) levels.push_back(bucket.level_at(now, per_second, burst));
      const auto middle = levels.begin() + static_cast<std::ptrdiff_t>(levels.size() / 2);
      std::ranges::nth_element(levels, middle);
      const double least = std::min(*middle, burst);
      std::erase_if(buckets, [&](const auto& item) { return item.second.level_at(now, per_second, burst) >= least; });
    }
  };
  Buckets<PeerId> peers_;
  Buckets<std::string> networks_;
};

}  // namespace cohive::dht
