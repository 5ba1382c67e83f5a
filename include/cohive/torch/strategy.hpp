/// \file
/// Strategy: a Swarm and an Optimizer in one object, under the option names that HivemindStrategy's users know.
///
///   cohive::Strategy strategy({.target_batch_size = 4096, .run_id = "my_run", .initial_peers = {"/ip4/.../p2p/..."}});
///   strategy.setup(model->parameters(), [](auto groups) {
///     return std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(1e-3));
///   });
///   for (auto& batch : loader) {
///     loss(model, batch).backward();
///     strategy.step(batch.data);
///   }
#pragma once

#include "cohive/torch/optimizer.hpp"

namespace cohive {

/// The arguments of HivemindStrategy, with its defaults where they are not hivemind.Optimizer's. docs/from-hivemind.md
/// has them all.
struct StrategyOptions {
  std::int64_t target_batch_size = 1024;                    ///< samples per epoch of all peers together
  std::string run_id = "lightning_run";                     ///< one name per training run
  std::optional<std::int64_t> batch_size = std::nullopt;    ///< samples of a batch; unset: as many as the first one has
  bool delay_state_averaging = false;                       ///< average parameters in the background
  std::optional<bool> delay_optimizer_step = std::nullopt;  ///< unset: as delay_grad_averaging
  bool delay_grad_averaging = false;                        ///< average gradients in the background
  std::optional<bool> offload_optimizer = std::nullopt;     ///< unset: as delay_optimizer_step
  bool reuse_grad_buffers = false;                          ///< accumulate in the model's own gradients
  SchedulerFn scheduler_fn = nullptr;                       ///< makes the schedule of the learning rate, by epochs
  Duration matchmaking_time = 5s;                           ///< to gather a group
  Duration averaging_timeout = 30s;                         ///< for one round
  bool verbose = false;                                     ///< log what the run does
  std::function<void(averaging::AveragerOptions&)> averager_opts = nullptr;  ///< changes options of the averagers
  std::vector<std::string> host_maddrs = {"/ip4/0.0.0.0/tcp/0"};             ///< addresses to listen on
  std::vector<std::string> initial_peers;  ///< empty: $INITIAL_PEERS, then $PL_INITIAL_PEERS
  Duration bootstrap_timeout = 15s;        ///< of one attempt to join
  Duration wait_for_swarm = 0s;            ///< to go on trying when no initial peer answers
  std::string identity_path;               ///< key file; made when missing. Empty: a new identity
  bool client_mode = false;                ///< do not listen
  std::string metrics_address;             ///< host:port for page and metrics; empty: none
  /// All options of the swarm. Those that have a field above may be set here instead: of two fields for one option the
  /// one that is not at its default counts, and two different ones are refused. The defaults are those above.
  SwarmOptions swarm;
  OptimizerOptions optimizer;  ///< the same for the options of the run

  /// Returns what these options are for Swarm. Throws std::invalid_argument where two fields contradict one another.
  SwarmOptions swarm_options() const;
  /// Returns what these options are for Optimizer; throws likewise.
  OptimizerOptions optimizer_options() const;
};

/// Used from the trainer's thread. Errors as those of Swarm and Optimizer. Without initial peers it logs how other
/// peers join.
class Strategy {
 public:
  /// Joins the swarm, or begins one. Throws ErrorException where that fails, std::invalid_argument for impossible
  /// options.
  explicit Strategy(StrategyOptions options);
  ~Strategy();
  Strategy(const Strategy&) = delete;

  /// Makes the training collaborative: once, before the first step. The optimizer is made by a function, so that it can
  /// be offloaded.
  Optimizer& setup(std::vector<torch::optim::OptimizerParamGroup> parameters, const OptimizerFactory& make_optimizer,
                   ModelExtras extras = {});
  /// The same with an optimizer that exists.
  Optimizer& setup(torch::optim::Optimizer& optimizer, ModelExtras extras = {});

  /// As Optimizer::step. Throws std::logic_error before setup().
  StepReport step(std::int64_t batch_size);
  /// The same for a batch whose leading dimension is its size.
  StepReport step(const at::Tensor& batch);
  /// The same for batches of StrategyOptions::batch_size samples, or as many as the first batch had.
  StepReport step();
  /// The same with gradients of a scaled loss.
  StepReport step(std::int64_t batch_size, GradScaler& scaler);

  /// Returns the optimizer of setup(). Throws std::logic_error before setup().
  Optimizer& optimizer();
  /// Returns the membership, for further runs.
  Swarm& swarm() noexcept { return swarm_; }
  /// Peers that train in the run, this one included; HivemindStrategy's num_peers.
  std::size_t num_peers() const;
  /// Returns the addresses by which other peers join.
  std::vector<std::string> visible_addresses() const { return swarm_.visible_addresses(); }
  /// Returns "INITIAL_PEERS=...", which other peers put in front of their command.
  std::string join_line() const { return swarm_.join_line(); }

 private:
  StrategyOptions options_;
  Swarm swarm_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace cohive
