// Peers that a group has waited for in vain while they were connected. One such round may be bad luck; a peer that
// does it again is kept out, longer each time, because every round with it costs all members their patience.
// An owner sees only what itself was sent, so a silent peer may pick other owners each time: followers tell the leader
// of their group whom they have lost, and it believes what more than a third of the members say. Fewer could keep an
// honest peer out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"

namespace cohive::averaging {

class Stallers {
 public:
  static constexpr std::size_t kMostReported = 16;  ///< peers in one report; more are left out
  static constexpr Duration kFirstBan = 60s;        ///< twice as long each time, an hour at most
  static constexpr Duration kMemory = 10min;        ///< of a round that was lost

  explicit Stallers(PeerId own) : own_(own) {}

  /// A round has ended here, which has waited in vain for these members.
  /// \param members  of its group, this peer included
  void round_ended(const std::vector<PeerId>& lost, std::size_t members, TimePoint now);
  /// Another member of the group says the same about its part of that round.
  void reported(const PeerId& witness, const std::vector<PeerId>& lost, TimePoint now);
  /// What this peer reports about the last round.
  const std::vector<PeerId>& last() const { return last_; }

  /// Whether it has made a round wait lately: then it had better not lead the next one.
  bool has_stalled(const PeerId& peer, TimePoint now) const;
  /// Whether it is kept out of groups for a while.
  bool is_kept_out(const PeerId& peer, TimePoint now) const;

 private:
  struct Record {
    std::set<PeerId> witnesses;
    std::size_t rounds = 0, own_rounds = 0;  ///< that it has stalled; own: seen by this peer itself
    std::uint64_t last_round = 0;
    TimePoint last{}, until{};
    int bans = 0;
  };
  void note(const PeerId& peer, const PeerId& witness, TimePoint now);
  bool is_plausible(const std::vector<PeerId>& lost) const;
  bool is_believed(const Record& record) const;
  void forget_old(TimePoint now);

  const PeerId own_;
  std::map<PeerId, Record> records_;
  std::vector<PeerId> last_;
  std::size_t members_ = 0;
  std::uint64_t round_ = 0;
};

}  // namespace cohive::averaging
