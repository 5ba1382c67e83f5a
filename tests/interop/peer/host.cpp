#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

/// listen (default: a loopback port; empty: dial only), identity (serialised private key), client
Task<json> host_start(Peer& peer, json request) {
  p2p::HostOptions options;
  options.listen = addresses_of(request.value("listen", json::array({"/ip4/127.0.0.1/tcp/0"})));
  options.routing_server = !request.value("client", false);
  const KeyPair identity = request.contains("identity")
                               ? value_of(KeyPair::from_protobuf(bytes_of(request["identity"])))
                               : KeyPair::generate_ed25519();
  auto host = std::make_unique<p2p::Host>(*peer.network, identity, options);
  value_of(host->start());
  peer.host_ = std::move(host);
  json addresses = json::array();
  for (const auto& address : peer.host().visible_addresses()) addresses.push_back(address.text());
  co_return json{{"peer_id", peer.host().id().text()}, {"addresses", addresses}};
}

/// peers
Task<json> host_bootstrap(Peer& peer, json request) {
  value_of(co_await peer.host().bootstrap(addresses_of(request.at("peers")), peer.runtime.after(15s)));
  co_return json();
}

/// peer
Task<json> host_connect(Peer& peer, json request) {
  value_of(co_await peer.host().connect(peer_of(request.at("peer")), peer.runtime.after(15s)));
  co_return json();
}

Task<json> host_peers(Peer& peer, json) {
  json peers = json::array();
  for (const auto& info : peer.host().peers()) peers.push_back({{"id", info.id.text()}, {"agent", info.agent}});
  co_return peers;
}

}  // namespace

void add_host_commands(Commands& commands) {
  commands["host_start"] = host_start;
  commands["host_bootstrap"] = host_bootstrap;
  commands["host_connect"] = host_connect;
  commands["host_peers"] = host_peers;
}

}  // namespace cohive::interop
