// The newcomer's side of a search: peers of a run, its guides, are asked where their group meets next.
//   newcomer -> rpc_join_group JoinRequest{hold_ms};   guide -> as the leader that it is, or NOT_A_LEADER with its
//   leader
// Source: docs/wire/extensions.md, section 4.
#include <algorithm>
#include <tuple>

#include "cohive/core/combine.hpp"
#include "search.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMostGuides = 3;  // that are asked within a min_matchmaking_time
constexpr int kMostTimesAsLong = 128;   // the longest pause between two requests to one

}  // namespace

/// A peer that averages under our key and may be in a group that meets again, unless leaders are to be asked first that
/// were found in the DHT since the last one: guides may keep our requests in vain.
std::optional<PeerId> Search::unasked_guide() const {
  const TimePoint lately = runtime_.now() - options_.min_matchmaking_time;
  const auto asked_lately =
      std::ranges::count_if(asked_guides_, [&](const auto& one) { return one.second.last > lately; });
  if (!context_.keys.reforms() || context_.known.leader() || static_cast<std::size_t>(asked_lately) >= kMostGuides)
    return std::nullopt;
  std::optional<PeerId> best;
  std::pair<std::size_t, bool> least{};  // times that it was asked; a stranger
  for (const auto* peers : {&not_looking_, &plan_.others})
    for (const PeerId& peer : *peers) {
      if (!may_be_guide(peer) || !context_.finder.dht.host().runs_cohive(peer)) continue;
      const auto asked = asked_guides_.find(peer);
      const std::pair cost{asked == asked_guides_.end() ? 0 : asked->second.times,
                           !context_.reputation.has_history(peer)};
      if (!best || cost < least) std::tie(best, least) = std::pair(peer, cost);
    }
  return best;
}

bool Search::may_be_guide(const PeerId& peer) const {
  const Dht& dht = context_.finder.dht;
  const auto asked = asked_guides_.find(peer);
  if (asked != asked_guides_.end() && !asked->second.pause.is_over(runtime_.now())) return false;
  return peer != context_.own() && context_.may_lead(peer) && !dht.doubts(peer) && !context_.known.has_left(peer) &&
         !followers_.contains(peer);
}

/// Asks a peer for the next group of its own: it keeps our request where it leads, or sends us to its leader. Meanwhile
/// the peers that we know may make a group here.
Task<void> Search::join_through(PeerId guide) {
  guided_at_ = updates_;
  const double own = expiration_from_now();
  // The leader offers its group for as long as we do, from when it begins to look.
  const double patience = own + to_seconds(options_.min_matchmaking_time + context_.stretch());
  const double hold_end = context_.now() + to_seconds(time_to_hold(own));
  co_await race(runtime_, ask_guide(guide, std::min(patience, end_), hold_end), until_found(*this));
}

Task<void> Search::ask_guide(PeerId guide, double expiration, double hold_end) {
  const auto ask = [&](const PeerId& peer, std::optional<PeerId>& redirected) {
    const Duration first = options_.min_matchmaking_time;
    Asked& asked = asked_guides_.try_emplace(peer, detail::GrowingPause(first, first * kMostTimesAsLong)).first->second;
    ++asked.times;
    asked.last = runtime_.now();
    asked.pause.begin(asked.last);
    const Duration hold = std::max<Duration>(from_seconds(hold_end - context_.now()), 1ms);
    return request_to_join(peer, expiration, hold, redirected);
  };
  std::optional<PeerId> leader, other;
  auto group = co_await ask(guide, leader);
  if (!group && !found_ && leader && may_be_guide(*leader)) group = co_await ask(*leader, other);
  if (group && !found_) found_ = std::move(group);
}

Task<void> Search::until_found(Search& self) {
  while (!self.found_) co_await self.context_.changed.wait();
}

}  // namespace cohive::averaging
