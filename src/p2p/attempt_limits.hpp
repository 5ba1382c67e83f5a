// How often something may be done for a peer, for a network, for a part of it and in all.
#pragma once

#include <limits>
#include <string>
#include <unordered_map>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::p2p {

class AttemptLimits {
 public:
  struct Limits {
    Duration window;
    std::size_t per_peer, per_network, in_all;
    std::size_t per_part = std::numeric_limits<std::size_t>::max();  ///< of a network, where take() is told one
  };
  AttemptLimits(Runtime& runtime, Limits limits) : runtime_(runtime), limits_(limits) {}

  /// Counts an attempt; false when it is one too many. Counting begins anew with each window.
  bool take(const PeerId& peer, const std::string& network, const std::string& part = {}) {
    const TimePoint now = runtime_.now();
    if (now >= window_end_) {
      of_peers_.clear();
      of_networks_.clear();
      of_parts_.clear();
      in_all_ = 0;
      // Of random length, so that the moment at which counting begins anew cannot be known.
      window_end_ = now + from_seconds(to_seconds(limits_.window) * (1 + runtime_.random_unit() / 4));
    }
    // A limit that is reached keeps what it counts small: one entry for each attempt that was let through.
    if (in_all_ >= limits_.in_all || count(of_peers_, peer) >= limits_.per_peer ||
        count(of_networks_, network) >= limits_.per_network || count(of_parts_, part) >= limits_.per_part)
      return false;
    ++of_peers_[peer];
    ++of_networks_[network];
    if (!part.empty()) ++of_parts_[part];
    ++in_all_;
    return true;
  }

 private:
  template <class Map>
  static std::size_t count(const Map& map, const typename Map::key_type& key) {
    const auto found = map.find(key);
    return found == map.end() ? 0 : found->second;
  }
  Runtime& runtime_;
  Limits limits_;
  TimePoint window_end_{};
  std::unordered_map<PeerId, std::size_t> of_peers_;
  std::unordered_map<std::string, std::size_t> of_networks_, of_parts_;
  std::size_t in_all_ = 0;
};

}  // namespace cohive::p2p
