/// \file
/// GroupFinder: where the groups of an averager come from. Matchmaking, hivemind's way through the DHT, is the default;
/// another finder is given to AveragerOptions::group_finder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/round.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/rpc/rpc.hpp"

namespace cohive::dht {
class Dht;
}
namespace cohive {
using dht::Dht;
}

namespace cohive::averaging {

struct AveragingMetrics;

/// The wishes of an averager for its groups. AveragerOptions describes each field.
struct GroupOptions {
  std::string prefix;                  ///< names the group of groups
  std::string initial_group_bits;      ///< of '0' and '1'
  std::size_t target_group_size = 0;   ///< 0: unbounded
  std::size_t min_group_size = 2;      ///< members, this peer included
  Duration min_matchmaking_time = 5s;  ///< how long a leader waits for followers
  Duration request_timeout = 3s;       ///< below min_matchmaking_time
  Duration straggler_timeout = 5s;     ///< for a member that was waited for in vain, before any round is known
  PeerMode mode = PeerMode::node;      ///< how this peer takes part
  bool caps_shares = false;            ///< no member is to reduce much more than its share (see Group)
  bool one_average = false;            ///< all members are to be answered with the same bytes
};

/// What the owner of a round wishes of a search; it may change while the search goes on.
struct SearchPlan {
  /// Makes a plan without wishes.
  explicit SearchPlan(Runtime& runtime) : changed(runtime, "wishes for a group") {}
  std::optional<double> scheduled_time;  ///< Unix seconds; see RoundOptions
  std::size_t expected_members = 0;      ///< see RoundOptions
  std::size_t random_bits = 0;           ///< see RoundOptions
  Duration lead_delay{};                 ///< see RoundOptions
  bool early = false;                    ///< see RoundOptions; false from Round::hurry() on
  std::vector<Member> meets{};           ///< see RoundOptions
  std::vector<PeerId> others{};          ///< see RoundOptions
  std::vector<PeerId> company{};         ///< see Round::hurry
  TimePoint hurried{};                   ///< when that was
  bool last = false;                     ///< see RoundOptions
  mutable Condition changed;             ///< to be notified by the owner after a change of the wishes
};

/// How the round of a group went.
struct RoundEnd {
  std::string group_id;                                 ///< of the group
  std::shared_ptr<const RoundReport> report = nullptr;  ///< null: the round has failed
  std::vector<PeerId> absent = {};                      ///< members that were lost, and that there is no connection to
};

/// Finds groups for one averager. Loop thread only. Its destructor drops what it is doing.
class GroupFinder {
 public:
  virtual ~GroupFinder() = default;

  /// Registers what it serves to other peers; not called for peers in client mode.
  virtual void serve(rpc::Server& server) = 0;

  /// Looks for a group that has this peer as `self`. One search at a time; dropping the task gives it up and tells the
  /// peers that wait for it. Members that cannot average together are not put into one group.
  /// Errors: Errc::no_group, whose detail says what was tried; Errc::members_left.
  virtual Task<Result<Group>> find(Member self, const SearchPlan& plan, Deadline deadline) = 0;
  /// Called once for every group that was found, when its round has ended.
  virtual void round_ended(const RoundEnd& end) = 0;
  /// Called when a peer names members that it has waited for in vain in the round of a group. Any peer may say so of
  /// any group.
  virtual void stragglers_named(const PeerId& /*witness*/, const std::string& /*group_id*/,
                                const std::vector<PeerId>& /*stragglers*/) {}
  /// How long a round is to wait when only this member is missing; nullopt: as long as for anybody.
  virtual std::optional<Duration> timeout_for(const PeerId& /*member*/) const { return std::nullopt; }

  /// Lists the peers that may be waiting for this one, or will: those that are told when it leaves.
  virtual std::vector<PeerId> partners() const = 0;
  /// Called when a peer says that it averages no more: it is not waited for. Any peer may say so for itself, also one
  /// that was never heard of.
  virtual void peer_left(const PeerId& peer) = 0;
  /// Called when this peer leaves: it joins no group any more.
  virtual void leave() = 0;

  /// Returns the bits that name this peer's group, for state metadata and logs; empty where groups have none.
  virtual std::string group_bits() const { return {}; }
};

/// What a finder is made of; all of it outlives the finder.
struct FinderContext {
  Dht& dht;                         ///< where groups are announced and found
  GroupOptions options;             ///< of the averager
  const AveragingMetrics& metrics;  ///< where searches are counted
  std::string protocol_prefix;      ///< of the protocol ids it serves: "<prefix>::<class>."
  std::string schema_hash;          ///< peers with another one do not fit
  codec::CodecSet offered;          ///< the codecs that this peer offers, of those that need agreement
};

/// Makes hivemind's matchmaking.
std::unique_ptr<GroupFinder> make_matchmaking(FinderContext context);

}  // namespace cohive::averaging
