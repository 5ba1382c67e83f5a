// Progress in shards, for runs of so many trainers that one record of their reports would be too much for the nodes
// that hold it. Trainers report in 2^bits shards; the leaders of a shard add them up, the leaders of the run the
// shards:
//   trainer -> leaders of its shard: its report;  leader -> trainer: the run, some reports of others
//   leader of a shard -> leaders of the run: the sum;  leader of the run -> leader of a shard: the run
//   leader of the run -> DHT: the sum of all shards under the run's key, for peers that know no shards
// Leaders are the nodes next to a key, three of each; whoever asks takes the middle of what they say.
// Source: docs/wire/extensions.md, section 18.
#pragma once

#include <set>

#include "calls.hpp"
#include "leader.hpp"
#include "sums.hpp"

namespace cohive::train {

/// A trainer's way into the shards. Loop thread only.
class ProgressShards {
 public:
  /// \param options  of the tracker, whose target may change; they stay
  ProgressShards(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const TrackerOptions& options);
  /// Leads shards from now on, where this node is next to their keys.
  void serve() { leader_.serve(); }
  /// Asks the leaders of the run, and returns whether most of them know it, with so many trainers at least.
  Task<bool> find_run(double trainers, Deadline deadline);
  /// A look shows what the shards say of the run.
  struct Seen {
    std::optional<ProgressSum> run;     ///< unset while leaders do not know it
    std::vector<SignedReport> reports;  ///< of some other trainers, drawn
    bool is_news = false;               ///< `run` is not what was to be expected after the look before
  };
  /// Reports, and looks at the run. nullopt when no leader answers.
  /// \param report  unset: this peer does not train
  Task<std::optional<Seen>> exchange(std::optional<ShardReport> report);
  /// Takes the report back.
  Task<void> withdraw(Deadline deadline);
  /// Takes it back, and leads no longer.
  Task<void> close(Deadline deadline);
  /// Returns what was reported last; unset where nothing was, or it was withdrawn.
  const std::optional<ShardReport>& reported() const noexcept { return reported_; }
  /// Bytes of all calls that this node has sent.
  std::uint64_t bytes_sent() const noexcept { return calls_.bytes_sent() + leader_.bytes_sent(); }

 private:
  void follow(const ProgressSum& run);
  static Task<void> tell(ProgressShards& self, ShardName shard, proto::ProgressRequest request, Deadline deadline);

  Dht& dht_;
  const TrackerOptions& options_;
  ShardCalls calls_;
  ShardLeader leader_;
  std::optional<int> bits_;     // of the shard that is asked
  std::optional<int> counted_;  // of the one that counts by now
  std::optional<ShardReport> reported_;
  std::optional<ProgressSum> run_;  // as it was seen last
  std::set<ShardName> reported_in_;
};

}  // namespace cohive::train
