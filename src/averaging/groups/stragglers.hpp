// Stragglers: members that a round has waited for in vain. They have slept, lost their link, or did it on purpose:
// nobody can tell. So they are members like all others, and nothing is held against them, but rounds do not wait for
// them for long until they have been in time again, as often as they have been late lately. A peer that shows up in
// time notices nothing of it, and one that stalls costs a round now and then.
// A member sees only what itself was sent: members tell each other whom they have waited for, as soon as they do so no
// longer (extensions.md, section 13), so that none goes on while others wait. As it costs a peer that is in time
// nothing, each member is believed.
// Identities are free: after a stranger was late, here or for another member, strangers are not waited for long either,
// for a while.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohive/averaging/group_finder.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"
#include "cohive/p2p/reputation.hpp"

namespace cohive::averaging {

class Stragglers {
 public:
  static constexpr std::size_t kMostTold = 16;  ///< peers that one member names in a round; more are left out
  static constexpr Duration kMemory = 10min;    ///< of how often a peer was late
  static constexpr Duration kGrace = 1s;  ///< at least; half of what a round with the peer takes when it is in time

  /// \param first_patience  with a straggler, where no round has shown yet what one takes
  Stragglers(Runtime& runtime, p2p::Reputation& reputation, PeerId own, Duration first_patience)
      : runtime_(runtime), reputation_(reputation), own_(own), first_patience_(first_patience) {}

  /// A group was found: its members may tell of its round from now on.
  /// \param tells_strangers_apart  most peers are no strangers
  void group_began(const std::string& id, std::set<PeerId> members, bool tells_strangers_apart);
  /// Takes what this peer has seen of a round that has averaged.
  void round_ended(const RoundEnd& end);
  /// Another member tells whom it has waited for in a round. False where that means nothing.
  bool told(const PeerId& witness, const std::string& id, const std::vector<PeerId>& stragglers);
  /// A peer led us, and no group came of it.
  void led_in_vain(const PeerId& peer);

  /// How long a round waits when only this peer is missing; nullopt: as long as for anybody.
  std::optional<Duration> patience(const PeerId& peer) const;
  /// Whether other leaders are better: it has led in vain, and was in no round in time since.
  bool leads_in_vain(const PeerId& peer) const;
  /// Whether strangers are stragglers, where peers are known that are none.
  bool is_wary() const { return runtime_.now() < distrust_until_ && reputation_.has_any_history(); }

 private:
  struct Round {
    std::string id;
    std::set<PeerId> members;
    bool tells_strangers_apart;
    TimePoint began;
    std::map<PeerId, std::size_t> witnesses{};  // and how many each of them has named
    std::set<PeerId> named{};
    std::set<PeerId> in_time{};  // where all were, as far as was seen here
    Duration took{};
  };
  void learn_from(const Round& round);
  /// Strangers are not waited for long from now on, for times as long as one was waited for.
  void be_wary(const Round& round, Duration waited);
  struct Record {
    std::optional<Duration> took;  // the last round in which it was in time, as all others
    std::size_t late = 0;          // rounds, lately, in which it was waited for in full
    std::size_t owed = 0;          // rounds in which it is to be in time
    bool led_in_vain = false;
    TimePoint last{};  // that something of this was noted
  };
  Round* find_round(const std::string& id);
  const Record* find(const PeerId& peer) const;
  Record& record_of(const PeerId& peer);
  bool is_stranger(const PeerId& peer) const { return !reputation_.has_history(peer); }

  Runtime& runtime_;
  p2p::Reputation& reputation_;
  const PeerId own_;
  const Duration first_patience_;
  std::deque<Round> rounds_;  // the last ones
  std::map<PeerId, Record> records_;
  std::optional<Duration> last_took_;  // the last round in which nobody was late
  TimePoint distrust_until_ = TimePoint::min();
};

}  // namespace cohive::averaging
