/// \file
/// Reputation: what peers did to this host that no honest peer does, whichever service they did it to. Loop thread
/// only.
///
/// A service reports an offence where it has proof of its own: a connection cannot be made to look like another peer's,
/// hearsay can. The peer is banned for a while then, longer each time: it is in no group and no donor of a state, is
/// not dialled where another peer named it, and its connections go first when a full host makes room. Offences are
/// forgotten one by one. A peer that has done its part in work with this host is no stranger, which counts where
/// strangers are to wait. Identities cost nothing, so a reputation bounds what one of them can do again and again; what
/// many of them can do once is bounded where they do it.
#pragma once

#include <cstddef>
#include <unordered_map>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/p2p/metrics.hpp"

namespace cohive::p2p {

/// What a host remembers of peers that misbehaved. Loop thread only.
class Reputation {
 public:
  static constexpr Duration kFirstTime = 20s;    ///< that a peer is banned; twice as long for each offence before
  static constexpr Duration kLongestTime = 1h;   ///< that a peer is banned
  static constexpr Duration kForgotten = 10min;  ///< after which one offence is forgotten
  static constexpr Duration kAcquainted = 1h;    ///< after which a peer that has done nothing more is a stranger again
  static constexpr std::size_t kMaxPeers = 10'000;  ///< remembered; of more, those that are banned longest

  /// Begins with a good opinion of all peers.
  Reputation(Runtime& runtime, const HostMetrics& metrics) : runtime_(runtime), metrics_(metrics) {}

  /// Notes an offence, and returns for how long the peer is banned now. One of a peer that is banned already is
  /// counted, makes that no longer, and yields 0.
  Duration report(const PeerId& peer, Offence offence);
  /// Whether the peer is to be kept away from.
  bool is_banned(const PeerId& peer) const;
  /// Returns how many offences of the peer are not forgotten.
  int offences(const PeerId& peer) const;
  /// Notes that the peer has done its part in work that took both.
  void record_success(const PeerId& peer);
  /// Whether the peer has done its part lately, and nothing against the rules since.
  bool has_history(const PeerId& peer) const;
  /// Whether any peer is.
  bool has_any_history() const;
  /// Returns how many peers are banned now.
  std::size_t banned() const;

 private:
  struct Record {
    TimePoint until{};
    int offences = 0;  // when it was last banned
  };
  int remembered(const Record& record) const;
  void evict();

  Runtime& runtime_;
  const HostMetrics& metrics_;
  std::unordered_map<PeerId, Record> records_;
  std::unordered_map<PeerId, TimePoint> acquaintances_;  // when they worked last
};

}  // namespace cohive::p2p
