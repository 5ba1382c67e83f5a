// Simulated training runs: a row for every size of the swarm.

#include <iostream>

#include "bench/bench.hpp"
#include "cohive/core/log.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "common/signals.hpp"

namespace cohive::bench {
namespace {

constexpr double kLocalRate = 0.001;    // at which a dozen rounds of 30 steps lead half of the way
constexpr double kOuterMomentum = 0.5;  // as goes with short rounds
constexpr Duration kShortestStep = 500ms, kLongestStep = 1s;
constexpr std::size_t kManyTrainers = 1000;  // whose runs take so long that one wants to know how far they are
constexpr int kSecondsOfProgress = 10;       // of virtual time, between two lines

/// Rounds of so many local steps, of trainers that learn all of the time.
void use_local_steps(sim::TrainScenario& scenario, const Settings& settings) {
  scenario.batches_per_epoch = settings.local_steps;
  scenario.learning_rate = kLocalRate;
  scenario.shortest_batch = kShortestStep, scenario.longest_batch = kLongestStep;
  scenario.tune = [](train::RunOptions& options) {
    options.use_local_updates = true;
    options.delay_state_averaging = false;
    options.outer_optimizer = train::OuterOptimizer{.momentum = kOuterMomentum};
  };
}

/// Tells how far the run is, and what it took. Ends it where a signal asks for that.
void look_after(sim::TrainSwarm& swarm, double second) {
  if (tools::stop_signal() != 0) swarm.stop();
  if (swarm.size() < kManyTrainers || (static_cast<int>(second) + 1) % kSecondsOfProgress != 0) return;
  std::cerr << log::format("{:>8} trainers, {:.0f} s simulated, {:.0f} s of a processor\n", swarm.size(), second + 1,
                           processor_seconds());
}

}  // namespace

nlohmann::json train_sim(const Settings& settings) {
  nlohmann::json rows = nlohmann::json::array();
  std::cerr << log::format(
      "{:>8} {:>7} {:>9} {:>6} {:>7} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10} {:>6} {:>9} {:>8}\n",
      "trainers", "epochs", "epochs/h", "alone", "group", "B/s/peer", "DHT B/s", "shards", "busiest", "error",
      "waiting", "loss", "one's loss", "newcomers", "late", "downloads", "real s");
  for (const std::size_t trainers : settings.trainers) {
    sim::TrainScenario scenario;
    scenario.trainers = trainers;
    scenario.seed = settings.seed;
    scenario.replaced_per_minute = settings.replaced_per_minute;
    scenario.duration = from_seconds(settings.minutes * 60);
    scenario.connections = settings.connections;
    scenario.plaintext = settings.plaintext;
    scenario.arrival = from_seconds(settings.arrival_seconds);
    scenario.each_second = look_after;
    if (settings.local_steps > 0) use_local_steps(scenario, settings);
    scenario.tune = [&settings, tune = std::move(scenario.tune)](train::RunOptions& options) {
      options.tracker_options.sharded_above = settings.sharded_above;
      options.target_group_size = settings.group;
      if (tune) tune(options);
    };
    const sim::TrainScenarioReport report = sim::run_training(scenario);
    std::cerr << log::format(
        "{:>8} {:>7} {:>9.0f} {:>6} {:>7.1f} {:>11.0f} {:>8.0f} {:>8.0f} {:>8.0f} {:>7.2f}% {:>7.2f}% {:>10.2e} "
        "{:>10.2e} {:>10} {:>6} {:>9} {:>8.1f}\n",
        trainers, report.epochs, report.epochs_per_hour, report.epochs_alone, report.mean_group,
        report.bytes_per_peer_second, report.dht_bytes, report.shard_bytes, report.shard_bytes_busiest,
        100 * report.samples_error, 100 * report.waiting, report.last_loss, report.loss_of_one, report.newcomers,
        report.newcomers_late, report.downloads, report.real_seconds);
    if (settings.local_steps > 0)
      std::cerr << log::format(
          "{:>8} {:.3f} % of what they have moved apart, loss {:.5f} after a round, {:.5f} in one group\n", "",
          100 * report.apart, report.loss_after_round, report.loss_of_one_group);
    rows.push_back({{"trainers", trainers},
                    {"minutes", report.seconds / 60},
                    {"epochs", report.epochs},
                    {"epochs_per_hour", report.epochs_per_hour},
                    {"epochs_alone", report.epochs_alone},
                    {"mean_group", report.mean_group},
                    {"bytes_per_peer_second", report.bytes_per_peer_second},
                    {"dht_bytes_per_peer_second", report.dht_bytes},
                    {"shard_bytes_per_peer_second", report.shard_bytes},
                    {"shard_bytes_of_busiest_per_second", report.shard_bytes_busiest},
                    {"samples_error", report.samples_error},
                    {"waiting", report.waiting},
                    {"first_loss", report.first_loss},
                    {"last_loss", report.last_loss},
                    {"loss_of_one", report.loss_of_one},
                    {"newcomers", report.newcomers},
                    {"newcomers_late", report.newcomers_late},
                    {"downloads", report.downloads},
                    {"followed", report.followed},
                    {"offences", report.offences},
                    {"spread", report.spread},
                    {"apart", report.apart},
                    {"loss_after_round", report.loss_after_round},
                    {"loss_of_one_group", report.loss_of_one_group},
                    {"real_seconds", report.real_seconds}});
    if (tools::stop_signal() != 0) break;
  }
  return {{"benchmark", "train-sim"},
          {"replaced_per_minute", settings.replaced_per_minute},
          {"sharded_above", settings.sharded_above},
          {"swarms", rows}};
}

}  // namespace cohive::bench
