#include "cohive/train/run_options.hpp"

#include <algorithm>
#include <stdexcept>

#include "cohive/core/names.hpp"

namespace cohive::train {
namespace {

constexpr double kMostOuterRate = 100;
constexpr int kMostFragments = 64;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("cohive: " + what);
}

bool is_mean(const averaging::Aggregation& aggregation) {
  return std::holds_alternative<averaging::Mean>(aggregation);
}

void check_times(const RunOptions& options) {
  if (options.matchmaking_time <= 0s) refuse("matchmaking_time must be above zero");
  if (options.averaging_timeout <= 0s) refuse("averaging_timeout must be above zero");
  if (options.allreduce_timeout && *options.allreduce_timeout <= 0s) refuse("allreduce_timeout must be above zero");
  if (options.next_chunk_timeout && *options.next_chunk_timeout <= 0s) refuse("next_chunk_timeout must be above zero");
  if (options.load_state_timeout <= 0s) refuse("load_state_timeout must be above zero");
  if (options.shutdown_timeout < 0s) refuse("shutdown_timeout must not be negative");
}

void check_fit(const RunOptions& options) {
  if (!options.fit_target_batch_size && !options.fit_compression) return;
  if (!options.outer_optimizer)
    refuse("fit_target_batch_size and fit_compression are about rounds of local steps: set outer_optimizer, too");
  const auto codec = options.grad_compression.fixed();
  const bool chosen = !codec || codec->codec != codec::Codec::none || options.agreed_grad_compression;
  if (options.fit_compression && chosen)
    refuse("fit_compression chooses the codec: leave grad_compression and agreed_grad_compression out");
}

void check_outer_optimizer(const RunOptions& options) {
  check_fit(options);
  if (!options.outer_optimizer) return;
  const OuterOptimizer& outer = *options.outer_optimizer;
  if (!(outer.lr > 0 && outer.lr <= kMostOuterRate)) refuse("outer_optimizer.lr must be above 0 and at most 100");
  if (!(outer.momentum >= 0 && outer.momentum < 1)) refuse("outer_optimizer.momentum must be from 0 to below 1");
  if (outer.fragments < 1 || outer.fragments > kMostFragments)
    refuse("outer_optimizer.fragments must be from 1 to " + std::to_string(kMostFragments));
  if (outer.repair_every < 1) refuse("outer_optimizer.repair_every must be at least 1");
  if (outer.open_diloco && (options.fit_target_batch_size || options.fit_compression))
    refuse("OpenDiLoCo's trainers agree on nothing: leave fit_target_batch_size and fit_compression out");
  if (outer.open_diloco && outer.fragments > 1)
    refuse("OpenDiLoCo's trainers average the whole model in each round: leave outer_optimizer.fragments out");
  if (!options.use_local_updates)
    refuse("outer_optimizer steps by what local steps have changed: set use_local_updates, too");
  if (options.parameter_exchange)
    refuse("outer_optimizer says what is averaged in place of the parameters: leave parameter_exchange out");
  if (options.grad_averager_factory)
    refuse(
        "outer_optimizer averages differences, and no factors of gradients (PowerSGD): leave grad_averager_factory "
        "out");
  if (options.average_state_every != 1)
    refuse(
        "outer_optimizer steps at the end of every epoch: leave average_state_every out, and set a larger "
        "target_batch_size for longer rounds");
}

/// An exchange of the program's own may look at what is said of gradients, as an outer step does. Trainers that carry a
/// grad_compression over from hivemind lose nothing by it.
void check_local_updates(const RunOptions& options) {
  if (!options.use_local_updates || options.outer_optimizer || options.parameter_exchange) return;
  if (options.grad_averager_factory) refuse("use_local_updates averages no gradients: leave grad_averager_factory out");
  if (options.agreed_grad_compression)
    refuse("use_local_updates averages no gradients: leave agreed_grad_compression out, or set outer_optimizer");
  if (!is_mean(options.grad_aggregation) && is_mean(options.state_aggregation))
    refuse(
        "use_local_updates averages parameters, and no gradients: set state_aggregation in place of grad_aggregation");
}

void check_sparse(const RunOptions& options) {
  const auto& agreed = options.agreed_grad_compression;
  const bool sparse = agreed && codec::uses(*agreed, codec::Codec::sparse2);
  const bool of_senders = std::holds_alternative<averaging::MeanOfSenders>(options.grad_aggregation);
  if (std::holds_alternative<averaging::MeanOfSenders>(options.state_aggregation))
    refuse("state_aggregation MeanOfSenders is about values that are left out, and of parameters none is");
  if (of_senders && !sparse)
    refuse("MeanOfSenders is for sparse2, whose senders leave values out: set agreed_grad_compression, too");
  if (!sparse) return;
  if (!options.outer_optimizer)
    refuse("sparse2 is for differences of local steps: set outer_optimizer, or take top_k for gradients");
  if (options.outer_optimizer->momentum > 0)
    refuse(
        "what sparse2 has not sent yet is part of later steps, as a momentum would be: set outer_optimizer.momentum "
        "to 0");
  if (options.verified_share > 0)
    refuse("averages in sparse2 have what earlier ones have lost, and cannot be made again: leave verified_share out");
}

void check_full_state(const RunOptions& options) {
  if (options.full_state_every < 0) refuse("full_state_every must not be negative");
  if (options.full_state_every == 0) return;
  if (options.outer_optimizer)
    refuse(
        "full_state_every is about rounds of parameters, and outer_optimizer has others: leave full_state_every out");
  if (options.parameter_exchange)
    refuse("parameter_exchange says what is averaged in place of the parameters: leave full_state_every out");
  const auto codecs = options.state_averaging_compression.choices();
  if (!std::ranges::all_of(codecs, [](const auto& chosen) { return chosen.codec == codec::Codec::none; }))
    refuse(
        "with full_state_every parameters travel as they are or as 8-bit differences: leave "
        "state_averaging_compression out");
  if (std::holds_alternative<averaging::ClippedMean>(options.state_aggregation))
    refuse(
        "ClippedMean goes by lengths, which differences from a common state have others of than parameters: take "
        "another state_aggregation, or leave full_state_every out");
}

void check_checkpoints(const RunOptions& options) {
  const CheckpointOptions& checkpoints = options.checkpoints;
  if (checkpoints.keep < 1) refuse("checkpoints.keep must be at least 1");
  if (checkpoints.every < 0s) refuse("checkpoints.every must not be negative");
  if (checkpoints.resume && checkpoints.directory.empty()) refuse("checkpoints.resume needs checkpoints.directory");
  if (options.auxiliary && !checkpoints.directory.empty())
    refuse("an auxiliary peer has no state of its own to save: leave checkpoints.directory out");
}

}  // namespace

void check(const RunOptions& options) {
  if (const auto fault = fault_of_name(options.run_id)) refuse("run_id " + *fault);
  if (options.target_batch_size < 1) refuse("target_batch_size must be at least 1");
  if (options.target_group_size == 1) refuse("target_group_size must be at least 2, or 0 for one group of all");
  if (options.average_state_every < 1) refuse("average_state_every must be at least 1");
  if (!(options.performance_ema_alpha > 0 && options.performance_ema_alpha <= 1))
    refuse("performance_ema_alpha must be above 0 and at most 1");
  if (!(options.verified_share >= 0 && options.verified_share <= 1)) refuse("verified_share must be from 0 to 1");
  check_times(options);
  check_checkpoints(options);
  check_outer_optimizer(options);
  check_sparse(options);
  check_local_updates(options);
  check_full_state(options);
  if (options.delay_grad_averaging && !options.delay_optimizer_step)
    refuse("delay_grad_averaging needs delay_optimizer_step: set it, too, or delay neither");
  if (options.batch_size && *options.batch_size < 1) refuse("batch_size must be at least 1");
  if (options.auxiliary && options.batch_size) refuse("an auxiliary peer has no batches: leave batch_size out");
  if (options.offload_gradients_early && !options.offload_optimizer)
    refuse("offload_gradients_early is about gradients of an offloaded optimizer: set offload_optimizer, too");
  if (options.offload_gradients_early && (options.reuse_grad_buffers || options.use_local_updates))
    refuse(
        "offload_gradients_early sends the gradients of every batch to the host: leave reuse_grad_buffers and "
        "use_local_updates out");
  if (options.use_local_updates && options.reuse_grad_buffers)
    refuse("with use_local_updates every batch steps with its own gradients: leave reuse_grad_buffers out");
  if (options.delay_grad_averaging && options.use_local_updates)
    refuse("use_local_updates averages no gradients: leave delay_grad_averaging out");
  if (options.delay_optimizer_step && options.use_local_updates)
    refuse("with use_local_updates the trainer steps by itself: leave delay_optimizer_step out");
  if (options.client_mode && options.auxiliary)
    refuse("an auxiliary peer averages for other peers and must be reachable: leave client_mode or auxiliary out");
  if (options.parameter_exchange && options.auxiliary)
    refuse("an auxiliary peer helps to average gradients and parameters: leave parameter_exchange or auxiliary out");
  if (options.use_local_updates && options.auxiliary)
    refuse("use_local_updates leaves an auxiliary peer nothing to help with: leave one of the two out");
}

}  // namespace cohive::train
