// cohive-interop-trainer: a trainer whose gradient is a constant that the test chooses, so that what a run computes is
// known. Prints a JSON object for every epoch. Begins with the first byte of its standard input, rests after
// --max-epochs and ends at the end of its input.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cohive/core/log.hpp"
#include "cohive/torch/optimizer.hpp"
#include "interop/told.hpp"
#include "model.hpp"

namespace {

struct Options {
  cohive::SwarmOptions swarm;
  cohive::OptimizerOptions optimizer;
  std::string algorithm = "sgd", schedule, frozen;
  std::size_t groups = 1;
  double gradient = 1, matchmaking_time = 2, averaging_timeout = 30, pause = 0.05;
  std::int64_t batch = 8;
  std::uint64_t max_epochs = 1000000;
  std::optional<double> mean;         // what an extra tensor holds; none: there is no such tensor
  std::optional<std::int64_t> count;  // another one
  std::vector<std::string> statistics;
};

int train(const Options& options) {
  Told told;
  TestModel model({{"algorithm", options.algorithm},
                   {"schedule", options.schedule},
                   {"frozen", options.frozen},
                   {"groups", options.groups}});
  cohive::Swarm swarm(options.swarm);
  auto mean = torch::full({3}, options.mean.value_or(0)), count = torch::tensor(options.count.value_or(0));
  cohive::ModelExtras extras;
  extras.average_opt_statistics = options.statistics;
  if (options.mean) extras.extra_tensors.push_back(mean);
  if (options.count) extras.extra_tensors.push_back(count);
  cohive::Optimizer collaborative(swarm, *model.optimizer, options.optimizer, model.scheduler, extras);
  const auto print = [&](const char* event, const cohive::StepReport& report) {
    auto state = model.state();
    const auto second = state["statistics"].find("0.exp_avg_sq");
    state.update({{"event", event},
                  {"epoch", collaborative.local_epoch()},
                  {"group", report.grad_group},
                  {"state_group", report.state_group},
                  {"mean", values_of(mean)},
                  {"count", count.item<std::int64_t>()},
                  {"second_moment", second == state["statistics"].end() ? 0.0 : second->front().get<double>()}});
    std::cout << state.dump() << std::endl;
  };
  std::cout << nlohmann::json{{"event", "ready"}, {"initial_peers", swarm.visible_addresses()}}.dump() << std::endl;
  told.wait_to_begin();
  while (!told.to_stop()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.pause));  // what a batch takes
    if (collaborative.local_epoch() >= options.max_epochs) continue;
    model.backward(options.gradient, collaborative.local_epoch());
    const auto report = collaborative.step(options.batch);
    if (report.loaded_state) print("downloaded", report);
    if (report.epoch_changed) print("epoch", report);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("A trainer for tests.");
  app.add_option("--initial-peers", o.swarm.initial_peers);
  app.add_option("--run-id", o.optimizer.run_id);
  app.add_option("--algorithm", o.algorithm);
  app.add_option("--schedule", o.schedule);
  app.add_option("--frozen", o.frozen);
  app.add_option("--groups", o.groups);
  app.add_option("--gradient", o.gradient);
  app.add_option("--batch-size", o.batch);
  app.add_option("--target-batch-size", o.optimizer.target_batch_size);
  app.add_option("--matchmaking-time", o.matchmaking_time);
  app.add_option("--max-epochs", o.max_epochs);
  app.add_option("--mean", o.mean);
  app.add_option("--count", o.count);
  app.add_option("--average-opt-statistics", o.statistics);
  o.optimizer.delay_state_averaging = false;
  app.add_flag("--delay-state-averaging", o.optimizer.delay_state_averaging);
  app.add_flag("--delay-optimizer-step", o.optimizer.delay_optimizer_step);
  app.add_flag("--delay-grad-averaging", o.optimizer.delay_grad_averaging);
  app.add_flag("--offload-optimizer", o.optimizer.offload_optimizer);
  app.add_flag("--use-local-updates", o.optimizer.use_local_updates);
  CLI11_PARSE(app, argc, argv);
  o.swarm.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  o.optimizer.matchmaking_time = cohive::from_seconds(o.matchmaking_time);
  o.optimizer.averaging_timeout = cohive::from_seconds(o.averaging_timeout);
  cohive::log::configure({cohive::log::Level::debug, cohive::log::Format::text});
  return train(o);
}
