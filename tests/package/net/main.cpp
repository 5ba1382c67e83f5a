// Two peers of a simulated network: one dials the other and measures the round trip.
#include <cstdio>

#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/sim_network.hpp"

int main() {
  using namespace cohive;
  SimRuntime runtime;
  transport::SimFabric fabric(runtime, {.latency = 30ms});
  const auto alices = fabric.add_machine(), bobs = fabric.add_machine();
  p2p::Host alice(*alices, KeyPair::ed25519_from_seed(Bytes(32, 1)));
  p2p::Host bob(*bobs, KeyPair::ed25519_from_seed(Bytes(32, 2)),
                {.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()}});
  bob.start().value();
  runtime.run(alice.connect(bob.visible_addresses().front(), runtime.after(5s))).value();
  const auto round_trip = runtime.run(p2p::ping(alice, bob.id(), runtime.after(5s))).value();
  std::printf("%.0f ms\n", std::chrono::duration<double, std::milli>(round_trip).count());
  return round_trip == 60ms ? 0 : 1;
}
