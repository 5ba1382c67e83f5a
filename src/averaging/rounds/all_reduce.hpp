// One all-reduce: the butterfly. Every member sends each part to the part's owner and receives average - own part back.
//   sender -> PART_FOR_AVERAGING{id, part 0, weight}, {part, weight}..., END_OF_STREAM
//   owner  -> AVERAGED_PART{delta} per part, in order
// Parts in a codec with error feedback are answered with averages in place of differences; so are all parts of a group
// with one average (AveragerOptions::one_average), whose members all take what the same bytes decode to.
// Our side of the streams is in all_reduce.cpp, serving those of other members in aggregate.cpp. Whether averages are
// checked, and how, is behind RoundChecks.
// Source: docs/wire/hivemind.md, sections 6.6 to 6.8; docs/wire/extensions.md, section 12.
#pragma once

#include <deque>
#include <set>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/core/memory_budget.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/rpc/rpc.hpp"
#include "partition.hpp"
#include "reducer.hpp"
#include "round_checks.hpp"
#include "traffic.hpp"

namespace cohive::averaging {

/// Sends a message that is only a code (of proto::MessageCode).
Task<Result<>> send_code(rpc::ServerStream& stream, int code, Deadline deadline);

/// The bytes of all tensors on the wire, in the codecs that need no agreement.
std::uint64_t encoded_bytes(std::span<const TensorInfo> tensors, const codec::Compression& codec);

class AllReduce {
 public:
  struct Setup : RoundIdentity {
    std::vector<std::uint64_t> fractions;  ///< of the work, for each member
    Terms terms;
    Duration sender_timeout{}, reducer_timeout{};         ///< zero: none
    std::shared_ptr<std::vector<MemberTraffic>> traffic;  ///< for each member
    std::function<bool(const PeerId&)> is_arriving;       ///< a first part of the member is on its way; of run()
    /// How long this member waits when only that one is missing; nullopt: as long as for anybody. It may be known only
    /// in the course of the round, when others have waited. Of run()
    std::function<std::optional<Duration>(const PeerId&)> timeout_for;
    /// Members that were waited for in vain, as soon as they are waited for no longer: others are to hear of it.
    std::function<void(std::vector<PeerId>)> on_stragglers;
    Deadline senders_end = Deadline::never();   ///< senders that hold the others up are left out from now on
    Deadline reducers_end = Deadline::never();  ///< parts that are not answered keep local values
    Deadline checks_end = Deadline::never();    ///< averages that could not be checked are not used
  };

  /// Cuts the tensors into parts. Errors: a tensor for which no codec is configured.
  static Result<std::shared_ptr<AllReduce>> make(p2p::Host& host, const AveragerOptions& options,
                                                 const AveragingMetrics& metrics, Setup setup,
                                                 const TensorParts& tensors);

  /// Sends, receives and reduces until this member is done. Only this touches the tensors: it may be dropped.
  Task<Result<>> run(TensorParts& tensors, RoundReport& report);
  /// Serves one sender's stream; its first message has been read, and came at `arrival`.
  static Task<Result<>> serve(std::shared_ptr<AllReduce> self, rpc::ServerStream& stream, Slice first,
                              TimePoint arrival);
  /// Ends everything that waits for this all-reduce.
  void cancel();
  /// A member averages no more: it is not waited for.
  void member_left(const PeerId& peer);
  const std::shared_ptr<const Group>& group() const { return setup_.group; }
  /// What may be shown to members, also when this has ended; null where averages are not checked.
  std::shared_ptr<AuditLog> ledger() const { return checks_->ledger(); }
  /// A member has told what it has checked.
  Result<> hear(const PeerId& from, const proto::Verdict& verdict) { return checks_->hear(from, verdict); }

 private:
  /// How a tensor travels.
  struct TensorCodecs {
    codec::CodecSpec ordinary;
    std::optional<codec::CodecSpec> agreed;  ///< for what we send
    double bytes_per_value = 0;              ///< in the ordinary one
  };
  /// What became of the parts that one reducer owns.
  struct Exchange {
    std::size_t applied = 0, unused = 0;  ///< unused: of the applied ones, those without an average that can be
    bool sending = true;                  ///< parts are still to be sent
    bool ended = false;
    std::optional<Error> failure;
    std::deque<EncodedStretch> unanswered;  ///< of parts that were sent: the bytes where they are still needed
  };
  struct Reply {
    std::size_t index = 0;                        ///< of the part
    std::shared_ptr<EncodedPart> part = nullptr;  ///< what the answer is relative to; none: to nothing
    PartSumPtr sum = nullptr;                     ///< null: the answer is made
    MemoryBudget::Charge memory = {};             ///< of the part, then of the answer
    Envelope envelope = {};                       ///< of the answer
    Slice answer = {};
  };
  /// A part on its way to its reducer.
  struct Outgoing {
    EncodedStretch stretch;
    std::string commitment;  ///< where averages are checked
  };
  /// Our contribution to a part that we reduce, and how it counts: without any loss, or as we would send it.
  struct OwnPart {
    std::shared_ptr<OwnContribution> values;
    Answer::Sent sent;
  };
  using Contributions = Channel<Result<OwnPart>>;
  using EncodedParts = Channel<Result<Outgoing>>;

  AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics, Setup setup,
            std::vector<TensorCodecs> codecs, std::vector<std::vector<Part>> parts_by_owner,
            AnswerResidualsPtr answer_residuals);

  static Task<void> prepare_own(AllReduce& self, TensorParts& tensors, Contributions& prepared);
  Task<Result<OwnPart>> prepare_own_part(TensorParts& tensors, const Part& part);
  static Task<void> reduce_own(AllReduce& self, TensorParts& tensors, std::size_t& kept);
  Task<Result<bool>> reduce_own_part(TensorParts& tensors, std::size_t index, OwnPart own_part);

  static Task<void> exchange_with(AllReduce& self, TensorParts& tensors, std::size_t member, Exchange& exchange);
  static Task<Result<>> connect_reducer(AllReduce& self, std::size_t member, Deadline deadline);
  Task<Result<>> call_reducer(TensorParts& tensors, std::size_t member, Exchange& exchange);
  Task<Result<Outgoing>> prepare_part(TensorParts& tensors, std::size_t member, std::size_t index);
  static Task<void> encode_parts(AllReduce& self, TensorParts& tensors, std::size_t member, EncodedParts& encoded);
  static Task<void> send_parts(AllReduce& self, TensorParts& tensors, rpc::ClientStream& call, std::size_t member,
                               Exchange& exchange);
  Task<void> yield_to_reply(std::size_t member);
  Task<Result<>> send_part(rpc::ClientStream& call, std::size_t member, std::size_t index, const Outgoing* outgoing);
  Task<Result<>> receive_replies(TensorParts& tensors, rpc::ClientStream& call, std::size_t member, Exchange& exchange);
  Result<AnsweredPart> read_reply(const Part& part, EncodedStretch sent, const PartMessage& message,
                                  Slice record) const;
  Task<Result<>> apply(TensorParts& tensors, const Part& part, AnsweredPart reply, Exchange& exchange);
  Task<Result<>> act_on(TensorParts& tensors, std::size_t member, AnsweredPart reply, std::string transcript_digest,
                        Exchange& exchange);
  Task<void> apply_held(TensorParts& tensors, std::vector<Exchange>& exchanges);
  static Task<void> apply_held_of(AllReduce& self, TensorParts& tensors, std::size_t member, Exchange& exchange);
  static Task<void> watch_senders(AllReduce& self);
  static Task<void> redial(AllReduce& self, std::size_t sender);
  bool may_have_ended(std::size_t sender, bool late) const;
  void ban_the_absent(std::size_t sender, Deadline absent, TimePoint now);

  static Task<Result<>> receive_parts(AllReduce& self, rpc::ServerStream& stream, std::size_t sender, Slice record,
                                      Channel<Reply>& replies);
  Task<Result<Reply>> take_part(std::size_t sender, std::size_t index, Slice record);
  static Task<void> make_answers(AllReduce& self, std::size_t sender, Channel<Reply>& replies, Channel<Reply>& made,
                                 Result<>& outcome);
  static Task<void> send_replies(AllReduce& self, rpc::ServerStream& stream, std::size_t sender,
                                 Channel<Reply>& replies, Result<>& outcome);
  Task<Result<>> make_answer(Reply& reply);
  Task<Result<>> send_reply(rpc::ServerStream& stream, std::size_t sender, Reply reply);

  static Stretch stretch_of(const Part& part) { return {part.tensor, part.offset, part.length}; }
  const std::vector<Part>& own_parts() const { return parts_by_owner_[setup_.own_index]; }
  const PeerId& peer(std::size_t member) const { return setup_.peer(member); }
  MemberTraffic& traffic(std::size_t member) { return (*setup_.traffic)[member]; }
  /// What a part is sent in, and what averages of it come back in where they are not differences.
  codec::CodecSpec codec_of(const Part& part) const;
  codec::CodecSpec answer_codec_of(const Part& part) const;
  /// Lists what averages of our own parts come back in; empty where all answers are differences.
  std::vector<AnswerCodec> answer_codecs() const;
  /// Tells whether parts in this codec are answered with averages.
  bool is_answered_with_average(codec::Codec codec) const;
  std::size_t replies_in_flight(std::size_t sender) const;
  std::uint64_t bytes_to(std::size_t member) const;
  void leave_out_the_banned();
  void ban_the_slow(TimePoint now);
  void ban_the_late_again(TimePoint now);
  Task<void> await_reducers(TaskGroup& exchanging, std::vector<Exchange>& exchanges);
  void give_late_reducers_up(std::vector<Exchange>& exchanges);
  void look_who_is_late();
  void note_straggler(std::size_t member);
  void name_stragglers();
  Duration watch_period() const;
  void ban(std::size_t sender, const Error& why);
  void blame(std::size_t member, const Error& why);
  void count_sent(std::size_t member, std::size_t bytes, TimePoint begin);
  void count_received(std::size_t member, std::size_t bytes);

  p2p::Host& host_;
  Runtime& runtime_;
  const AveragerOptions& options_;
  const AveragingMetrics& metrics_;
  const Setup setup_;
  const std::vector<TensorCodecs> codecs_;
  const std::vector<std::vector<Part>> parts_by_owner_;
  const AnswerResidualsPtr answer_residuals_;
  Reducer reducer_;
  const std::unique_ptr<RoundChecks> checks_;
  std::set<std::size_t> answering_;  // senders that a reply is being sent to
  Condition answered_;
  Condition broken_;  // the stream to a reducer
  /// What is known of another member.
  struct MemberState {
    enum class Stream { none, open, complete } stream = Stream::none;  // that it sends its parts on
    bool unreachable = false;                                          // when we called it
    bool refused = false;                                              // when it was dialled again
    bool left = false;
    bool seen = false;                   // connected, since we began
    bool redialled = false;              // since it was connected
    std::size_t replies = 0;             // that it has got
    std::optional<TimePoint> gone{};     // when it was first found to be no longer
    std::optional<Duration> patience{};  // with one that was late in earlier rounds, or for others in this one
    Subscription protection{};           // a connection that others take the place of looks like one that broke
  };
  std::vector<MemberState> members_;
  std::vector<PeerId> lost_;                // senders left out of some of our parts
  std::vector<PeerId> liars_, stragglers_;  // of these, for what they sent, or did not send
  std::size_t named_ = 0;                   // of the stragglers
  Reducer::Awaited awaited_;                // when last looked at
  std::optional<Duration> patience_;        // with all such members, from the beginning
  Duration held_up_{};                      // how long senders among them were the only ones that were missing
  const TimePoint began_;
  TimePoint looked_;  // at the senders
  bool cancelled_ = false;
};

}  // namespace cohive::averaging
