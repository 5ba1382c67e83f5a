// cohive-interop-diloco: a trainer of local steps whose gradient is a constant that the test chooses. It averages with
// OpenDiLoCo's trainers. Prints a JSON object for every round, begins with the first byte of its standard input and
// ends at its end.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cohive/core/log.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/trainer.hpp"
#include "interop/told.hpp"

namespace {

using namespace cohive;

struct Options {
  SwarmOptions swarm;
  train::RunOptions run;
  double gradient = 1, matchmaking_time = 2, averaging_timeout = 30, pause = 0.05;
  std::int64_t batch = 8;
};

nlohmann::json values_of(train::PlainReplica& model) {
  nlohmann::json values = nlohmann::json::array();
  for (std::size_t i = 0; i < 2; ++i)
    for (const float value : model.parameter(i)) values.push_back(value);
  return values;
}

int train_until_told(const Options& options) {
  Told told;
  Swarm swarm(options.swarm);
  train::PlainReplica* model = nullptr;
  train::Trainer trainer(swarm, options.run, [&](Runtime& loop, train::TrainerThread&) {
    auto made = std::make_shared<train::PlainReplica>(loop, std::vector<codec::Shape>{{2, 3}, {2}},
                                                      optim::SgdOptions{.lr = 0.1});
    model = made.get();
    return made;
  });
  std::cout << nlohmann::json{{"event", "ready"}, {"initial_peers", swarm.visible_addresses()}}.dump() << std::endl;
  told.wait_to_begin();
  const std::vector<float> weight(6, static_cast<float>(options.gradient)), bias(2, 1.0f);
  while (!told.to_stop()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.pause));  // what a batch takes
    nlohmann::json before;
    const auto report = trainer.step([&] {
      model->step_locally({weight, bias});
      before = values_of(*model);
      return options.batch;
    });
    if (report.epoch_changed)
      std::cout << nlohmann::json{{"event", "epoch"},
                                  {"epoch", report.epoch},
                                  {"group", report.state_group},
                                  {"before", before},
                                  {"after", values_of(*model)}}
                       .dump()
                << std::endl;
  }
  trainer.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("A trainer of local steps for tests.");
  app.add_option("--initial-peers", o.swarm.initial_peers);
  app.add_option("--run-id", o.run.run_id);
  app.add_option("--gradient", o.gradient);
  app.add_option("--batch-size", o.batch);
  app.add_option("--target-batch-size", o.run.target_batch_size);
  app.add_option("--matchmaking-time", o.matchmaking_time);
  CLI11_PARSE(app, argc, argv);
  o.swarm.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  o.run.matchmaking_time = from_seconds(o.matchmaking_time);
  o.run.averaging_timeout = from_seconds(o.averaging_timeout);
  o.run.use_local_updates = true;
  o.run.delay_state_averaging = false;
  o.run.outer_optimizer = train::OuterOptimizer{.lr = 0.7, .momentum = 0.9, .open_diloco = true};
  log::configure({log::Level::debug, log::Format::text});
  return train_until_told(o);
}
