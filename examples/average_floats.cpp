// Two peers on this machine average their floats. Those of several machines differ in their addresses only; all have
// the same prefix and the same shapes.
#include <cstdio>
#include <iostream>

#include "cohive/averaging/averager.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"

using namespace cohive;

struct Peer {
  Peer(transport::Network& network, float value)
      : values(1000, value),
        host(network, KeyPair::generate_ed25519(), {.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()}}),
        dht(host),
        averager(dht, {{.values = values, .shape = {1000}}}, {.prefix = "floats"}) {
    host.start().value();
    averager.start();
  }
  std::vector<float> values;
  p2p::Host host;
  Dht dht;
  averaging::Averager averager;
};

Task<Result<>> average(Peer& first, Peer& second) {
  CO_TRY(co_await first.dht.start({}));  // the first of a new swarm
  CO_TRY(co_await second.dht.start(first.host.visible_addresses()));
  std::vector<Task<Result<averaging::RoundReport>>> steps;
  for (Peer* peer : {&first, &second}) steps.push_back(peer->averager.step());
  for (const auto& round : co_await when_all(first.dht.runtime(), std::move(steps))) {
    if (!round) co_return round.error();
    std::printf("averaged with %zu peers\n", round->group.size());
  }
  co_return ok();
}

int main() {
  const auto runtime = make_runtime();
  const auto network = transport::make_tcp_network(*runtime);
  Peer first(*network, 1), second(*network, 4);
  const auto done = runtime->run(average(first, second));
  if (!done) std::cerr << done.error() << "\n";
  std::printf("%g %g\n", first.values[0], second.values[999]);
  return done && first.values[0] == 2.5f && second.values[999] == 2.5f ? 0 : 1;
}
