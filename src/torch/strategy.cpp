#include "cohive/torch/strategy.hpp"

#include <torch/torch.h>

#include "cohive/core/log.hpp"

namespace cohive {

SwarmOptions StrategyOptions::swarm_options() const {
  SwarmOptions result = swarm;
  result.initial_peers = initial_peers;
  result.host_maddrs = host_maddrs;
  result.identity_path = identity_path;
  result.client_mode = client_mode;
  result.metrics_address = metrics_address;
  result.bootstrap_timeout = bootstrap_timeout;
  result.wait_for_swarm = wait_for_swarm;
  return result;
}

OptimizerOptions StrategyOptions::optimizer_options() const {
  OptimizerOptions result = optimizer;
  result.target_batch_size = target_batch_size;
  result.run_id = run_id;
  result.batch_size = batch_size;
  result.delay_state_averaging = delay_state_averaging;
  result.delay_optimizer_step = delay_optimizer_step.value_or(delay_grad_averaging);
  result.delay_grad_averaging = delay_grad_averaging;
  result.offload_optimizer = offload_optimizer.value_or(result.delay_optimizer_step);
  result.reuse_grad_buffers = reuse_grad_buffers;
  result.matchmaking_time = matchmaking_time;
  result.averaging_timeout = averaging_timeout;
  result.verbose = verbose;
  result.averager_options = averager_opts;
  result.client_mode = client_mode;
  return result;
}

namespace {

/// Options that contradict one another are refused before the swarm is joined.
StrategyOptions checked(StrategyOptions options) {
  train::check(options.optimizer_options());
  return options;
}

}  // namespace

Strategy::Strategy(StrategyOptions options) : options_(checked(std::move(options))), swarm_(options_.swarm_options()) {
  if (swarm_.options().initial_peers.empty())
    log::info("train", "a new swarm; other peers join with: {} <command>", swarm_.join_line());
}
Strategy::~Strategy() = default;

Optimizer& Strategy::setup(std::vector<torch::optim::OptimizerParamGroup> parameters,
                           const OptimizerFactory& make_optimizer, ModelExtras extras) {
  if (optimizer_) throw std::logic_error("cohive::Strategy: setup has been called");
  optimizer_ = std::make_unique<Optimizer>(swarm_, std::move(parameters), make_optimizer, options_.optimizer_options(),
                                           options_.scheduler_fn, std::move(extras));
  return *optimizer_;
}

Optimizer& Strategy::setup(torch::optim::Optimizer& optimizer, ModelExtras extras) {
  if (optimizer_) throw std::logic_error("cohive::Strategy: setup has been called");
  optimizer_ = std::make_unique<Optimizer>(swarm_, optimizer, options_.optimizer_options(), options_.scheduler_fn,
                                           std::move(extras));
  return *optimizer_;
}

Optimizer& Strategy::optimizer() {
  if (!optimizer_) throw std::logic_error("cohive::Strategy: call setup first, with the parameters or the optimizer");
  return *optimizer_;
}

StepReport Strategy::step(std::int64_t batch_size) {
  return optimizer().step(batch_size);
}

StepReport Strategy::step(const at::Tensor& batch) {
  if (!options_.batch_size) options_.batch_size = batch.dim() > 0 ? batch.size(0) : 0;
  return optimizer().step(batch);
}

/// The size of a batch is that of the options, or of the first one.
StepReport Strategy::step() {
  if (options_.batch_size) return optimizer().step(*options_.batch_size);
  return optimizer().step();
}

StepReport Strategy::step(std::int64_t batch_size, GradScaler& scaler) {
  return optimizer().step(batch_size, scaler);
}

std::size_t Strategy::num_peers() const {
  return optimizer_ ? optimizer_->stats().peers : 0;
}

}  // namespace cohive
