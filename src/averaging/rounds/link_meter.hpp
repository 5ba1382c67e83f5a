// What a peer's link carries in each direction while it averages, estimated like the bottleneck bandwidth of BBR: the
// largest rate of delivery of the last rounds. A slow partner, or too little to send, makes some samples small, not the
// maximum; what the link no longer carries is forgotten after some rounds.
#pragma once

#include <deque>
#include <optional>

#include "cohive/averaging/round.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::averaging {

class LinkMeter {
 public:
  explicit LinkMeter(p2p::Host& host) : host_(host) {}

  /// Watches one round, until dropped.
  static Task<void> watch(LinkMeter& self);
  /// Bytes per second that both directions carry, within the caps of the process; nullopt before a round that was long
  /// enough to tell.
  std::optional<double> bandwidth() const;
  /// The largest rates of each direction; 0 before such a round.
  LinkRates rates() const;

 private:
  /// A stretch of one direction that is being measured.
  struct Stretch {
    TimePoint begin;
    std::uint64_t bytes = 0;  // the counter then
  };
  void measure(Stretch& stretch, std::uint64_t counter, double& best, Duration least) const;

  p2p::Host& host_;
  std::deque<LinkRates> rounds_;
};

}  // namespace cohive::averaging
