// One all-reduce round: the butterfly. Every member sends each part to the part's owner and receives
// average - own part back.
//   sender -> PART_FOR_AVERAGING{group id, part 0, weight}, {part, weight}..., END_OF_STREAM
//   owner  -> AVERAGED_PART{delta} per part, in order
// Source: hivemind wire spec, sections 6.6 to 6.8.
#pragma once

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/rpc/rpc.hpp"
#include "partition.hpp"
#include "reducer.hpp"
#include "wire.hpp"

namespace cohive::averaging {

/// What matchmaking yields.
struct Group {
  std::string id;
  std::vector<PeerId> peers;
  std::vector<std::string> gathered;
  PeerId leader;
};

class AllReduce {
 public:
  struct Setup {
    std::string protocol;  ///< of rpc_aggregate_part
    Group group;
    std::vector<GatheredPeer> members;
    double weight = 1;
  };
  AllReduce(p2p::Host& host, const AveragerOptions& options, const AveragingMetrics& metrics, std::vector<AveragedTensor> tensors, Setup setup);

  /// Checks that the group can average. Call before run and before serving senders.
  Result<> prepare();
  /// Sends, receives and reduces until this member is done.
  Task<Result<RoundResult>> run();
  /// Serves one sender's stream; its first message has been read.
  static Task<Result<>> serve(std::shared_ptr<AllReduce> self, rpc::ServerStream& stream, Slice first);
  /// Ends everything that waits for this round.
  void cancel();

  const std::string& group_id() const { return setup_.group.id; }
  void set_weight(double weight) { setup_.weight = weight; }
  /// Set once the tensors are ready; streams that come early wait for it.
  Event started;

 private:
  struct Exchange;
  static Task<void> reduce_own(AllReduce& self);
  static Task<void> exchange_with(AllReduce& self, std::size_t peer, std::size_t& failed);
  static Task<void> send_parts(AllReduce& self, rpc::ClientStream& call, std::size_t peer, Result<>& result);
  static Task<void> ban_absent(AllReduce& self);
  static Task<Result<>> reply(AllReduce& self, rpc::ServerStream& stream, std::vector<Slice>& messages, std::size_t index);
  Result<> check_part(const PartMessage& message, std::size_t index) const;
  std::span<float> values(const Part& part) const { return tensors_[part.tensor].values.subspan(part.offset, part.length); }
  std::optional<std::size_t> index_of(const PeerId& peer) const;
  void ban(std::size_t sender, const Error& why);

  p2p::Host& host_;
  Runtime& runtime_;
  const AveragerOptions& options_;
  const AveragingMetrics& metrics_;
  std::vector<AveragedTensor> tensors_;
  Setup setup_;
  std::size_t own_index_ = 0;
  std::vector<std::uint64_t> fractions_;
  std::vector<std::vector<Part>> parts_by_owner_;
  std::unique_ptr<Reducer> reducer_;
  std::set<std::size_t> attached_;
  bool cancelled_ = false;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace cohive::averaging
