// What a user of cohive tests without a network: a protocol between two hosts that lose each other, and a training run
// with options of its own. Minutes of virtual time take a second or two.
#include <cstdio>
#include <set>

#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/testing/train_scenario.hpp"

using namespace cohive;

bool a_call_across_a_cut_ends_at_its_deadline() {
  sim::Swarm swarm({.seed = 7, .latency = 40ms});
  p2p::Host &server_host = swarm.add_host(), &client = swarm.add_host();
  rpc::Server server(server_host);
  server.add_unary("Echo.say", [](PeerId, std::string words) -> Task<Result<std::string>> { co_return words; });
  const auto say = [&]() -> Task<bool> {
    const Deadline deadline = swarm.after(5s);
    if (!co_await client.connect(server_host.visible_addresses().front(), deadline)) co_return false;
    co_return (co_await rpc::call_unary(client, server_host.id(), "Echo.say", "hello", deadline)).has_value();
  };
  const bool before = swarm.run(say());
  swarm.fabric().partition({sim::Swarm::ip(1)}, {sim::Swarm::ip(2)});
  const TimePoint cut = swarm.runtime().now();
  const bool during = swarm.run(say());
  std::printf("answered %d, across the cut %d after %.1f s\n", before, during, to_seconds(swarm.runtime().now() - cut));
  return before && !during && swarm.runtime().now() - cut <= 5s;
}

bool trainers_learn_with_eight_bits() {
  sim::TrainScenario scenario = sim::small_training();
  scenario.tune = [](train::RunOptions& options) { options.grad_compression = codec::Codec::blockwise8; };
  const sim::TrainScenarioReport report = sim::run_training(scenario);
  std::printf("%d epochs, loss %.3f, of one process %.3f\n", static_cast<int>(report.epochs), report.last_loss,
              report.loss_of_one);
  return report.epochs > 3 && report.epochs_alone == 0 && report.last_loss < report.first_loss / 2;
}

int main() {
  return a_call_across_a_cut_ends_at_its_deadline() && trainers_learn_with_eight_bits() ? 0 : 1;
}
