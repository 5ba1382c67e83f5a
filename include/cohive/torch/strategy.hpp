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

/// The arguments of HivemindStrategy, with its defaults where they are not hivemind.Optimizer's. docs/from-hivemind.md has
/// them all.
struct StrategyOptions {
  std::int64_t target_batch_size = 1024;
  std::string run_id = "cohive_run";
  std::optional<std::int64_t> batch_size = std::nullopt;
  bool delay_state_averaging = false;
  std::optional<bool> delay_optimizer_step = std::nullopt;  ///< unset: as delay_grad_averaging
  bool delay_grad_averaging = false;
  std::optional<bool> offload_optimizer = std::nullopt;  ///< unset: where delay_optimizer_step needs it
  bool reuse_grad_buffers = false;
  SchedulerFn scheduler_fn = nullptr;
  Duration matchmaking_time = 5s;
  Duration averaging_timeout = 30s;
  bool verbose = false;
  std::function<void(averaging::AveragerOptions&)> averager_opts = nullptr;
  std::vector<std::string> host_maddrs = {"/ip4/0.0.0.0/tcp/0"};
  std::vector<std::string> initial_peers;  ///< empty: $INITIAL_PEERS, then $PL_INITIAL_PEERS
  Duration bootstrap_timeout = 15s;
  Duration wait_for_swarm = 0s;
  std::string identity_path;
  bool client_mode = false;
  std::string metrics_address;
  /// What the fields above do not name; theirs win.
  SwarmOptions swarm;
  OptimizerOptions optimizer;

  SwarmOptions swarm_options() const;
  OptimizerOptions optimizer_options() const;
};

/// Used from the trainer's thread. Errors as those of Swarm and Optimizer. Without initial peers it logs how other peers join.
class Strategy {
 public:
  explicit Strategy(StrategyOptions options);
  ~Strategy();
  Strategy(const Strategy&) = delete;

  /// Makes the training collaborative: once, before the first step. The optimizer is made by a function, so that it can be
  /// offloaded.
  Optimizer& setup(std::vector<torch::optim::OptimizerParamGroup> parameters, const OptimizerFactory& make_optimizer,
                   ModelExtras extras = {});
  /// The same with an optimizer that exists.
  Optimizer& setup(torch::optim::Optimizer& optimizer, ModelExtras extras = {});

  /// As Optimizer::step. Throws std::logic_error before setup().
  StepReport step(std::int64_t batch_size);
  StepReport step(const at::Tensor& batch);
  StepReport step();
  StepReport step(std::int64_t batch_size, GradScaler& scaler);

  Optimizer& optimizer();
  Swarm& swarm() noexcept { return swarm_; }
  /// Peers that train in the run, this one included; HivemindStrategy's num_peers.
  std::size_t num_peers() const;
  std::vector<std::string> visible_addresses() const { return swarm_.visible_addresses(); }
  std::string join_line() const { return swarm_.join_line(); }

 private:
  StrategyOptions options_;
  Swarm swarm_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace cohive
