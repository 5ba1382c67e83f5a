// Spoilers: members that a round had for nothing, though they were connected. They were waited for until the patience
// ended, answered nonsense or broke the rules. One such round may be bad luck, and a peer that has averaged with this
// one may have been made late by another one twice; a peer that goes on with it is shunned, for every round with it
// costs all members their patience. A round in which it does its part makes up for one in which it has not. A member
// sees only what itself was sent, so that a peer may pick other victims each time: members tell each other whom a round
// had for nothing (extensions.md, section 13). What more than a third of the members of the last group have seen is
// believed like what was seen here. Fewer could have an honest peer shunned, and so could one under a new identity in
// each round. The word of fewer makes a peer wait for a round until it is an acquaintance: one that does its part here
// again is cleared.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"
#include "cohive/p2p/reputation.hpp"

namespace cohive::averaging {

class Spoilers {
 public:
  static constexpr std::size_t kMostTold = 16;  ///< peers in what one member tells; more are left out
  static constexpr Duration kFirstTime = 60s;   ///< that a peer is shunned
  static constexpr Duration kMemory = 10min;    ///< of a round
  static constexpr Duration kDisputeMemory = 1h;  ///< longer than a peer may be kept out for what one member says of it

  Spoilers(Runtime& runtime, p2p::Reputation& reputation, PeerId own)
      : runtime_(runtime), reputation_(reputation), own_(own) {}

  /// A group was found: its members may tell of its round from now on.
  void group_began(const std::string& id, std::set<PeerId> members);
  /// A member, this peer included, tells of a round, once. False where that means nothing.
  bool told(const PeerId& witness, const std::string& id, const std::vector<PeerId>& spoilers);

  /// A peer has done its part in a round, as far as was seen here. Returns whether it is an acquaintance for that: not
  /// the first time that another member says that it has not.
  bool worked(const PeerId& peer, const std::string& id);

  /// Whether it has spoilt a round lately: then it had better not lead the next one.
  bool has_spoilt(const PeerId& peer) const;

 private:
  struct Round {
    std::string id;
    std::set<PeerId> members, witnesses, named;
  };
  struct Record {
    std::set<PeerId> witnesses;
    std::size_t rounds = 0, own_rounds = 0;  ///< that it has spoilt; own: seen by this peer itself
    std::string last_round;
    TimePoint last{};
  };
  /// Rounds in which a peer has done its part here, though another member says that it has not.
  struct Dispute {
    std::size_t rounds = 0;
    TimePoint last{};
  };
  Round* find(const std::string& id);
  bool is_cleared(const PeerId& peer);
  void note(Round& round, const PeerId& peer, const PeerId& witness);
  bool is_believed(const Record& record) const;
  void forget_old();

  Runtime& runtime_;
  p2p::Reputation& reputation_;
  const PeerId own_;
  std::deque<Round> rounds_;  // the last ones
  std::map<PeerId, Record> records_;
  std::map<PeerId, Dispute> disputes_;
};

}  // namespace cohive::averaging
