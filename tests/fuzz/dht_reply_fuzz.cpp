// Replies of a DHT node that lies, to every call that a node makes. Input: method, then the serialised reply.
#include "cohive/core/varint.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/rpc/rpc.hpp"
#include "dht_validators.hpp"
#include "two_hosts.hpp"

namespace cohive::fuzz {
namespace {

/// A node id in a NodeInfo in the field `number` of a reply: enough to be taken for a node.
std::string introduction(char number) {
  return std::string{static_cast<char>(number << 3 | 2), 22, 0x0a, 20} + std::string(20, 'n');
}

}  // namespace

COHIVE_FUZZ_TARGET(dht_reply)(ByteView bytes) {
  Input input(bytes);
  const int method = input.byte() % 3;
  const std::string answers[] = {introduction(2), introduction(3), introduction(3)};
  TwoHosts hosts;
  {
    rpc::Server server(hosts.stranger);
    const auto serve = [&](int number, const char* name) {
      const std::string reply = number == method ? to_string(input.rest()) : answers[number];
      server.add_unary(name, [reply](PeerId, std::string) {
        return [](std::string text) -> Task<Result<std::string>> { co_return text; }(reply);
      });
    };
    serve(0, "DHTProtocol.rpc_ping");
    serve(1, "DHTProtocol.rpc_store");
    serve(2, "DHTProtocol.rpc_find");
    Dht dht(hosts.peer);
    dht.add_validator(rsa_validator());
    dht.add_validator(schema_validator());
    (void)hosts.swarm.run(dht.ping(hosts.stranger.id()));
    (void)hosts.swarm.run(dht.get("run_progress", true));
    (void)hosts.swarm.run(dht.get("key"));
    (void)hosts.swarm.run(dht.store("key", 1, dht.now() + 60));
    hosts.swarm.run(dht.close());
  }
  hosts.finish();
}

}  // namespace cohive::fuzz
