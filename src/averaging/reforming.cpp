// Re-forming: the members of a group that has averaged meet again at its leader, without the DHT and without waiting
// for a time.
//   follower -> JoinRequest{reforms, hold_ms};   leader -> [NO_CODE when it is not looking yet,] ACCEPTED,
//   and BEGIN_ALLREDUCE{reforms} once all are there: two round trips at most after the last one came.
// Only groups whose members all do so; with a Python peer among them groups form as ever. A member that does not come
// is waited for until the earliest declaration among those present runs out, as ever. Newcomers declare themselves in
// the DHT; the leader sees them there or refuses their request while it is not looking, and waits for them the next
// time. Groups with bits draw new ones after every round and never re-form.
#include <algorithm>

#include "matchmaking.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kLongestHold = 60s;     // that we keep a request
constexpr std::size_t kMaxNewcomers = 64;  // waiting for one is waiting for all

}  // namespace

void Matchmaking::remember(const Group& group, bool reforms) {
  known_.reset();
  if (!reforms || !bits_.empty()) return;
  known_ = Known{{}, group.leader};
  for (const auto& member : group.members) known_->members.insert(member.peer);
  look_around();
}

void Matchmaking::round_ended(const std::vector<PeerId>& lost) {
  lost_ = {lost.begin(), lost.end()};
  lost_.erase(dht_.host().id());
  if (!known_) return;
  if (lost_.contains(known_->leader)) return forget_group();
  for (const auto& peer : lost_) known_->members.erase(peer);
  if (known_->members.size() < 2) return forget_group();
  look_around();
}

/// A member of the known group, whom we need not ask whether it leads: it comes to us.
bool Matchmaking::will_come(const PeerId& peer) const {
  return followers_.contains(peer) || (expects(peer) && runtime_.now() < grace_end_);
}

bool Matchmaking::known_group_is_here() const {
  if (!leads_known_group() || followers_.size() + 1 < std::max(options_.min_group_size, expected_)) return false;
  const auto here = [&](const PeerId& peer) { return peer == dht_.host().id() || followers_.contains(peer); };
  return std::all_of(known_->members.begin(), known_->members.end(), here) &&
         std::all_of(newcomers_.begin(), newcomers_.end(), here);
}

/// How long the known leader may keep our request, so that there is time to find another one afterwards.
Duration Matchmaking::longest_hold(double expiration) const {
  return std::clamp<Duration>(from_seconds(expiration - now()) - options_.request_timeout, 1ms, kLongestHold);
}

/// Keeps the request of a member of the known group until we look for a group ourselves. All requests end with the
/// first, so that those who waited for us in vain find each other in time.
Task<Result<>> Matchmaking::hold(rpc::ServerStream& stream, PeerId peer, Duration limit) {
  if (ready() && lock_.available() > 0) co_return ok();
  hold_end_ = std::min(hold_end_, runtime_.now() + std::min(limit, kLongestHold));
  if (!ready() && runtime_.now() >= hold_end_) co_return ok();
  proto::MessageFromLeader patience;
  patience.set_code(proto::NO_CODE);
  auto sent = co_await send(stream, patience, runtime_.after(options_.request_timeout));
  while (sent && !ready() && expects(peer) && runtime_.now() < hold_end_) co_await changed_.wait(Deadline(hold_end_));
  co_return sent;
}

/// Somebody else averages under our key.
void Matchmaking::met(const PeerId& peer) {
  if (!known_ || peer == dht_.host().id() || known_->members.contains(peer)) return;
  if (options_.target_group_size && known_->members.size() >= options_.target_group_size) {
    forget_group();  // full groups mix
  } else if (leads_known_group() && newcomers_.size() < kMaxNewcomers) {
    newcomers_.insert(peer);
  }
}

void Matchmaking::look_around() {
  const bool full = options_.target_group_size && known_->members.size() >= options_.target_group_size;
  if (looking_around_ || (!full && !leads_known_group())) return;
  looking_around_ = true;
  background_.spawn(look_for_newcomers(*this), "look for newcomers");
}

/// Counts also those that have stopped looking for a moment: other groups re-form like ours.
Task<void> Matchmaking::look_for_newcomers(Matchmaking& self) {
  auto declared = co_await self.dht_.get(self.key(), true);
  self.looking_around_ = false;
  if (!declared) co_return;
  for (const auto& [subkey, entry] : declared->entries()) {
    const auto* bytes = subkey.get_if<msgpack::Bin>();
    const auto peer = bytes ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
    if (peer && !self.lost_.contains(*peer)) self.met(*peer);
  }
}

}  // namespace cohive::averaging
