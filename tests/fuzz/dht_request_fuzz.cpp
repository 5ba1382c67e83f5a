// Requests of a DHT node that lies. Input: method, then the serialised request.
#include "cohive/dht/dht.hpp"
#include "cohive/rpc/rpc.hpp"
#include "dht_validators.hpp"
#include "two_hosts.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(dht_request)(ByteView bytes) {
  static constexpr const char* kMethods[] = {"DHTProtocol.rpc_ping", "DHTProtocol.rpc_store", "DHTProtocol.rpc_find"};
  Input input(bytes);
  const char* method = kMethods[input.byte() % 3];
  TwoHosts hosts;
  {
    Dht dht(hosts.peer);
    dht.add_validator(rsa_validator());
    dht.add_validator(schema_validator());
    (void)hosts.swarm.run(
        rpc::call_unary(hosts.stranger, hosts.peer.id(), method, to_string(input.rest()), hosts.swarm.after(20s)));
    hosts.swarm.pass(5s);
    expect(dht.table_size() <= 1, "one peer has one place in the table");
    (void)hosts.swarm.run(dht.get("run_progress", true));
    hosts.swarm.run(dht.close());
  }
  hosts.finish();
}

}  // namespace cohive::fuzz
