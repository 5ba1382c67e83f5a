/// \file
/// Averager: averages tensors with the other peers under the same prefix, C++ or Python, in rounds: a group finder
/// finds the group, a scheme runs its all-reduces. Source: docs/wire/hivemind.md, section 6. Loop thread only.
///
///   Round round = averager.begin({.scheduled_time = soon});      // a group is being looked for
///   round.trigger(weight, tensors);                              // the tensors are ready
///   Result<RoundReport> result = co_await round.result();
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohive/averaging/aggregation.hpp"
#include "cohive/averaging/group.hpp"
#include "cohive/averaging/round.hpp"
#include "cohive/averaging/scheme.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/codec/compression.hpp"

namespace cohive::dht {
class Dht;
}
namespace cohive {
using dht::Dht;
}

namespace cohive::averaging {

class GroupFinder;
struct FinderContext;
struct GroupOptions;

/// hivemind's defaults; a zero timeout means none.
struct AveragerOptions {
  std::string prefix;                                ///< names the group of groups; see fault_of_name
  std::string class_name = "DecentralizedAverager";  ///< part of the protocol ids: must equal the Python peers' class
  std::size_t target_group_size = 0;                 ///< 0: unbounded
  std::size_t min_group_size = 2;         ///< members, this peer included, without which no round begins; at least 2
  std::string initial_group_bits;         ///< of '0' and '1'
  Duration min_matchmaking_time = 5s;     ///< how long a leader waits for followers
  Duration request_timeout = 3s;          ///< must be below min_matchmaking_time
  double averaging_alpha = 1.0;           ///< how far values move in a round: 1 is to the average
  std::size_t part_size_bytes = 1 << 19;  ///< of the parts that tensors are cut into, as they travel
  Duration allreduce_timeout = 60s;       ///< a whole round; this and the next two are upper bounds of RoundLimits
  Duration sender_timeout = 15s;          ///< between two parts of one sender; then it is left out
  Duration reducer_timeout = 30s;         ///< between two results of one reducer; then local values stay
  /// Of parts; the same in the whole group. Only codecs that need no agreement (see codec::info).
  codec::Compression codec;
  /// Where it chooses a codec that needs agreement, the codec is offered to the group, and used for what this peer
  /// sends when all members offer it; Python peers never do. Elsewhere `codec` is used. For updates such as gradients,
  /// not for parameters. What a round loses is sent with the next one that uses the codec; a part counts as sent when
  /// its average has come back. Averages come back in `codec`, for which float16 goes well with it; with one_average
  /// those of block4 come back in 4 bits, too, and those of sparse2 in four times as many places as a part has.
  std::optional<codec::Compression> agreed_codec;
  /// Asks for averages that are the same for all members, to the bit: whoever reduces a part encodes its average once,
  /// and all members take what that decodes to, the reducer included. So values are rounded to their codec with every
  /// round, which suits gradients and differences rather than parameters. It is so in groups whose members all ask for
  /// it; in others, as with Python peers, each member is answered with what the average differs by from its own part.
  bool one_average = false;
  Aggregation aggregation;  ///< of the parts that this peer reduces; each member's own choice
  /// Of the parts that other members reduce, the share that this peer makes again from what the senders sent, drawn
  /// after the answers; then the members tell each other which were wrong. A reducer that answers anything else is left
  /// out of the round before its values are used, and is kept out for a while. 0: none is. Where it is above 0, a group
  /// has only peers with such a share and the same aggregation, so no Python peers. To make a part again takes as many
  /// bytes as all members have sent of it. A reducer keeps these, about a model in its encoding, until the round is
  /// over, and shows a member 16 parts and 8 times its own share of them at most: shares had better be alike.
  double verified_share = 0;
  std::uint64_t min_vector_size = 0;  ///< elements; with bandwidths: a member that would get fewer gets none
  Bandwidth bandwidth;                ///< of no member: equal shares
  bool measures_link = false;         ///< RoundReport::link is told, as it is where `bandwidth` is measured
  PeerMode mode = PeerMode::node;     ///< how this peer takes part
  Scheme scheme = nullptr;            ///< null: plain_all_reduce()
  /// Null: make_matchmaking.
  std::function<std::unique_ptr<GroupFinder>(FinderContext)> group_finder = nullptr;
};

/// Returns what an averager with these options wants of its groups.
GroupOptions group_options(const AveragerOptions& options);

/// A float32 tensor to average in place. The memory belongs to the caller and must stay put; between the trigger of a
/// round and its end no other code may touch it.
struct AveragedTensor {
  std::span<float> values;                             ///< as many as the shape has, in row-major order
  codec::Shape shape;                                  ///< named in the schema hash
  bool requires_grad = false;                          ///< named in the schema; a round averages the tensor either way
  codec::DType schema_dtype = codec::DType::float32;   ///< dtype named in the schema hash
  codec::Role role = codec::Role::unspecified;         ///< what compression strategies look at
  std::optional<codec::TensorKey> key = std::nullopt;  ///< the same; unset: its place in the list
};

/// Averages tensors with the peers that have the same schema, prefix and class, in rounds. Loop thread only.
class Averager {
 public:
  /// Averages tensors that are handed over with the trigger of every round. `dht` must outlive the averager. Throws
  /// std::invalid_argument for impossible options.
  Averager(Dht& dht, std::vector<TensorInfo> schema, AveragerOptions options);
  /// Averages these tensors in place, whose residuals it keeps.
  Averager(Dht& dht, std::vector<AveragedTensor> tensors, AveragerOptions options);
  /// Cancels the round in progress; its handle may live on.
  ~Averager();
  Averager(const Averager&) = delete;

  /// Registers handlers.
  void start();

  /// Begins a round: looks for a group at once. One round at a time: throws std::logic_error while another one is in
  /// progress, and std::invalid_argument for options that make no sense. After leave() the round fails at once with
  /// Errc::left.
  Round begin(RoundOptions options = {});
  /// Averages the tensors of the constructor once: begin, trigger and result. Dropping the task cancels the round.
  Task<Result<RoundReport>> step(RoundOptions options = {}, double weight = 1.0);

  /// Completes when another member has sent a part of the current or a later round before that round's trigger, i.e.
  /// when a member waits for this peer. \param share  so many of the others of its group, from 0 to 1, do not suffice
  /// \param who_counts  whether a member that waits counts, beside this peer's own entry in the group; null: all do
  Task<void> member_waiting(double share = 0,
                            std::function<bool(const Member& waiting, const Member& own)> who_counts = nullptr);

  /// Serves other members until they have the results that they wait for, or until the deadline. To be awaited before a
  /// process ends: members with slow links are served longer than a round lasts.
  Task<void> drain(Deadline deadline);

  /// Leaves: this peer averages no more under this prefix. Cancels the round in progress, and tells the members of the
  /// last group, the leader and the followers, so that they stop waiting for it. Returns when they have been told, or
  /// at the deadline, or after two seconds: one that sleeps hears it when it wakes. Idempotent. Peers that do not know
  /// the call (Python) see what they see of a peer that is gone.
  Task<void> leave(Deadline deadline);

  /// Forgets what earlier rounds owe of the constructor's tensors (see AveragerOptions::agreed_codec): after the model
  /// was replaced, as by a downloaded state. A round in progress goes on with it.
  void reset_residuals();

  /// Describes the tensors that rounds average, in their order; fixed.
  const std::vector<TensorInfo>& schema() const noexcept;
  /// Returns the bits that name this peer's group; empty where groups have none.
  std::string group_bits() const;
  /// Returns the options of the constructor.
  const AveragerOptions& options() const noexcept;
  /// Returns the DHT of the constructor.
  Dht& dht() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::averaging
