/// \file
/// Optimizer: turns a local LibTorch optimizer into a collaborative one. Source: hivemind wire spec, section 7.
///
/// Every peer accumulates gradients of its own batches. When the swarm together has seen target_batch_size samples, the
/// gradients are averaged (weighted by samples), every peer takes the same optimizer step, and a new epoch begins. Now
/// and then the parameters are averaged too. Who is new or behind downloads the state of another peer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/train/strategy.hpp"

namespace torch::optim {
class Optimizer;
}

namespace cohive {

struct OptimizerOptions {
  std::int64_t target_batch_size = 1024;  ///< samples per epoch, all peers together
  Duration matchmaking_time = 15s;        ///< 3 to 5 s in one building, 10 to 15 s over the internet
  Duration averaging_timeout = 60s;
  Duration load_state_timeout = 600s;
  int average_state_every = 1;  ///< epochs between rounds that average the parameters
  codec::Codec grad_compression = codec::Codec::none;
  codec::Codec state_compression = codec::Codec::none;
  averaging::Bandwidth bandwidth;  ///< divides the averaging among the peers
  /// How this peer averages the parts that it owns; see cohive/averaging/aggregation.hpp.
  averaging::Aggregation grad_aggregation, state_aggregation;
  /// Fewer bits for gradients among cohive peers that all ask for it; see averaging::AveragerOptions::agreed_codec.
  std::optional<codec::Compression> grad_agreed_codec;
  bool auxiliary = false;  ///< helps averaging without data of its own
  /// Called on the loop's thread while a state is being downloaded, often: return soon.
  std::function<void(const averaging::DownloadProgress&)> on_download = {};
};

/// What one call of step did.
struct StepReport {
  std::uint64_t epoch = 0;  ///< after the call
  bool epoch_changed = false;
  bool loaded_state = false;   ///< caught up from a peer; this batch did not count
  std::size_t grad_group = 0;  ///< peers whose gradients were averaged; 0: local gradients only
  std::size_t state_group = 0;
  std::uint64_t bytes_sent = 0;
};

/// Counters since construction.
struct TrainingStats {
  std::uint64_t epoch = 0;
  double global_samples = 0, samples_per_second = 0;  ///< of the whole run
  std::size_t peers = 0;
  std::uint64_t grad_rounds_extended = 0;  ///< of grad_rounds: in OptimizerOptions::grad_agreed_codec
  std::uint64_t grad_rounds = 0, grad_rounds_failed = 0, state_rounds = 0, state_rounds_failed = 0, state_downloads = 0;
  std::vector<std::uint64_t> rounds_by_group_size;   ///< gradient rounds with n members at index n
  std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< tensor payload
};

/// One trainer thread calls it. `optimizer` must outlive it. Its parameters may be float32, float64, float16 or
/// bfloat16 on any device; they are averaged as float32 in the host's memory. Throws std::invalid_argument for others,
/// and for numbers that make no sense.
/// Peers that are new download parameters and statistics as they are between its calls, at any time: other code should
/// leave them alone.
class Optimizer {
 public:
  Optimizer(Strategy& strategy, torch::optim::Optimizer& optimizer, OptimizerOptions options = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;

  /// Call after backward(): takes the gradients of a batch of `batch_size` samples. Returns at once, except when an
  /// epoch ends (the averaging) or this peer must catch up (the download). Gradients are zeroed when they were taken.
  /// When those of an epoch hold NaN or infinity, the gradients of the others count alone.
  StepReport step(std::int64_t batch_size);
  /// Averages the parameters once more with whoever does the same; for the end of a run. Returns the group's size.
  std::size_t average_parameters();
  /// Downloads state now if the swarm is ahead; true if it did.
  bool catch_up();
  /// Shown by metrics as cohive_train_loss.
  void report_loss(double loss);

  std::uint64_t epoch() const;
  TrainingStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive
