#include "scenarios/fitted_swarm.hpp"

#include <algorithm>

#include "cohive/testing/cheap_keys.hpp"

namespace cohive::sim {
namespace {

constexpr int kLongestJoin = 1000;  // times ten seconds

}  // namespace

FittedSwarm::FittedSwarm(std::size_t parameters, std::uint64_t seed)
    : net({.seed = seed, .latency = 25ms}), parameters_(static_cast<std::uint32_t>(parameters)) {
  options.run_id = "fitted";
  options.matchmaking_time = 5s;
  options.averaging_timeout = 30s;
  options.use_local_updates = true;
  options.outer_optimizer.emplace();
  options.fit_target_batch_size = options.fit_compression = true;
  first_ = std::make_unique<Dht>(net.add_host());
  net.run(first_->start({})).value();
}

FittedSwarm::~FittedSwarm() {
  for (auto& trainer : trainers) end(*trainer);
  first_.reset();
}

FittedSwarm::Trainer& FittedSwarm::add(Line line, Duration step, std::int64_t samples) {
  constexpr double kBytes = 1e6 / 8;  // of a Mbit
  auto trainer = std::make_unique<Trainer>();
  trainer->step = step;
  trainer->samples = samples;
  trainer->dht = std::make_unique<Dht>(net.add_host());
  trainer->ip = Swarm::ip(net.size());
  net.fabric().set_line(trainer->ip, {.upload = line.up * kBytes, .download = line.down * kBytes});
  net.run(trainer->dht->start({net.host(0).visible_addresses().front()})).value();
  const auto tensors = static_cast<std::uint32_t>(options.outer_optimizer->fragments);
  const std::vector<codec::Shape> shapes(tensors, {parameters_ / tensors});
  trainer->replica = std::make_unique<train::PlainReplica>(net.runtime(), shapes, optim::SgdOptions{.lr = 0.01});
  trainer->run = std::make_unique<train::Run>(
      *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(cheap_key(1 + trainers.size())), *trainer->replica,
      options);
  trainer->run->start();
  trainer->tasks = std::make_unique<TaskGroup>(net.runtime(), "trainer");
  trainer->tasks->spawn(train(net.runtime(), *trainer), "trainer");
  trainers.push_back(std::move(trainer));
  return *trainers.back();
}

void FittedSwarm::end(Trainer& trainer) {
  trainer.tasks.reset();
  trainer.run.reset();
  trainer.replica.reset();
  trainer.dht.reset();
}

Task<void> FittedSwarm::train(Runtime& runtime, Trainer& me) {
  (void)co_await me.run->catch_up();
  for (;;) {
    co_await runtime.sleep_for(me.step);
    me.computing += to_seconds(me.step);
    ++me.steps;
    const auto report = co_await me.run->step(me.samples);
    me.rounds += report.state_group > 1;
  }
}

double FittedSwarm::computing(Duration time) {
  std::vector<double> before;
  for (const auto& trainer : trainers) before.push_back(trainer->computing);
  net.pass(time);
  double least = 1;
  for (std::size_t i = 0; i < before.size(); ++i)
    if (trainers[i]->run) least = std::min(least, (trainers[i]->computing - before[i]) / to_seconds(time));
  return least;
}

FittedRun run_fitted(const FittedScenario& scenario) {
  FittedSwarm swarm(scenario.parameters);
  swarm.options.outer_optimizer->fragments = scenario.fragments;
  for (std::size_t i = 0; i < scenario.trainers; ++i) swarm.add(scenario.line, scenario.step);
  const auto all_train = [&swarm] {
    return std::ranges::all_of(swarm.trainers, [](const auto& trainer) { return trainer->steps > 0; });
  };
  for (int tries = 0; tries < kLongestJoin && !all_train(); ++tries) swarm.net.pass(10s);
  FittedRun report;
  report.first_computing = swarm.computing(scenario.first);
  const auto& one = *swarm.trainers.front();
  const std::uint64_t steps = one.steps;
  const std::size_t rounds = one.rounds;
  report.computing = swarm.computing(scenario.then);
  report.steps =
      static_cast<double>(one.steps - steps) / static_cast<double>(std::max<std::size_t>(1, one.rounds - rounds));
  report.told = one.run->stats().rounds;
  return report;
}

}  // namespace cohive::sim
