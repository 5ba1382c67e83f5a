/// \file
/// Round: the handle of one averaging round, from the search for a group to the result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/group.hpp"
#include "cohive/averaging/tensor_parts.hpp"

namespace cohive::averaging {

/// How long a round waits. Unset: as long as the averager's options say, which are upper bounds; those of zero bound
/// nothing. Values of zero are refused (std::invalid_argument).
struct RoundLimits {
  std::optional<Duration> allreduce = std::nullopt;  ///< the whole exchange, from the trigger on
  std::optional<Duration> sender = std::nullopt;     ///< between two parts of one sender
  std::optional<Duration> reducer = std::nullopt;    ///< between two results of one reducer
  Duration least{};  ///< no member is given up sooner, however late it was in other rounds, within the options' bounds
};

/// What one round is asked for.
struct RoundOptions {
  msgpack::Value gather = {};  ///< sent to all members
  Duration timeout = 60s;      ///< for finding a group (retries included)
  /// Unix seconds when the group should form; unset: now + AveragerOptions::min_matchmaking_time.
  std::optional<double> scheduled_time = std::nullopt;
  /// How many members there will be as far as the caller knows; 0: no idea. A group that has so many begins at once;
  /// one that has fewer waits for more until the scheduled time. A search ends when all expected members have left. A
  /// group far larger than this is not joined: its leader may have invented most of it.
  std::size_t expected_members = 0;
  /// Looks only for members that drew the same bits, so many, for this round: 2^n groups, of other members each time.
  /// Without effect where AveragerOptions::initial_group_bits are set.
  std::size_t random_group_bits = 0;
  /// This peer averages no more afterwards: its group is made of peers of which the same is true, and those that go on
  /// do not wait for it.
  bool last = false;
  /// Nobody needs the group before Round::hurry(), which tells who comes to it: members are gathered, but only a group
  /// whose members all remember it from the last time is made sooner.
  bool early = false;
  /// The members of another averager's round, who all begin one with these now: they meet at the first of them that is
  /// no client, whomever this averager met before. Empty: as before.
  std::vector<Member> meets = {};
  /// Peers that average under the same name, as far as the caller knows. Where this averager has no group that meets
  /// again, some of those that it is connected with are asked for theirs, which it joins the next time: a newcomer
  /// would find the leader in the DHT only while that one looks, which may be milliseconds.
  std::vector<PeerId> others = {};
  /// Offers to lead so much later than others do, and so follows one of them where there is one: for a peer that knows
  /// few of those that will come, and would begin with them alone.
  Duration lead_delay{};
  /// Tells how values travel in the round of these members, as by what they have gathered: all of them have to come to
  /// the same. Called once for a group, before any value is read. Null: as the averager's options say.
  std::function<RoundCodecs(const std::vector<Member>& members)> codecs = nullptr;
  /// Looks for another group when one fails. Tensors that were handed over with the trigger are exchanged once at most:
  /// a round that fails later does not try again.
  bool allow_retries = true;
  RoundLimits limits = {};  ///< shorter time-outs than those of the averager; unset ones are the averager's
};

/// What this member saw of another one in the exchange of a round.
struct Exchanged {
  /// When its first part came, from this member's own trigger on. Negative: it came before the trigger. Unset: it never
  /// came, or this member reduces nothing.
  std::optional<Duration> arrival;
  Duration longest_part_wait{};    ///< the longest wait for one of its parts, its first one excepted
  Duration longest_result_wait{};  ///< the longest wait for one of its results, from the moment the part was sent on
  std::uint64_t bytes_sent = 0,    ///< payload for the other member, as bytes_received
      bytes_received = 0;          ///< payload, until this member's own end of the round
  /// Bytes per second of payload, over the time in which parts or results came or went; unset: too little to tell.
  std::optional<double> send_rate,  ///< to the other member
      receive_rate;                 ///< from it
};

/// The most that a peer's link has carried while it averaged in its last rounds, in bytes per second; 0: unknown.
struct LinkRates {
  double out = 0,  ///< to other peers
      in = 0;      ///< from them
};

/// How one round went: its members, what they sent, what was averaged. It does not change once the round has ended, and
/// is shared by all that tell of it.
struct RoundReport {
  std::string group_id;                 ///< the same for all members of the round
  std::vector<Member> group;            ///< in group order, this peer included
  PeerId leader;                        ///< the member that assembled the group
  codec::CodecSet agreed_codecs;        ///< see AveragerOptions::agreed_codec
  bool one_average = false;             ///< all members had it; see AveragerOptions::one_average
  std::size_t parts_total = 0;          ///< of all all-reduces of the round, as the counts below
  std::size_t parts_failed = 0;         ///< kept local: their reducer failed, or there is no average of them
  std::size_t parts_refused = 0;        ///< of these, those whose reducers were there, and left this peer out
  std::size_t parts_checked = 0;        ///< reduced by other members, made again here: AveragerOptions::verified_share
  std::vector<PeerId> failed_reducers;  ///< the owners of failed parts, those that say there is no average excepted
  std::vector<PeerId> lost_senders;     ///< left out of a part that this peer reduced: silent, gone, or malformed
  std::vector<PeerId> liars;         ///< of both, the members that sent what cannot be: they are kept out for a while
  std::vector<PeerId> stragglers;    ///< of both, the members that were waited for in vain
  std::uint64_t bytes_sent = 0,      ///< payload for all other members
      bytes_received = 0;            ///< payload of all other members
  LinkRates link;                    ///< of this peer: AveragerOptions::measures_link
  Duration matchmaking{};            ///< until the group was found
  Duration allreduce{};              ///< from the trigger to the end
  std::vector<Exchanged> exchanged;  ///< in group order; empty for this peer itself

  /// Returns the members that were lost on the way, each of them once: failed_reducers and lost_senders.
  std::vector<PeerId> lost() const;
  /// Returns the share of the parts that were averaged, and not kept local.
  double averaged_share() const;
  /// Tells whether most of the others have averaged what this peer does not have.
  bool left_out() const { return 2 * parts_refused > parts_total; }
  /// Returns the other members that something was received of, in group order: parts of their tensors, or averages.
  std::vector<PeerId> heard_from() const;
  /// Returns the members that have done their part, as far as can be told: those of heard_from() that were not lost.
  /// That a member is listed in `group` says no more than that a leader has named it. Where there are no more parts
  /// than members that something came of, most have nothing to send each other: then all that were not lost.
  std::vector<PeerId> contributors() const;
  /// Returns the time between the first and the last member to come, the own trigger included; zero when no arrival is
  /// known.
  Duration arrival_spread() const;
};

/// The handle of a round that Averager::begin started. Dropping it cancels the round. Loop thread only; it may outlive
/// the averager, whose end cancels the round.
class Round {
 public:
  /// How far the round is.
  enum class Stage { looking_for_group, awaiting_trigger, running, finished };

  Round(Round&&) noexcept;
  Round& operator=(Round&&) noexcept;
  ~Round();

  /// Returns how far the round is.
  Stage stage() const noexcept;

  /// Returns the members of the group, this peer among them; none before there is one.
  std::vector<Member> members() const;

  /// Waits until there is a group, or the round has ended without one.
  Task<void> grouped();

  /// Changes the time when the group should form (Unix seconds), while it is being looked for. The DHT has the time
  /// since soon after the round has begun: from then on the new one counts where no group has come of that.
  void reschedule(double unix_time);
  /// Changes the number of members that are expected, while the group is being looked for.
  void expect(std::size_t members);
  /// Somebody waits for the group of a round that began early. `company` are peers that are about to look for it, too:
  /// with all of them it begins at once, and for a moment it does not begin without them. Empty: nobody knows who
  /// comes, as in a round that did not begin early.
  void hurry(std::vector<PeerId> company);
  /// Replaces the limits, until the trigger.
  void limit(const RoundLimits& limits);

  /// Hands the tensors over: as soon as there is a group, they are averaged. A group waits for the trigger as long as
  /// RoundOptions::timeout lasts, and for RoundLimits::allreduce if that is longer; then the round fails. `tensors`
  /// must fit the averager's. The round gives them up before result() returns and before cancel() or the destructor
  /// does. Once per round; later calls change nothing. An error of the weight (it must be finite and not negative) is
  /// the round's result.
  void trigger(double weight, std::shared_ptr<TensorParts> tensors);
  /// The same with the tensors that the averager was made with. Throws std::logic_error when there are none.
  void trigger(double weight = 1.0);

  /// Gives the round up, whatever its stage: members that wait for this peer hear of it, and nothing touches the
  /// tensors any more. The result is Errc::round_cancelled, unless there is one already.
  void cancel();

  /// Waits for the end; one waiter at a time, which gets the result once. After a success every value of the tensors is
  /// final. After a failure, stretches that were averaged before it are, and TensorParts::finish() completes the rest.
  /// Errors: Errc::no_group, Errc::members_left, Errc::round_cancelled, and those of groups that cannot average.
  Task<Result<std::shared_ptr<const RoundReport>>> report();
  /// Waits as report() does, and returns a copy.
  Task<Result<RoundReport>> result();

 private:
  friend class Averager;
  struct State;
  explicit Round(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace cohive::averaging
