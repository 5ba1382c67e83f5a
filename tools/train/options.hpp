// The flags of cohive-train.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/log.hpp"
#include "cohive/torch/strategy.hpp"
#include "train/workload.hpp"

namespace cohive::tools {

struct TrainOptions {
  SwarmOptions swarm;
  OptimizerOptions optimizer;
  WorkloadOptions workload;
  std::string save, summary, load_checkpoint;
  bool json = false, dry_run = false;
  std::vector<std::string> compare;
  std::string algorithm = "adamw";
  std::optional<double> given_learning_rate, given_momentum, adamw_learning_rate;
  double learning_rate = 1e-3, momentum = 0.9;  ///< of the algorithm, where they are not given
  double clip_grad_norm = 0;
  std::string lr_schedule = "constant";
  std::uint64_t warmup_epochs = 0;
  std::optional<std::uint64_t> schedule_epochs;
  std::optional<double> lr_gamma, lr_least;
  SchedulerFn scheduler;  ///< what these say together
  ModelExtras extras;
  double seconds = 0, until = 0;
  std::int64_t batch = 16;
  std::uint64_t max_epochs = 0, seed = 0, eval_every = 0;
  std::string mixed_precision;  ///< float16, bfloat16, or none
  int threads = 1;
  std::string aggregation;  ///< empty: mean, and with sparse2 mean-of-senders
  std::optional<double> trim, clip_radius, clip_factor;
  std::optional<int> clip_iterations;
  std::string agreed_compression;
  std::optional<double> density;
  std::size_t averager_rank = 0;  ///< of PowerSGD; 0: gradients are averaged as they are
  std::optional<double> min_compression_ratio;
  bool local_steps = false;
  std::optional<bool> fit_my_link;                     ///< unset: with local steps, as far as no other option says it
  std::optional<std::int64_t> target_batch_size;       ///< unset: fitted, or that of the library
  std::optional<codec::Compression> grad_compression;  ///< the same
  train::OuterOptimizer outer;                         ///< of local steps
  std::optional<double> outer_momentum;                ///< unset: that of `outer`, and none with sparse2
  log::Options log;
};

void add_train_options(CLI::App& app, TrainOptions& options);
/// Completes what several flags say together. Throws Exit with code 2.
void complete(TrainOptions& options);

/// Reads a compression: a codec by hivemind's name in any case ("float16"), or "N:LESS:MORE", which takes the codec
/// MORE for tensors of at least N values and LESS for smaller ones.
std::optional<codec::Compression> compression_from_text(const std::string& text);

}  // namespace cohive::tools
