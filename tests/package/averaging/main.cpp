// Two peers of a simulated network average four numbers.
#include <cstdio>

#include "cohive/averaging/averager.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/sim_network.hpp"

using namespace cohive;

struct Peer {
  Peer(transport::SimFabric& fabric, std::uint8_t seed, float value)
      : values(4, value),
        machine(fabric.add_machine()),
        host(*machine, KeyPair::ed25519_from_seed(Bytes(32, seed)),
             {.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()}}),
        dht(host),
        averager(dht, {{.values = values, .shape = {4}}}, {.prefix = "package"}) {
    host.start().value();
  }
  std::vector<float> values;
  std::unique_ptr<transport::Network> machine;
  p2p::Host host;
  Dht dht;
  averaging::Averager averager;
};

int main() {
  SimRuntime runtime;
  transport::SimFabric fabric(runtime, {.latency = 5ms});
  Peer one(fabric, 1, 1), two(fabric, 2, 4);
  runtime.run(two.dht.start({one.host.visible_addresses().front()})).value();
  std::vector<Task<Result<averaging::RoundReport>>> steps;
  for (Peer* peer : {&one, &two}) {
    peer->averager.start();
    steps.push_back(peer->averager.step());
  }
  for (auto& round : runtime.run(when_all(runtime, std::move(steps)))) round.value();
  std::printf("%g %g\n", one.values[0], two.values[3]);
  return one.values[0] == 2.5f && two.values[3] == 2.5f ? 0 : 1;
}
