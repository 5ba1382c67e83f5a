// Peers that failed lately: not asked again for a while, longer each time. Source: docs/wire/hivemind.md, section 3.9.
#pragma once

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"

namespace cohive::dht {

class Blacklist {
 public:
  Blacklist(Duration base, double rate) : base_(base), rate_(rate) {}

  bool contains(const PeerId& peer, TimePoint now) const {
    const auto found = bans_.find(peer);
    return found != bans_.end() && now < found->second.until;
  }
  void succeeded(const PeerId& peer) { bans_.erase(peer); }
  /// Calls that fail during a ban do not make it longer.
  void failed(const PeerId& peer, TimePoint now) {
    if (base_ <= Duration::zero() || contains(peer, now)) return;
    if (bans_.size() >= kMaxPeers) forget_old(now);
    Ban& ban = bans_[peer];
    const double seconds = to_seconds(base_) * std::pow(rate_, ban.count);
    ban.until = now + from_seconds(std::min(seconds, kLongestSeconds));
    ban.count = std::min(ban.count + 1, kMaxCount);
  }

 private:
  static constexpr std::size_t kMaxPeers = 10'000;
  static constexpr double kLongestSeconds = 3600;
  static constexpr int kMaxCount = 60;
  struct Ban {
    TimePoint until{};
    int count = 0;
  };
  void forget_old(TimePoint now) {
    std::erase_if(bans_, [now](const auto& item) { return item.second.until <= now; });
    if (bans_.size() >= kMaxPeers) bans_.clear();
  }
  Duration base_;
  double rate_;
  std::unordered_map<PeerId, Ban> bans_;
};

}  // namespace cohive::dht
