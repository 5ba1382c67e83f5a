/// \file
/// Averager: averages tensors with whoever else runs under the same prefix, C++ or Python, and shares state with them.
/// Source: hivemind wire spec, section 6. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohive/averaging/aggregation.hpp"
#include "cohive/averaging/group.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/codec/compression.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::averaging {

/// hivemind's defaults; a zero timeout means none.
struct AveragerOptions {
  std::string prefix;                                ///< must not contain "."; names the group of groups
  std::string class_name = "DecentralizedAverager";  ///< part of the protocol ids: must equal the Python peers' class
  std::size_t target_group_size = 0;                 ///< 0: unbounded
  std::size_t min_group_size = 2;
  std::string initial_group_bits;      ///< of '0' and '1'
  Duration min_matchmaking_time = 5s;  ///< how long a leader waits for followers
  Duration request_timeout = 3s;       ///< must be below min_matchmaking_time
  double averaging_alpha = 1.0;
  std::size_t part_size_bytes = 1 << 19;
  Duration allreduce_timeout = 60s;  ///< a whole round
  Duration sender_timeout = 15s;     ///< between two parts of one sender; then it is left out
  Duration reducer_timeout = 30s;    ///< between two results of one reducer; then local values stay
  codec::Compression codec;          ///< of parts; the same in the whole group
  codec::Compression state_codec;    ///< of the state that we share
  /// Where it chooses a codec that needs agreement, the codec is offered to the group, and used for what this peer
  /// sends when all members offer it; Python peers never do. Elsewhere `codec` is used. For updates such as gradients,
  /// not for parameters. What a round loses is sent with the next one that uses the codec; a part counts as sent when
  /// its average has come back. Averages come back in `codec`: float16 goes well with it.
  std::optional<codec::Compression> agreed_codec;
  Aggregation aggregation;            ///< of the parts that we own; each member's own choice
  std::uint64_t min_vector_size = 0;  ///< elements; with bandwidths: who would get fewer gets none
  Bandwidth bandwidth;                ///< nobody says anything: equal shares
  PeerMode mode = PeerMode::node;
  bool share_state = true;  ///< only nodes do
  Duration declare_state_period = 30s;
};

/// A float32 tensor to average in place. The memory belongs to the caller and must stay put; between the trigger of a
/// round and its end nobody else may touch it.
struct AveragedTensor {
  std::span<float> values;
  codec::Shape shape;
  bool requires_grad = false;
  codec::DType schema_dtype = codec::DType::float32;   ///< dtype named in the schema hash
  codec::Role role = codec::Role::unspecified;         ///< what compression strategies look at
  std::optional<codec::TensorKey> key = std::nullopt;  ///< the same; unset: its place in the list
};

using GatheredPeer = Member;

/// The stages and levers of one round.
class StepControl {
 public:
  enum class Stage { idle, looking_for_group, awaiting_trigger, running, finished };
  StepControl(Runtime& runtime, double step_weight)
      : weight(step_weight), trigger(runtime, "trigger of an averaging round"), cancelled(runtime, "cancellation") {}
  double weight;                         ///< may change until the trigger; finite, not negative
  std::optional<double> scheduled_time;  ///< Unix seconds; may change while the group is being looked for
  /// How many members there will be as far as the caller knows; 0: no idea. A known group that has fewer waits for
  /// others until the scheduled time.
  std::size_t expected_members = 0;
  Event trigger;    ///< set it when the tensors are ready
  Event cancelled;  ///< set it to give the round up
  Stage stage = Stage::idle;
};

struct StepOptions {
  msgpack::Value gather;  ///< sent to all members
  double weight = 1.0;
  Duration timeout = 60s;                ///< for finding a group (retries included)
  std::optional<double> scheduled_time;  ///< Unix seconds; default now + min_matchmaking_time; goes to the control
  std::shared_ptr<StepControl> control;  ///< given: the round waits for control->trigger
  bool allow_retries = true;
};

struct RoundResult {
  std::string group_id;             ///< the same for all members of the round
  std::vector<GatheredPeer> group;  ///< in group order, ourselves included
  PeerId leader;                    ///< who assembled it
  codec::CodecSet agreed_codecs;    ///< what all members offered
  std::size_t parts_total = 0;
  std::size_t parts_failed = 0;         ///< kept local because their reducer failed
  std::vector<PeerId> failed_reducers;  ///< whose parts those are
  std::vector<PeerId> lost_senders;     ///< left out of some part that we averaged: silent, gone, or sending nonsense
  std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< payload
  Duration matchmaking{}, allreduce{};
};

class Averager {
 public:
  /// `dht` must outlive the averager. Throws std::invalid_argument for impossible options.
  Averager(Dht& dht, std::vector<AveragedTensor> tensors, AveragerOptions options);
  ~Averager();
  Averager(const Averager&) = delete;

  /// Registers handlers and begins to declare that we share state.
  void start();
  /// Averages once: finds a group, waits for the trigger if a control is given, runs the all-reduce.
  Task<Result<RoundResult>> step(StepOptions options = {});

  /// Until another member sends parts of the round we are in, whose trigger is not set yet: it waits for us.
  Task<void> awaited();

  /// Until other members have the results that they await from us, or `deadline`. To be awaited before a process ends:
  /// members with slow links are served longer than step() lasts.
  Task<void> drained(Deadline deadline);

  /// Who provides our state, and how recommendable it is (Python: the epoch). Null provider: nothing is shared. The
  /// provider is called on threads of the pool whenever a peer asks; the call may outlive the averager, so it owns what
  /// it touches.
  using StateProvider = std::function<std::optional<SharedState>()>;
  void set_state_provider(StateProvider provider);
  void set_state_priority(double priority);
  /// Downloads the state of the best donor that answers. If it is cohive, those that hold the same bytes help: every
  /// piece is checked against the donor's hashes, a donor that sends other bytes is left out, and one that is lost
  /// costs what it was about to send. Python donors are asked one at a time.
  Task<Result<DownloadedState>> download_state(DownloadOptions options = {});

  /// Forgets what earlier rounds lost (see AveragerOptions::agreed_codec): after the model was replaced, as by a
  /// downloaded state. A round in progress goes on with it.
  void reset_error_feedback();

  const std::string& group_bits() const noexcept;
  void set_group_bits(std::string bits);
  const AveragerOptions& options() const noexcept;
  Dht& dht() const noexcept;
  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// The 20 bytes by which peers see that they average the same tensors (section 6.3).
std::string schema_hash(const std::vector<AveragedTensor>& tensors);

}  // namespace cohive::averaging
