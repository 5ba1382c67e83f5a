#include "common/client.hpp"

#include "cohive/core/combine.hpp"
#include "common/program.hpp"

namespace cohive::tools {
namespace {

Task<int> join_and_work(Dht& dht, std::vector<Multiaddr> initial, bool signed_records,
                        std::function<Task<int>(Dht&)> work) {
  if (signed_records) dht.add_validator(co_await dht::make_rsa_validator(dht.runtime()));
  if (auto joined = co_await dht.start(std::move(initial)); !joined) throw ErrorException(joined.error());
  co_return co_await work(dht);
}

}  // namespace

Task<std::optional<int>> run_as_client(Runtime& runtime, std::vector<Multiaddr> initial, bool signed_records,
                                       std::function<Task<int>(Dht&)> work) {
  const auto network = transport::make_tcp_network(runtime);
  p2p::HostOptions host_options;
  host_options.routing_server = false;
  p2p::Host host(*network, KeyPair::generate_ed25519(), host_options);
  if (auto started = host.start(); !started) throw ErrorException(started.error());
  DhtOptions dht_options;
  dht_options.client_mode = true;
  Dht dht(host, dht_options);
  auto outcome = co_await race(runtime, wait_for_signal(runtime),
                               join_and_work(dht, std::move(initial), signed_records, std::move(work)));
  co_await dht.close();
  co_await host.close();
  co_return outcome.index() == 1 ? std::optional(std::get<1>(outcome)) : std::nullopt;
}

std::vector<Multiaddr> swarm_addresses(const std::vector<std::string>& given) {
  auto addresses = parse_initial_peers(initial_peers(given));
  if (addresses.empty()) throw Exit{kBadInput, "give the swarm's address with --initial-peers or $INITIAL_PEERS"};
  return addresses;
}

}  // namespace cohive::tools
