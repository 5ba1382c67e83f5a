// Calls to the leaders of a shard: of the DHT nodes nearest to its key the first three that answer.
// Source: docs/wire/extensions.md, section 18.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "cohive/proto/progress.pb.h"
#include "sums.hpp"
#include "train/growing_pause.hpp"

namespace cohive::train {

inline constexpr std::size_t kLeaders = 3;            ///< of a shard, and of the run
inline constexpr std::size_t kMostReplyFields = 256;  ///< that a leader's reply may have

/// Loop thread only.
class ShardCalls {
 public:
  struct Answer {
    PeerId leader;
    proto::ProgressReply reply;
  };
  /// How this node answers where it is a leader itself.
  using Local = std::function<Task<Result<std::string>>(std::string request)>;

  ShardCalls(Dht& dht, const std::string& run_id);
  /// Makes this node one of those that may lead.
  void answer_with(Local local) { local_ = std::move(local); }
  static std::string method_of(const std::string& run_id) { return run_id + "::Progress.rpc_share"; }

  /// Asks the leaders of a key. One of them, which is drawn, is asked for as many reports as the request says, the
  /// others for none. Returns what they answer, fewer where fewer do.
  Task<std::vector<Answer>> ask(std::string key, proto::ProgressRequest request, Deadline deadline);
  /// The same of the leaders of the run. \param request  what they are told; the rest is filled in
  Task<std::vector<Answer>> ask_root(Deadline deadline, proto::ProgressRequest request = {});
  /// Tells whether `node` is nearer to a key than this node, as of the last search.
  bool is_nearer(const std::string& key, const PeerId& node) const;
  /// Bytes of all requests so far.
  std::uint64_t bytes_sent() const noexcept { return sent_; }

 private:
  /// Where a key is, as of the last search.
  struct Place {
    std::vector<PeerId> nodes;  // nearest first
    TimePoint searched{}, until{};
    bool prompted = false;                             // the answers are a reason to search again soon
    Duration pause{};                                  // before a search for that reason
    std::unordered_map<PeerId, std::uint32_t> nearer;  // nodes than each leader, as it said last
  };
  /// A leader that does not answer is passed over for a while. One whose line is full for some seconds, as at the end
  /// of an epoch, leads on: whoever passes it over asks another one, which knows few of the shard.
  struct Avoided {
    GrowingPause silent{5s, 30s}, refused{5s, 10min};
  };
  struct Asking;
  static Task<void> ask_one(Asking& of, std::uint32_t draw);
  Task<std::vector<PeerId>> nodes_of(std::string key, Deadline deadline);
  void avoid(const PeerId& node, const Error& why);
  static void look_for_nearer(Place& place, const std::vector<Answer>& answers);

  Dht& dht_;
  const std::string method_, root_key_;
  Local local_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<PeerId, Avoided> avoided_;
  std::uint64_t sent_ = 0;
};

/// Returns a request that names a shard.
proto::ProgressRequest about(const ShardName& shard);
/// Returns what most of the leaders that have answered say of the run; nullopt where none knows it.
std::optional<ProgressSum> run_in(const std::vector<ShardCalls::Answer>& answers, double now);

}  // namespace cohive::train
