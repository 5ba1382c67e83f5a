// The part of a trainer that stands next to the key of a shard: it keeps the reports of the shard's trainers and tells
// their sum to the leaders of the run, which add up the shards. Source: docs/wire/extensions.md, section 18.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "calls.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/train/progress_tracker.hpp"
#include "dht/detail/rate_limiter.hpp"
#include "sums.hpp"

namespace cohive::train {

/// Loop thread only.
class ShardLeader {
 public:
  /// \param options  of the tracker, whose target may change
  ShardLeader(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const TrackerOptions& options,
              ShardCalls& calls);
  /// Serves from now on. Idempotent.
  void serve();
  /// Withdraws what stands in the run's record, and serves no longer.
  Task<void> close(Deadline deadline);
  /// Bytes of all replies so far.
  std::uint64_t bytes_sent() const noexcept { return sent_; }

 private:
  /// A trainer of a shard.
  struct Member {
    std::string envelope;
    ShardReport report;
    std::string network;
    TimePoint heard;
    bool lost = false;  // its connection was lost since then
  };
  struct Shard {
    std::unordered_map<PeerId, Member> members{};
    std::optional<ProgressSum> told{};  // last, and when it may be told again, and has to be
    TimePoint next{}, due{};
    std::optional<ProgressSum> run{};  // as last heard
    TimePoint used{};
  };
  /// A claim is what a leader says of its shard.
  struct Claim {
    ProgressSum sum;
    dht::DhtId distance;  // of its node to the key of the shard
    TimePoint heard;
  };
  using Claims = std::unordered_map<PeerId, Claim>;

  Task<Result<std::string>> answer(PeerId caller, std::string bytes, bool local);
  Result<> answer_member(const PeerId& caller, const proto::ProgressRequest& request, proto::ProgressReply& reply);
  /// Errc::malformed for one that cannot be; one for which a shard has no room is left out.
  Result<> take_report(const PeerId& caller, const std::string& envelope, Shard& shard);
  static bool make_room(Shard& shard, const std::string& network);
  std::size_t nodes_within(const dht::DhtId& distance, const dht::DhtId& key) const;
  Task<Result<>> take_sum(PeerId caller, ShardName name, ProgressSum sum);
  bool is_fresh(const Claim& claim) const;
  std::optional<ProgressSum> largest_run(double now) const;
  std::optional<ProgressSum> run_of(double now);
  int bits_to_tell(const ProgressSum& run);
  std::vector<ProgressSum> shards_of(int bits, double now) const;
  static Task<void> lead(ShardLeader& self);
  static Task<void> lead_run(ShardLeader& self);
  bool is_to_be_told(const Shard& shard, const ProgressSum& sum) const;
  Task<void> tell_sum(ShardName name);
  void forget_old();
  Task<void> read_record();
  Task<bool> another_writes();
  Task<void> write_record(const ProgressSum& run, std::optional<Deadline> deadline);
  std::string network_of_caller(const PeerId& caller) const;

  Dht& dht_;
  Runtime& runtime_;
  std::shared_ptr<dht::RsaSignatureValidator> key_;
  const TrackerOptions& options_;
  ShardCalls& calls_;
  dht::RateLimiter rates_;
  std::map<ShardName, Shard> shards_;
  std::map<ShardName, Claims> claims_;        // where this node leads the run
  std::optional<ProgressSum> others_;         // trainers that report in the run's record
  double others_there_ = 0;                   // of these, those that are connected with us
  bool record_read_ = false;                  // since shards told their sums
  int bits_ = 0;                              // of the shards that were added up last
  int wanted_bits_ = 0;                       // that trainers are told
  bool tells_run_ = false;                    // these two are of a run that this leader has added up
  std::optional<TimePoint> sparse_since_{};   // the shards have had so few trainers that fewer shards would do
  std::optional<TimePoint> another_wrote_{};  // the sum of the shards in that record
  bool written_ = false;
  double newest_expiration_ = 0;
  std::uint64_t sent_ = 0;
  Condition changed_, claimed_;
  std::optional<rpc::Server> server_;
  Subscription lost_;
  TaskGroup tasks_;
};

}  // namespace cohive::train
