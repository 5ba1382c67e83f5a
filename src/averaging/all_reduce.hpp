// One all-reduce round: the butterfly. Every member sends each part to the part's owner and receives
// average - own part back.
//   sender -> PART_FOR_AVERAGING{group id, part 0, weight}, {part, weight}..., END_OF_STREAM
//   owner  -> AVERAGED_PART{delta} per part, in order
// Groups that agreed on a codec beyond hivemind's send their parts in it, with error feedback, and the owner answers
// with averages in place of differences.
// Our side of the streams is in all_reduce.cpp, serving those of others in aggregate.cpp.
// Source: hivemind wire spec, sections 6.6 to 6.8.
#pragma once

#include <deque>
#include <set>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/rpc/rpc.hpp"
#include "lease.hpp"
#include "part_math.hpp"
#include "partition.hpp"
#include "reducer.hpp"
#include "wire.hpp"

namespace cohive::averaging {

/// Of MessageCode.
enum Code { kPartForAveraging = 4, kAveragedPart = 5, kBadGroupId = 10, kInternalError = 15, kCancelled = 16 };

class AllReduce {
 public:
  struct Setup {
    std::string protocol;  ///< of rpc_aggregate_part
    Group group;
    double weight = 1;
    ResidualsPtr residuals;
  };
  AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics,
            std::vector<AveragedTensor> tensors, Setup setup);

  /// Divides the work. Call before run and before serving senders. Errors: the group cannot average.
  Task<Result<>> prepare();
  /// Sends, receives and reduces until this member is done.
  Task<Result<RoundResult>> run();
  /// Serves one sender's stream; its first message has been read.
  static Task<Result<>> serve(std::shared_ptr<AllReduce> self, rpc::ServerStream& stream, Slice first);
  /// Ends everything that waits for this round; afterwards nothing touches the tensors.
  void cancel();

  const std::string& group_id() const { return setup_.group.id; }
  void set_weight(double weight) { setup_.weight = weight; }
  /// Set once the tensors are ready; streams that come early wait for it.
  Event started;

 private:
  /// What became of the parts that one reducer owns.
  struct Exchange {
    std::size_t sent = 0, applied = 0;
    std::optional<Error> failure;
    std::deque<Slice> unanswered;  ///< with error feedback: what has been sent
  };
  struct Reply {
    std::shared_ptr<EncodedPart> part;  ///< what the answer is relative to; none: to nothing
    PartSumPtr sum;
    codec::Codec codec;
  };
  struct OwnPart;
  static Task<void> reduce_own(AllReduce& self);
  static Task<void> exchange_with(AllReduce& self, std::size_t peer, Exchange& exchange);
  static Task<void> encode_parts(AllReduce& self, std::size_t peer, Channel<Slice>& encoded);
  static Task<void> send_parts(AllReduce& self, rpc::ClientStream& call, std::size_t peer, Exchange& exchange);
  static Task<Result<>> receive_replies(AllReduce& self, rpc::ClientStream& call, std::size_t peer, Exchange& exchange);
  static Task<void> watch_senders(AllReduce& self);
  static Task<Result<>> receive_parts(AllReduce& self, rpc::ServerStream& stream, std::size_t sender, Slice record,
                                      Channel<Reply>& replies);
  static Task<void> send_replies(AllReduce& self, rpc::ServerStream& stream, std::size_t sender,
                                 Channel<Reply>& replies, Result<>& outcome);
  Task<Result<>> apply(EncodedPart delta, std::span<float> values);
  Task<Result<>> apply_average(const Part& part, EncodedPart average, Slice delivered);
  OwnPart own_part(const Part& part) const;
  static Reducer::Source source_of(OwnPart own, double weight, float alpha, std::shared_ptr<bool> moved);
  std::span<float> values(const Part& part) const {
    return tensors_[part.tensor].values.subspan(part.offset, part.length);
  }
  codec::Codec codec_of(const Part& part) const;
  std::size_t replies_in_flight(std::size_t sender) const;
  Task<Result<>> send_reply(rpc::ServerStream& stream, Reply reply);
  void ban(std::size_t sender, const Error& why);
  void count_sent(std::size_t bytes);
  void count_received(std::size_t bytes);

  p2p::Host& host_;
  Runtime& runtime_;
  const AveragerOptions& options_;
  const AveragingMetrics& metrics_;
  std::vector<AveragedTensor> tensors_;
  std::shared_ptr<TensorLease> lease_ = std::make_shared<TensorLease>();
  Setup setup_;
  std::size_t own_index_ = 0;
  std::vector<codec::CodecSpec> codecs_;                 ///< of each tensor
  std::vector<std::optional<codec::CodecSpec>> agreed_;  ///< of each tensor that has an agreed one
  std::vector<std::uint64_t> fractions_;
  std::vector<std::vector<Part>> parts_by_owner_;
  std::unique_ptr<Reducer> reducer_;
  std::set<std::size_t> answering_;  ///< senders that a reply is being sent to
  Condition answered_;
  std::set<std::size_t> attached_;     ///< senders that opened their stream
  std::set<std::size_t> complete_;     ///< senders that sent everything
  std::set<std::size_t> unreachable_;  ///< reducers that could not be called
  std::vector<PeerId> lost_;           ///< senders left out of some of our parts
  bool cancelled_ = false;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace cohive::averaging
