/// \file
/// The options of a training run, with the names and defaults of hivemind.Optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/train/checkpoints.hpp"
#include "cohive/train/exchange.hpp"
#include "cohive/train/outer_optimizer.hpp"
#include "cohive/train/progress_tracker.hpp"

namespace cohive::train {

class GradientAverager;

/// Makes the averager of the gradients; hivemind's grad_averager_factory.
using GradAveragerFactory = std::function<std::unique_ptr<GradientAverager>(
    Dht& dht, std::vector<averaging::TensorInfo> gradients, averaging::AveragerOptions options)>;

/// What a run is, and how this peer takes part in it; the names are those of hivemind.Optimizer.
struct RunOptions {
  std::string run_id = "cohive_run";      ///< one name per training run; see fault_of_name
  std::int64_t target_batch_size = 1024;  ///< samples per epoch, all peers together

  /// Samples of a batch, where a step does not say how many; unset: the leading dimension of the first batch.
  std::optional<std::int64_t> batch_size = std::nullopt;

  Duration matchmaking_time = 15s;                           ///< 3 to 5 s in one building, 10 to 15 s over the internet
  Duration averaging_timeout = 60s;                          ///< finding a group and averaging with it
  std::optional<Duration> allreduce_timeout = std::nullopt;  ///< one all-reduce; unset: averaging_timeout
  std::optional<Duration> next_chunk_timeout = std::nullopt;  ///< between two parts of a peer; unset: matchmaking_time
  Duration load_state_timeout = 600s;                         ///< for one download of the state
  /// That close() takes at most: for members that need this peer, and for the swarm to hear of its end.
  Duration shutdown_timeout = 5s;

  /// Parameters are averaged in the background; the result is applied in a later call.
  bool delay_state_averaging = true;
  /// The optimizer steps in the background, too. Needs memory for another copy of the parameters: of the host with
  /// offload_optimizer, else where the parameters are; then they are float32, in host memory or all on one GPU.
  bool delay_optimizer_step = false;
  /// Gradients are averaged in the background, too: they are one epoch old when they are applied.
  bool delay_grad_averaging = false;
  /// The optimizer's statistics and float32 copies of the parameters are in host memory, and it steps there; the model
  /// may be on any device. Of parameters that are float32 in host memory no copies are needed.
  bool offload_optimizer = false;
  /// With offload_optimizer and a model on a GPU: gradients leave for the host while backward() still makes others,
  /// instead of all at the step. Nothing may change them in between in a way that their version counters do not see,
  /// such as writing to `grad().data()`: torch::nn::utils::clip_grad_norm_ does, Optimizer::clip_grad_norm does not.
  bool offload_gradients_early = false;
  /// Gradients add up in the model's own buffers until the epoch ends, so zero_grad has no effect.
  bool reuse_grad_buffers = false;
  /// Every peer steps on its own gradients in every batch, and parameters alone are averaged: grad_compression is not
  /// looked at, and what else is said of averaged gradients is refused. With delay_state_averaging, a round's changes
  /// are added to what the trainer has made of them meanwhile (delta rule).
  bool use_local_updates = false;
  /// With use_local_updates: what the trainers have come to is averaged once in an epoch, and an outer optimizer steps
  /// by it, in place of an average of the parameters: fewer bytes and longer rounds. What grad_compression,
  /// agreed_grad_compression and grad_aggregation say of gradients holds for it; in a run of several groups, where
  /// parameters are averaged, state_averaging_compression. Extra tensors and statistics are not averaged. nullopt:
  /// none.
  std::optional<OuterOptimizer> outer_optimizer = std::nullopt;
  /// With outer_optimizer: how long a round is follows the links of the trainers, which agree on it, so that they wait
  /// for it as little as they can: 10 to 500 local steps of each. target_batch_size is not looked at, the first rounds
  /// are 500 batches of the first trainer. Where unset, allreduce_timeout is ten minutes at least then, and
  /// next_chunk_timeout half a minute.
  bool fit_target_batch_size = false;
  /// With outer_optimizer: the trainers agree on whether differences travel as they are or, where that takes longer
  /// than a round, in the 4 bits of block4. grad_compression and agreed_grad_compression are left out.
  bool fit_compression = false;
  int average_state_every = 1;  ///< epochs between rounds that average the parameters
  /// Larger runs divide into groups of about this size, drawn anew for every round, so that in time all meet all, as
  /// what a leader sends grows with the square of the size. 0: one group of all. A grad_averager_factory's rounds are
  /// not divided.
  std::size_t target_group_size = 128;

  codec::Compression grad_compression;             ///< of gradients on their way to be averaged; by default none
  codec::Compression state_averaging_compression;  ///< the same of parameters
  /// Parameters travel as differences from what their last round has averaged, in 8 bits each way, where all members of
  /// a round ask for it and hold that average to the bit; one of so many rounds sends them as they are. Takes 4 bytes
  /// of host memory for each value of the state. 0 and 1: all rounds send them as they are.
  int full_state_every = 0;
  /// The codecs of the state that newcomers download from this peer; see averaging::StateSharingOptions::codec.
  codec::Compression load_state_compression;
  bool share_state = true;  ///< others may download the state from this peer, if it can be reached
  /// Fewer bits for gradients among cohive peers that all ask for it; see averaging::AveragerOptions::agreed_codec.
  /// Tensors of less than 4096 values are left out of codec::Codec::sparse2, which goes with an outer_optimizer
  /// without momentum.
  std::optional<codec::Compression> agreed_grad_compression = std::nullopt;
  averaging::Aggregation grad_aggregation,  ///< of the parts of gradients that this peer reduces
      state_aggregation;                    ///< of the parts of parameters that it reduces
  double verified_share = 0;  ///< of averages, made again: AveragerOptions::verified_share; the same for all trainers
  averaging::Bandwidth bandwidth;  ///< divides the averaging among the peers

  bool auxiliary = false;    ///< helps averaging without data of its own
  bool client_mode = false;  ///< cannot be reached; set by the membership

  /// Makes another averager of gradients, such as PowerSGD's; null: GradientAverager.
  GradAveragerFactory grad_averager_factory = nullptr;
  /// Makes what is averaged in place of the parameters, such as steps of an outer optimizer; null: the parameters.
  ExchangeFactory parameter_exchange = nullptr;
  /// Changes what this structure does not name, of rounds of the parameters or of outer steps; applied last.
  /// hivemind's averager_opts.
  std::function<void(averaging::AveragerOptions&)> averager_options = nullptr;
  TrackerOptions tracker_options;      ///< run_id, target_batch_size, client_mode and auxiliary are taken from above
  double performance_ema_alpha = 0.1;  ///< of the measured speed: weight of the newest batch, above 0 and at most 1
  CheckpointOptions checkpoints;       ///< that this peer writes and goes on from; by default none
  /// What report_loss() is told, the swarm is told, too: once an epoch, in the record that monitors read. Trainers of
  /// hivemind's examples do the same.
  bool share_loss = true;
  bool verbose = false;  ///< internal events are logged as information

  /// Called on the loop's thread while a state is being downloaded, often: return soon.
  std::function<void(const averaging::DownloadProgress&)> on_download = nullptr;
};

/// Throws std::invalid_argument with a sentence that says what to change, for options that make no sense or contradict
/// one another.
void check(const RunOptions& options);

}  // namespace cohive::train
