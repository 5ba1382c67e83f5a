// What a peer remembers of its groups and of the peers it has heard of since: the members it expects the next time.
// Re-forming: the members of a group that has averaged meet again at its leader, without the DHT and without waiting
// for a time.
//   follower -> JoinRequest{reforms, hold_ms};   leader -> [NO_CODE when it is not looking yet,] ACCEPTED,
//   and BEGIN_ALLREDUCE{reforms} once all are there: two round trips at most after the last one came.
// When the leader's process has ended, the first of the remaining members in the order of their ids leads: all know the
// same members, so they meet there.
// Only groups whose members all do so; with a Python peer among them groups form as ever. A member that does not come
// is waited for until the earliest declaration among those present runs out, as ever. Newcomers ask a member that they
// know, or declare themselves in the DHT; the leader keeps their request while it is not looking, or sees them there,
// and waits for them the next time. Groups with bits draw new ones after every round and never re-form.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohive/averaging/group_finder.hpp"
#include "cohive/p2p/reputation.hpp"
#include "core/detail/growing_pause.hpp"

namespace cohive::averaging {

class KnownGroup {
 public:
  /// \param target_size     of groups; 0: unbounded
  /// \param newcomers_time  that a group waits for newcomers, from when its leader begins to look
  KnownGroup(PeerId own, std::size_t target_size, Duration newcomers_time, p2p::Reputation& reputation)
      : own_(own), target_size_(target_size), newcomers_time_(newcomers_time), reputation_(reputation) {}

  /// A group was found. \param reforms  all its members remember it
  void found(const Group& group, bool reforms, TimePoint now);
  /// Its round has ended. Returns its leader where that has made up members, as far as can be seen: more than did their
  /// part were never in a round with us, did not come, and cannot be reached. Such a group is forgotten.
  std::optional<PeerId> round_ended(const RoundEnd& end);
  /// The members of the last round that have done their part, as far as was seen here. Once.
  std::set<PeerId> take_contributors() { return std::exchange(workers_, {}); }
  /// Members of the known group that `is_unwanted` are not waited for. Without its leader there is no such group: it
  /// may be there again, so that all look for a new one.
  template <class IsUnwanted>
  void drop_members(IsUnwanted is_unwanted) {
    if (!reforming_) return;
    for (const PeerId& peer : std::set<PeerId>(reforming_->members))
      if (peer != own_ && is_unwanted(peer)) reforming_->drop(peer);
    if (!reforming_->members.contains(reforming_->leader) || reforming_->members.size() < 2) forget();
  }
  /// The next search begins anew.
  void forget() { reforming_.reset(); }

  /// The leader of the group that meets again, where there is one.
  std::optional<PeerId> leader() const { return reforming_ ? std::optional(reforming_->leader) : std::nullopt; }
  bool is_led_here() const { return reforming_ && reforming_->leader == own_; }
  bool is_full() const { return reforming_ && target_size_ && reforming_->members.size() >= target_size_; }
  /// The peers that meet us: all members and newcomers where it is led, the leader elsewhere.
  std::vector<PeerId> counterparts() const;
  /// A member that comes to us by itself.
  bool expects(const PeerId& peer) const { return is_led_here() && reforming_->members.contains(peer); }
  /// A member that may come to us: because we lead, or because it has noticed sooner than we did that the leader is
  /// gone.
  bool may_expect(const PeerId& peer) const {
    return reforming_ && reforming_->members.contains(peer) && (is_led_here() || successor() == own_);
  }
  /// Whether all members are here that we wait for.
  /// \param others  the peers that are here, beside ourselves
  /// \param began   when we began to look for them
  template <class Peers>
  bool is_here(const Peers& others, std::size_t least, TimePoint began, TimePoint now) const {
    if (!is_led_here() || others.size() + 1 < least) return false;
    const auto here = [&](const PeerId& peer) { return peer == own_ || others.contains(peer); };
    if (!std::ranges::all_of(reforming_->members, here)) return false;
    if (now >= began + newcomers_time_) return true;
    return std::ranges::all_of(newcomers_, [&](const PeerId& peer) { return here(peer) || is_wary_of(peer, now); });
  }

  /// Another peer averages under our key.
  void met(const PeerId& peer);
  /// It averages no more. \param now  to know later how fresh that is
  void left(const PeerId& peer, TimePoint now);
  /// It asks for a group, so that it is here again.
  void asked(const PeerId& peer, TimePoint now);
  /// It is in our group, or waits with us for one.
  void came(const PeerId& peer) {
    left_.erase(peer);
    in_vain_.erase(peer);
    if (newcomers_.contains(peer)) came_.insert(peer);
  }
  void declared(const PeerId& peer, TimePoint now);
  /// A search is over: the newcomers so far were waited for once. Those that have not come, and may not exist, are not
  /// waited for again until they ask for a group; after a few times in vain, ever more seldom. Keys cost nothing: after
  /// a stranger that has not come no stranger is waited for, for four times as long as that took.
  void searched(TimePoint now);

  bool knows(const PeerId& peer) const { return last_members_.contains(peer) || newcomers_.contains(peer); }
  bool was_lost(const PeerId& peer) const { return lost_.contains(peer); }
  bool has_left(const PeerId& peer) const { return left_.contains(peer); }
  bool anyone_left() const { return !left_.empty(); }
  std::size_t left_since(TimePoint time) const;
  /// The other members of the last group.
  const std::set<PeerId>& last_members() const { return last_members_; }
  /// Whether any peer is known that may still come: of the last group, or a newcomer.
  bool anyone_remains() const;

 private:
  /// A group that its members remember.
  struct Reforming {
    std::set<PeerId> members, may_lead;
    PeerId leader;
    void drop(const PeerId& peer) {
      members.erase(peer);
      may_lead.erase(peer);
    }
  };
  struct InVain {
    std::size_t times = 0;
    detail::GrowingPause pause{1min, 1h};  // until it is over its asking changes nothing
    bool asks_again = false;
  };
  bool is_forged(const RoundEnd& end) const;
  /// Whether the group does not wait for this newcomer: it has never averaged with us, and another such newcomer has
  /// lately been waited for in vain.
  bool is_wary_of(const PeerId& newcomer, TimePoint now) const {
    return now < wary_until_ && !reputation_.has_history(newcomer);
  }
  /// Remembers that the newcomer was waited for in vain, if it was waited for.
  void has_not_come(const PeerId& newcomer, TimePoint now);
  /// The member that leads after the leader.
  std::optional<PeerId> successor() const;

  const PeerId own_;
  const std::size_t target_size_;
  const Duration newcomers_time_;
  p2p::Reputation& reputation_;
  std::optional<Reforming> reforming_;
  std::set<PeerId> last_members_;
  std::optional<PeerId> last_leader_;
  std::set<PeerId> workers_;          // members of the last round that have done their part, as far as was seen here
  std::set<PeerId> newcomers_;        // seen lately, and not in the known group: it waits for them once
  std::set<PeerId> came_;             // newcomers that have come in this search
  std::map<PeerId, InVain> in_vain_;  // newcomers that did not come in earlier ones
  TimePoint wary_until_ = TimePoint::min();  // waits for no newcomer that never averaged with us
  std::set<PeerId> lost_;                    // in the last round: their declarations in the DHT mean nothing
  std::map<PeerId, TimePoint> left_;         // when we heard of it
};

}  // namespace cohive::averaging
