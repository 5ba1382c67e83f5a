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
  /// Tells whether anything was held against a peer lately: also when it may be asked again.
  bool holds(const PeerId& peer, TimePoint now) const {
    const auto found = bans_.find(peer);
    return found != bans_.end() && now < found->second.until + kDoubt;
  }
  /// Tells whether a peer failed when it was asked last, lately, and has not shown itself since.
  bool doubts(const PeerId& peer, TimePoint now) const { return holds(peer, now) && !bans_.at(peer).answered; }
  void succeeded(const PeerId& peer) { bans_.erase(peer); }
  /// It has answered something else than what it failed at: it may be back, or just that may be too much for it. Half
  /// of a ban it has to sit out.
  void answered(const PeerId& peer, TimePoint now) {
    const auto found = bans_.find(peer);
    if (found == bans_.end()) return;
    Ban& ban = found->second;
    if (ban.count == 0) return succeeded(peer);
    ban.answered = true;
    if (now + ban.length / 2 >= ban.until) ban.until = std::min(ban.until, now);
  }
  /// It may be asked, but did not answer something else.
  void doubt(const PeerId& peer, TimePoint now) {
    if (base_ > Duration::zero() && !contains(peer, now) && !doubts(peer, now)) {
      Ban& ban = ban_of(peer, now);
      ban.until = now;
      ban.answered = false;
    }
  }
  /// Calls that fail during a ban do not make it longer.
  /// \param grows  whether the next ban is longer than this one
  void failed(const PeerId& peer, TimePoint now, bool grows = true) {
    if (base_ <= Duration::zero() || contains(peer, now)) return;
    Ban& ban = ban_of(peer, now);
    const double seconds = to_seconds(base_) * std::pow(rate_, ban.count);
    ban.length = from_seconds(std::min(seconds, kLongestSeconds));
    ban.until = now + ban.length;
    if (grows) ban.count = std::min(ban.count + 1, kMaxCount);
    ban.answered = false;
  }

 private:
  static constexpr std::size_t kMaxPeers = 10'000;
  static constexpr double kLongestSeconds = 3600;
  static constexpr int kMaxCount = 60;
  static constexpr Duration kDoubt = std::chrono::minutes(1);  // after the end of a ban
  struct Ban {
    TimePoint until{};
    Duration length{};
    int count = 0;
    bool answered = false;  // since it failed
  };
  Ban& ban_of(const PeerId& peer, TimePoint now) {
    if (bans_.size() >= kMaxPeers) {
      std::erase_if(bans_, [now](const auto& item) { return item.second.until <= now; });
      if (bans_.size() >= kMaxPeers) bans_.clear();
    }
    return bans_[peer];
  }
  Duration base_;
  double rate_;
  std::unordered_map<PeerId, Ban> bans_;
};

}  // namespace cohive::dht
