// Two DHT nodes on this machine: one stores a value and a dictionary, the other one finds them. Each wait has a
// deadline, and each result says why there is no value. Nodes on several machines differ in their addresses only.
// CMakeLists.txt beside this file says how to build it.
#include <cstdio>
#include <iostream>

#include "cohive/core/keys.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/errors.hpp"

using namespace cohive;

struct Node {
  explicit Node(transport::Network& network)
      : host(network, KeyPair::generate_ed25519(), {.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()}}),
        dht(host) {
    host.start().value();
  }
  p2p::Host host;
  Dht dht;
};

Task<Result<>> put_and_get(Node& writer, Node& reader) {
  Runtime& runtime = writer.dht.runtime();
  CO_TRY(co_await writer.dht.start({}));  // the first of a new swarm
  CO_TRY(co_await reader.dht.start(writer.host.visible_addresses()));

  const double expiration = writer.dht.now() + 60;  // records end by themselves
  CO_TRY(co_await writer.dht.store("motto", "together", expiration, runtime.after(10s)));
  CO_TRY(co_await writer.dht.store("scores", "alice", 3, expiration, runtime.after(10s)));
  CO_TRY(co_await reader.dht.store("scores", "bob", 5, expiration, runtime.after(10s)));

  CO_TRY(const auto motto, co_await reader.dht.get("motto", true, runtime.after(10s)));
  std::printf("motto: %s\n", motto.value()->get_if<std::string>()->c_str());
  CO_TRY(const auto scores, co_await writer.dht.get("scores", true, runtime.after(10s)));
  for (const auto& [name, score] : scores.entries())
    std::printf("%s: %.0f\n", name.get_if<std::string>()->c_str(), score.value.as_number().value());

  const auto missing = co_await reader.dht.get("missing", true, runtime.after(10s));
  if (missing || missing.error() != dht::Errc::not_found) co_return Error(dht::Errc::record_invalid, "missing");
  std::cout << "missing: " << missing.error() << "\n";
  co_return ok();
}

int main() {
  const auto runtime = make_runtime();
  const auto network = transport::make_tcp_network(*runtime);
  Node writer(*network), reader(*network);
  const auto done = runtime->run(put_and_get(writer, reader));
  if (!done) std::cerr << done.error() << "\n";
  return done ? 0 : 1;
}
