// cohive-interop-states: takes part in many runs, and shares their states with newcomers. Every line of its input is a
// case (model.hpp) with a "run_id". With "found": true it trains alone for three epochs, else it takes the state of the
// peers that are in the run. It answers with a line that holds the state, and leaves all runs at the end of its input.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "cohive/core/log.hpp"
#include "model.hpp"

namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::uint64_t kEpochs = 3;

struct SharedRun {
  SharedRun(cohive::Swarm& swarm, const nlohmann::json& of, const cohive::OptimizerOptions& options)
      : model(of), optimizer(swarm, *model.optimizer, options, model.scheduler, {.python = model.python}) {}

  void train() {
    while (optimizer.local_epoch() < kEpochs) {
      model.backward(1, optimizer.local_epoch());
      optimizer.step(kBatch);
    }
  }
  bool take_over() {
    for (int attempt = 0; attempt < 5; ++attempt)
      if (optimizer.load_state_from_peers()) return true;
    return false;
  }

  TestModel model;
  cohive::Optimizer optimizer;
};

cohive::OptimizerOptions options_of(const nlohmann::json& of) {
  cohive::OptimizerOptions options;
  options.run_id = of.at("run_id").get<std::string>();
  options.target_batch_size = of.value("found", false) ? 4 * kBatch : 100'000;
  options.matchmaking_time = std::chrono::seconds(1);
  options.averaging_timeout = std::chrono::seconds(10);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  cohive::SwarmOptions swarm_options;
  CLI::App app("Shares states for tests.");
  app.add_option("--initial-peers", swarm_options.initial_peers);
  CLI11_PARSE(app, argc, argv);
  swarm_options.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  cohive::log::configure({cohive::log::Level::info, cohive::log::Format::text});
  cohive::Swarm swarm(swarm_options);
  const auto print = [](const nlohmann::json& event) { std::cout << event.dump() << std::endl; };
  print({{"event", "ready"}, {"initial_peers", swarm.visible_addresses()}});
  std::vector<std::unique_ptr<SharedRun>> runs;
  for (std::string line; std::getline(std::cin, line);) {
    const auto of = nlohmann::json::parse(line);
    runs.push_back(std::make_unique<SharedRun>(swarm, of, options_of(of)));
    SharedRun& run = *runs.back();
    bool there = true;
    of.value("found", false) ? run.train() : void(there = run.take_over());
    auto event = run.model.state();
    event.update({{"event", there ? "shared" : "failed"}, {"epoch", run.optimizer.local_epoch()}});
    print(event);
  }
  return 0;
}
