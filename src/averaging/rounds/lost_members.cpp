// Members of an all-reduce that are gone, silent, slow or late again: who is left out, and when.
#include <algorithm>
#include <ranges>

#include "all_reduce.hpp"
#include "averaging/groups/redial.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kWatchPeriod = 500ms;  // between two looks at the members that have gone
constexpr Duration kCloseWatch = 100ms;   // the same, where some were late in earlier rounds
constexpr Duration kAlone = 500ms;        // for these, when all others are there
constexpr Duration kRedialAfter = 1s;     // for a member that was never connected
constexpr Duration kLostGrace = 3s;       // for a member to come back after its connection broke
constexpr int kPatienceOfOthers = 75;  // percent of how long members wait for an answer, and for what comes before it

BanReason ban_reason(const std::error_code& code) {
  if (code == Errc::not_finite) return BanReason::not_finite;
  if (is_fault(code)) return BanReason::malformed;
  return code == cohive::Errc::timeout ? BanReason::silent : BanReason::gone;
}

}  // namespace

void AllReduce::cancel() {
  cancelled_ = true;
  reducer_.cancel();
}

void AllReduce::member_left(const PeerId& who) {
  const auto member = setup_.group->index_of(who);
  if (!member || *member == setup_.own_index) return;
  members_[*member].left = true;
  ban(*member, Error(Errc::members_left, who));
}

/// Whoever leads may have seen nothing of what a member did to this peer: it is in the group, and not waited for.
void AllReduce::leave_out_the_banned() {
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (member == setup_.own_index || !host_.reputation().is_banned(peer(member))) continue;
    members_[member].left = true;
    ban(member, Error(p2p::Errc::banned, peer(member)));
  }
}

void AllReduce::ban(std::size_t sender, const Error& why) {
  const bool complete = members_[sender].stream == MemberState::Stream::complete;
  if (cancelled_ || complete || reducer_.banned(sender) || reducer_.finished()) return;
  const BanReason reason = ban_reason(why.code());
  const auto text = log::format("leaving {} out of the round ({}): {}", peer(sender),
                                kBanReasons[static_cast<std::size_t>(reason)], why);
  log::write(is_fault(why.code()) ? log::Level::warn : log::Level::info, "averaging", text);
  metrics_.senders_banned[static_cast<std::size_t>(reason)].increment();
  lost_.push_back(peer(sender));
  blame(sender, why);
  reducer_.ban(sender);
}

void AllReduce::note_straggler(std::size_t member) {
  if (std::ranges::find(stragglers_, peer(member)) == stragglers_.end()) stragglers_.push_back(peer(member));
}

/// Members that go on without this one soon would leave those behind that wait for it to the end.
void AllReduce::name_stragglers() {
  if (named_ == stragglers_.size() || !setup_.on_stragglers) return;
  const auto news = stragglers_.begin() + static_cast<std::ptrdiff_t>(named_);
  named_ = stragglers_.size();
  setup_.on_stragglers({news, stragglers_.end()});
}

/// Other members may have named some since the last look.
void AllReduce::look_who_is_late() {
  if (!setup_.timeout_for) return;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    auto& patience = members_[member].patience;
    if (member == setup_.own_index || patience) continue;
    patience = setup_.timeout_for(peer(member));
    if (patience) patience_ = std::max(patience_.value_or(0s), *patience);
  }
}

Duration AllReduce::watch_period() const {
  return patience_ ? kCloseWatch : kWatchPeriod;
}

/// For a failure that is the member's own.
void AllReduce::blame(std::size_t member, const Error& why) {
  if (member == setup_.own_index || (why.peer() && *why.peer() == host_.id())) return;
  // Where members may have been told different things of their group, an honest one may have come to other parts.
  const bool told_otherwise = why.code() == Errc::bad_partition && setup_.group->view.empty();
  if (told_otherwise || ban_reason(why.code()) == BanReason::silent) note_straggler(member);
  if (told_otherwise || !is_fault(why.code())) return;
  liars_.push_back(peer(member));
  host_.reputation().report(peer(member), why == Errc::wrong_average ? p2p::Offence::lied : p2p::Offence::malformed);
}

/// Leaves members out that never begin to send, sooner when their connection broke, at once when they are gone.
Task<void> AllReduce::watch_senders(AllReduce& self) {
  const Deadline absent = timeout_after(self.runtime_, self.setup_.sender_timeout);
  const TimePoint late = self.runtime_.now() + kRedialAfter;
  Nursery redials(self.runtime_, "redials");
  for (;;) {
    const TimePoint now = self.runtime_.now();
    for (std::size_t i = 0; i < self.members_.size(); ++i) {
      if (i == self.setup_.own_index || self.members_[i].stream != MemberState::Stream::none) continue;
      self.ban_the_absent(i, absent, now);
      if (!self.may_have_ended(i, now >= late)) continue;
      self.members_[i].redialled = true;
      redials.spawn(redial(self, i), "redial");
    }
    self.ban_the_slow(now);
    self.look_who_is_late();
    self.ban_the_late_again(now);
    self.name_stragglers();
    co_await self.broken_.wait(self.runtime_.after(self.watch_period()));
  }
}

/// A sender may be slow as long as the round has time, and as long as the members that wait for a part with us do not
/// take us for silent. A slower one would void the round for all, or have us blamed for it. When the reducers' time is
/// over, nobody waits for our answers any more, however steadily a sender goes on.
void AllReduce::ban_the_slow(TimePoint now) {
  const Reducer::Awaited before = std::exchange(awaited_, reducer_.awaited());
  const Duration patience = setup_.reducer_timeout / 100 * kPatienceOfOthers;
  const bool others_wait = patience > 0s && awaited_.since && now - *awaited_.since >= patience;
  const bool late = setup_.senders_end.passed(now) && awaited_.part == before.part;
  const bool over = setup_.reducers_end.passed(now);
  if (!others_wait && !late && !over) return;
  for (std::size_t sender : awaited_.senders)
    if (others_wait || over || before.senders.contains(sender))
      ban(sender, Error(cohive::Errc::timeout, peer(sender), "its parts come too slowly for the others"));
}

/// Senders that were late in earlier rounds have as long as a round takes when they are in time, and a moment when all
/// others are there.
void AllReduce::ban_the_late_again(TimePoint now) {
  const Duration passed = now - std::exchange(looked_, now);
  const auto was_late = [this](std::size_t sender) { return members_[sender].patience.has_value(); };
  if (!patience_ || awaited_.senders.empty() || !std::ranges::all_of(awaited_.senders, was_late)) return;
  held_up_ += passed;
  if (held_up_ < kAlone || now - began_ < *patience_) return;
  for (std::size_t sender : awaited_.senders)
    ban(sender, Error(cohive::Errc::timeout, peer(sender), "it was late before, and is again"));
}

void AllReduce::ban_the_absent(std::size_t sender, Deadline absent, TimePoint now) {
  MemberState& member = members_[sender];
  if (!absent.is_never() && now >= absent.at() && !setup_.is_arriving(peer(sender)))
    ban(sender, Error(cohive::Errc::timeout, peer(sender), "it never sent a part"));
  if (host_.connected(peer(sender))) {
    member.seen = true;
    member.redialled = member.refused = false;
    member.gone.reset();
  } else if (member.seen || member.unreachable) {
    if (!member.gone) member.gone = now;
    if (now - *member.gone >= kLostGrace)
      ban(sender, Error(cohive::Errc::reset, peer(sender), "its connection broke before it sent a part"));
  }
}

/// Whether it is worth a redial: a reducer is called anyway, and a client cannot be. A member that reduces nothing and
/// is late will send over the same connection.
bool AllReduce::may_have_ended(std::size_t sender, bool late) const {
  const MemberState& member = members_[sender];
  const bool reachable = setup_.group->members[sender].mode != PeerMode::client;
  const bool missed = member.gone || !parts_by_owner_[sender].empty() || late;
  return reachable && missed && !member.redialled && !reducer_.banned(sender) && !host_.connected(peer(sender));
}

Task<void> AllReduce::redial(AllReduce& self, std::size_t sender) {
  MemberState& member = self.members_[sender];
  member.refused = co_await is_refused(self.host_, self.peer(sender));
  self.broken_.notify_all();
  if (member.refused && member.stream == MemberState::Stream::none)
    self.ban(sender, Error(cohive::Errc::reset, self.peer(sender), "connections to it are refused"));
}

/// Waits for the reducers, and no longer for those that were late in earlier rounds than the same, when all others have
/// answered.
Task<void> AllReduce::await_reducers(TaskGroup& exchanging, std::vector<Exchange>& exchanges) {
  const auto is_punctual_and_awaited = [&](std::size_t member) {
    const bool awaited = member != setup_.own_index && !parts_by_owner_[member].empty() && !exchanges[member].ended;
    return awaited && !members_[member].patience;
  };
  std::optional<TimePoint> held_up;  // by none but these
  while (!co_await within(runtime_, runtime_.after(watch_period()), exchanging.join())) {
    look_who_is_late();
    const TimePoint now = runtime_.now();
    if (!patience_ || std::ranges::any_of(std::views::iota(std::size_t{0}, members_.size()), is_punctual_and_awaited)) {
      held_up.reset();
    } else if (now - held_up.emplace(held_up.value_or(now)) >= kAlone && now - began_ >= *patience_) {
      exchanging.cancel();
      give_late_reducers_up(exchanges);
    }
    name_stragglers();
  }
}

void AllReduce::give_late_reducers_up(std::vector<Exchange>& exchanges) {
  for (std::size_t member = 0; member < members_.size(); ++member) {
    Exchange& exchange = exchanges[member];
    if (!members_[member].patience || exchange.failure || exchange.applied == parts_by_owner_[member].size()) continue;
    exchange.failure = Error(cohive::Errc::timeout, peer(member), "it was late before, and is again");
    note_straggler(member);
    metrics_.reducers_failed.increment();
    log::info("averaging", "{} of {} parts keep local values: {}", parts_by_owner_[member].size() - exchange.applied,
              parts_by_owner_[member].size(), *exchange.failure);
  }
  broken_.notify_all();
}

}  // namespace cohive::averaging
