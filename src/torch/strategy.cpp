#include "cohive/torch/strategy.hpp"

#include <torch/torch.h>

#include "cohive/core/log.hpp"

namespace cohive {

namespace {

[[noreturn]] void contradict(const std::string& own, const std::string& nested) {
  throw std::invalid_argument("StrategyOptions: " + own + " and " + nested +
                              " are set to different values; set one of them");
}

/// What one option is that two fields name: the one that is not at its default. `options` holds the nested one.
template <class Nested, class T>
void settle(Nested& options, T Nested::* field, const StrategyOptions& given, T StrategyOptions::* own,
            const std::string& own_name, const std::string& nested_name) {
  static const StrategyOptions usual;
  static const Nested usually_nested;
  const T& value = given.*own;
  if (options.*field != usually_nested.*field) {
    if (value != usual.*own && value != options.*field) contradict(own_name, nested_name);
  } else {
    options.*field = value;
  }
}

}  // namespace

SwarmOptions StrategyOptions::swarm_options() const {
  SwarmOptions result = swarm;
  const auto take = [&](auto field, auto own, const std::string& name) {
    settle(result, field, *this, own, name, "swarm." + name);
  };
  take(&SwarmOptions::initial_peers, &StrategyOptions::initial_peers, "initial_peers");
  take(&SwarmOptions::host_maddrs, &StrategyOptions::host_maddrs, "host_maddrs");
  take(&SwarmOptions::identity_path, &StrategyOptions::identity_path, "identity_path");
  take(&SwarmOptions::metrics_address, &StrategyOptions::metrics_address, "metrics_address");
  take(&SwarmOptions::bootstrap_timeout, &StrategyOptions::bootstrap_timeout, "bootstrap_timeout");
  take(&SwarmOptions::wait_for_swarm, &StrategyOptions::wait_for_swarm, "wait_for_swarm");
  result.client_mode = client_mode || swarm.client_mode || optimizer.client_mode;
  return result;
}

OptimizerOptions StrategyOptions::optimizer_options() const {
  OptimizerOptions result = optimizer;
  const auto take = [&](auto field, auto own, const std::string& name) {
    settle(result, field, *this, own, name, "optimizer." + name);
  };
  take(&OptimizerOptions::target_batch_size, &StrategyOptions::target_batch_size, "target_batch_size");
  take(&OptimizerOptions::run_id, &StrategyOptions::run_id, "run_id");
  take(&OptimizerOptions::batch_size, &StrategyOptions::batch_size, "batch_size");
  take(&OptimizerOptions::delay_state_averaging, &StrategyOptions::delay_state_averaging, "delay_state_averaging");
  take(&OptimizerOptions::delay_grad_averaging, &StrategyOptions::delay_grad_averaging, "delay_grad_averaging");
  take(&OptimizerOptions::reuse_grad_buffers, &StrategyOptions::reuse_grad_buffers, "reuse_grad_buffers");
  take(&OptimizerOptions::matchmaking_time, &StrategyOptions::matchmaking_time, "matchmaking_time");
  take(&OptimizerOptions::averaging_timeout, &StrategyOptions::averaging_timeout, "averaging_timeout");
  take(&OptimizerOptions::verbose, &StrategyOptions::verbose, "verbose");
  const auto choose = [](const std::optional<bool>& own, bool nested, bool unset, const std::string& name) {
    if (own && nested && !*own) contradict(name, "optimizer." + name);
    return own.value_or(nested || unset);
  };
  result.delay_optimizer_step =
      choose(delay_optimizer_step, optimizer.delay_optimizer_step, result.delay_grad_averaging, "delay_optimizer_step");
  result.offload_optimizer =
      choose(offload_optimizer, optimizer.offload_optimizer, result.delay_optimizer_step, "offload_optimizer");
  if (averager_opts && optimizer.averager_options) contradict("averager_opts", "optimizer.averager_options");
  if (averager_opts) result.averager_options = averager_opts;
  result.client_mode = client_mode || swarm.client_mode || optimizer.client_mode;
  return result;
}

namespace {

/// Options that contradict one another are refused before the swarm is joined.
StrategyOptions checked(StrategyOptions options) {
  train::check(options.optimizer_options());
  (void)options.swarm_options();
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
  const auto report = optimizer().step(batch);
  if (!options_.batch_size && !options_.optimizer.batch_size) options_.batch_size = batch.size(0);
  return report;
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
