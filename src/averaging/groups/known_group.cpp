#include "known_group.hpp"

#include <algorithm>
#include <iterator>

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxNewcomers = 64;  // waiting for one is waiting for all
constexpr std::size_t kOftenInVain = 3;    // that a newcomer is waited for though it asked and did not come
constexpr int kTimesAsWary = 4;            // as long as a stranger was waited for in vain, none is
constexpr std::size_t kMaxLeft = 4096;     // remembered
constexpr std::size_t kFewestForged = 3;   // honest members may be lost before they ever came, but hardly so many
constexpr Duration kStale = 5s;            // that a declaration is found after it was taken back

}  // namespace

void KnownGroup::found(const Group& group, bool reforms, TimePoint now) {
  last_members_.clear();
  last_leader_ = group.leader;
  for (const Member& member : group.members) {
    came(member.peer);
    if (member.peer != own_) last_members_.insert(member.peer);
  }
  searched(now);
  reforming_.reset();
  if (!reforms) return;
  reforming_ = Reforming{{}, {}, group.leader};
  for (const Member& member : group.members) {
    reforming_->members.insert(member.peer);
    if (member.mode != PeerMode::client) reforming_->may_lead.insert(member.peer);
  }
}

bool KnownGroup::is_forged(const RoundEnd& end) const {
  if (!last_leader_ || *last_leader_ == own_) return false;
  const std::set<PeerId> absent(end.absent.begin(), end.absent.end());
  const auto strangers = static_cast<std::size_t>(std::ranges::count_if(
      absent, [this](const PeerId& peer) { return peer != *last_leader_ && !reputation_.has_history(peer); }));
  return strangers >= kFewestForged && strangers > end.report->heard_from().size();
}

std::optional<PeerId> KnownGroup::round_ended(const RoundEnd& end) {
  if (!end.report) {
    forget();
    return std::nullopt;
  }
  const auto lost = end.report->lost();
  lost_ = {lost.begin(), lost.end()};
  lost_.erase(own_);
  if (is_forged(end)) {
    forget();
    return last_leader_;
  }
  workers_.clear();
  for (const PeerId& peer : end.report->contributors())
    if (peer != own_) workers_.insert(peer);
  drop_members([this](const PeerId& peer) { return lost_.contains(peer); });
  return std::nullopt;
}

std::vector<PeerId> KnownGroup::counterparts() const {
  if (!reforming_) return {};
  if (!is_led_here()) return {reforming_->leader};
  std::vector<PeerId> others;
  std::ranges::copy_if(reforming_->members, std::back_inserter(others),
                       [this](const auto& one) { return one != own_; });
  others.insert(others.end(), newcomers_.begin(), newcomers_.end());
  return others;
}

void KnownGroup::asked(const PeerId& peer, TimePoint now) {
  left_.erase(peer);
  if (const auto before = in_vain_.find(peer); before != in_vain_.end() && before->second.pause.is_over(now))
    before->second.asks_again = true;
}

void KnownGroup::searched(TimePoint now) {
  for (const PeerId& peer : newcomers_)
    if (!came_.contains(peer)) has_not_come(peer, now);
  newcomers_.clear();
  came_.clear();
}

void KnownGroup::has_not_come(const PeerId& newcomer, TimePoint now) {
  if (is_wary_of(newcomer, now)) return;
  if (in_vain_.size() >= kMaxLeft) in_vain_.clear();
  InVain& record = in_vain_[newcomer];
  record.asks_again = false;
  if (++record.times >= kOftenInVain) record.pause.begin(now);
  if (!reputation_.has_history(newcomer)) wary_until_ = now + newcomers_time_ * kTimesAsWary;
}

void KnownGroup::met(const PeerId& peer) {
  if (!reforming_ || peer == own_ || reforming_->members.contains(peer)) return;
  if (const auto before = in_vain_.find(peer); before != in_vain_.end() && !before->second.asks_again) return;
  if (has_left(peer)) return;
  if ((is_led_here() || is_full()) && newcomers_.size() < kMaxNewcomers) newcomers_.insert(peer);
  if (is_full()) forget();  // full groups mix
}

void KnownGroup::left(const PeerId& peer, TimePoint now) {
  if (left_.size() >= kMaxLeft) left_.erase(left_.begin());
  left_[peer] = now;
  if (newcomers_.erase(peer) > 0 && !came_.contains(peer)) has_not_come(peer, now);  // asking and leaving is as cheap
  if (!reforming_ || !reforming_->members.contains(peer)) return;
  const auto next = successor();
  reforming_->drop(peer);
  if (peer == reforming_->leader && next) reforming_->leader = *next;
  if (!reforming_->members.contains(reforming_->leader) || reforming_->members.size() < 2) forget();
}

std::optional<PeerId> KnownGroup::successor() const {
  const auto next =
      std::ranges::find_if(reforming_->may_lead, [this](const PeerId& one) { return one != reforming_->leader; });
  return next == reforming_->may_lead.end() ? std::nullopt : std::optional(*next);
}

void KnownGroup::declared(const PeerId& peer, TimePoint now) {
  const auto at = left_.find(peer);
  if (at != left_.end() && now - at->second > kStale) left_.erase(at);
}

std::size_t KnownGroup::left_since(TimePoint time) const {
  return static_cast<std::size_t>(std::ranges::count_if(left_, [&](const auto& one) { return one.second >= time; }));
}

bool KnownGroup::anyone_remains() const {
  const auto may_come = [this](const PeerId& peer) { return !has_left(peer) && !was_lost(peer); };
  return std::ranges::any_of(last_members_, may_come) || !newcomers_.empty();
}

}  // namespace cohive::averaging
