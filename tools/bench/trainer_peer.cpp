// cohive-bench-trainer: one peer of benchmarks/optimizer_vs_hivemind.py. A training loop whose model is nothing but
// memory: gradients that cost little, other work that is a pause (what a GPU would do), and the calls that are
// measured. Begins with the first line of its standard input, or with its end; prints its address, then its numbers.
// With --until-killed it trains on and prints each epoch, as benchmarks/killed_trainers.py wants it.
#include <sys/resource.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cohive/core/log.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/tensor_memory.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  cohive::SwarmOptions swarm;
  cohive::OptimizerOptions optimizer;
  std::int64_t tensors = 24, rows = 2048, columns = 2048, batches = 16, peers = 2, epochs = 4;
  double work = 0.1, matchmaking_time = 2, averaging_timeout = 60;
  bool plain = false, fp16 = false, until_killed = false;
  std::string algorithm = "adam";
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

/// A gradient of ones for every parameter: one pass over memory.
void backward(const std::vector<torch::Tensor>& parameters) {
  torch::Tensor loss;
  for (const auto& parameter : parameters) loss = loss.defined() ? loss + parameter.sum() : parameter.sum();
  loss.backward();
  // sum() leaves gradients that are expanded scalars; a model's are memory.
  torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters)
    if (!parameter.grad().is_contiguous()) parameter.mutable_grad() = parameter.grad().contiguous();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        std::vector<torch::optim::OptimizerParamGroup> groups) {
  if (options.algorithm == "sgd")
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(1e-3).momentum(0.9));
  return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(1e-3));
}

/// What the loop takes without any optimizer, per epoch.
double loop_alone(const Options& options, const std::vector<torch::Tensor>& parameters, int epochs) {
  const auto start = Clock::now();
  for (int i = 0; i < epochs * static_cast<int>(options.batches); ++i) {
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    backward(parameters);
    std::this_thread::sleep_for(std::chrono::duration<double>(options.work));
  }
  return seconds_since(start) / epochs;
}

int run(const Options& options) {
  const double before = peak_bytes();
  std::vector<torch::Tensor> parameters;
  for (std::int64_t i = 0; i < options.tensors; ++i)
    parameters.push_back(torch::zeros({options.rows, options.columns}).requires_grad_());
  const auto bytes = static_cast<double>(options.tensors * options.rows * options.columns) * sizeof(float);
  const double alone = options.until_killed ? 0 : loop_alone(options, parameters, 1);

  cohive::Swarm swarm(options.swarm);
  cohive::Optimizer optimizer(
      swarm, {torch::optim::OptimizerParamGroup(parameters)},
      [&](auto groups) { return make_optimizer(options, std::move(groups)); }, options.optimizer);
  std::cout << nlohmann::json{{"initial_peers", swarm.visible_addresses()}, {"empty_bytes", before}}.dump()
            << std::endl;
  std::cin.get();

  std::vector<double> plain, ends, epochs, lost;  // seconds: of calls, of epochs, in calls per epoch
  std::vector<std::size_t> groups;
  double in_calls = 0;
  auto epoch_start = Clock::now();
  while (options.until_killed || static_cast<std::int64_t>(epochs.size()) <= options.epochs) {
    optimizer.zero_grad();
    backward(parameters);
    const auto start = Clock::now();
    const auto report = optimizer.step(1);
    const double took = seconds_since(start);
    in_calls += took;
    (report.epoch_changed ? ends : plain).push_back(took);
    if (options.until_killed && (report.epoch_changed || report.loaded_state)) {
      std::cout << (report.epoch_changed ? "epoch " : "caught up: epoch ") << report.epoch << std::endl;
    } else if (report.epoch_changed) {
      groups.push_back(report.grad_group);
      lost.push_back(std::exchange(in_calls, 0));
      epochs.push_back(seconds_since(epoch_start));
      epoch_start = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(options.work));
  }
  const auto stats = optimizer.stats();
  // The first epoch makes statistics and connections.
  for (auto* values : {&ends, &epochs, &lost}) values->erase(values->begin());
  std::cout << nlohmann::json{{"plain", plain},
                              {"ends", ends},
                              {"epochs", epochs},
                              {"lost", lost},
                              {"alone", alone},
                              {"groups", groups},
                              {"grad_rounds_failed", stats.grad_rounds_failed},
                              {"state_rounds", stats.state_rounds},
                              {"state_rounds_failed", stats.state_rounds_failed},
                              {"peak_per_parameters", (peak_bytes() - before) / bytes},
                              {"peak_bytes", peak_bytes() - before}}
                   .dump()
            << std::endl;
  std::cin.get();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.swarm.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  CLI::App app("One peer of optimizer_vs_hivemind.py.");
  auto& optimizer = o.optimizer;
  app.add_option("--initial-peers", o.swarm.initial_peers);
  app.add_option("--listen", o.swarm.host_maddrs);
  app.add_option("--trace", o.swarm.trace_file);
  app.add_option("--congestion-control", o.swarm.congestion_control);
  app.add_option("--connections-per-peer", o.swarm.connections_per_peer);
  app.add_option("--tensors", o.tensors);
  app.add_option("--rows", o.rows);
  app.add_option("--columns", o.columns);
  app.add_option("--batches", o.batches);
  app.add_option("--peers", o.peers);
  app.add_option("--epochs", o.epochs);
  app.add_option("--work", o.work);
  app.add_option("--matchmaking-time", o.matchmaking_time);
  app.add_option("--averaging-timeout", o.averaging_timeout);
  app.add_option("--algorithm", o.algorithm);
  app.add_flag("--fp16", o.fp16);
  app.add_flag("--until-killed", o.until_killed);
  app.add_option("--delay-state-averaging", optimizer.delay_state_averaging);
  app.add_option("--delay-optimizer-step", optimizer.delay_optimizer_step);
  app.add_option("--delay-grad-averaging", optimizer.delay_grad_averaging);
  app.add_option("--offload-optimizer", optimizer.offload_optimizer);
  app.add_option("--reuse-grad-buffers", optimizer.reuse_grad_buffers);
  app.add_option("--average-state-every", optimizer.average_state_every);
  CLI11_PARSE(app, argc, argv);
  optimizer.run_id = "bench";
  optimizer.target_batch_size = o.batches * o.peers;
  optimizer.matchmaking_time = cohive::from_seconds(o.matchmaking_time);
  optimizer.averaging_timeout = cohive::from_seconds(o.averaging_timeout);
  if (o.fp16) optimizer.grad_compression = optimizer.state_averaging_compression = cohive::codec::Codec::float16;
  cohive::recycle_tensor_memory();
  torch::set_num_threads(1);
  return run(o);
}
