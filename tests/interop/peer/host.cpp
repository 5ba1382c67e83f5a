#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

std::vector<transport::Security> securities_of(const json& names) {
  std::vector<transport::Security> result;
  for (const auto& name : names)
    result.push_back(name == "tls" ? transport::Security::tls : transport::Security::noise);
  return result;
}

/// listen (default: a loopback port; empty: dial only), identity (serialised private key), key ("rsa": a new RSA key
/// instead of Ed25519), client, relay (offered), circuit_bytes (of the relay), trusted_relays (of a peer that counts as
/// private), security (names of the ways to encrypt that it offers and takes)
Task<json> host_start(Peer& peer, json request) {
  p2p::HostOptions options;
  options.listen = addresses_of(request.value("listen", json::array({"/ip4/127.0.0.1/tcp/0"})));
  options.routing_server = !request.value("client", false);
  if (request.value("relay", false)) options.relay_service.emplace();
  if (request.contains("circuit_bytes")) options.relay_service->circuit.bytes = request["circuit_bytes"];
  if (request.contains("trusted_relays")) {
    options.trusted_relays = addresses_of(request["trusted_relays"]);
    options.force_reachability = p2p::Reachability::private_;
  }
  if (request.contains("security")) options.transport.security = securities_of(request["security"]);
  const KeyPair identity = request.contains("identity")
                               ? value_of(KeyPair::from_protobuf(bytes_of(request["identity"])))
                           : request.value("key", std::string()) == "rsa" ? KeyPair::generate_rsa()
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

/// peer, or address
Task<json> host_connect(Peer& peer, json request) {
  const Deadline deadline = peer.runtime.after(15s);
  if (!request.contains("address")) {
    value_of(co_await peer.host().connect(peer_of(request.at("peer")), deadline));
    co_return request["peer"];
  }
  const auto address = value_of(Multiaddr::from_text(request["address"].get<std::string>()));
  co_return value_of(co_await peer.host().connect(address, deadline)).text();
}

/// peer
Task<json> host_disconnect(Peer& peer, json request) {
  peer.host().disconnect(peer_of(request.at("peer")));
  co_return json();
}

/// peer: the round trip in seconds
Task<json> host_ping(Peer& peer, json request) {
  const auto took = value_of(co_await p2p::ping(peer.host(), peer_of(request.at("peer")), peer.runtime.after(15s)));
  co_return std::chrono::duration<double>(took).count();
}

/// peer: its addresses, by peer routing where they are not known
Task<json> host_find(Peer& peer, json request) {
  const auto found = value_of(co_await peer.host().find_peer(peer_of(request.at("peer")), peer.runtime.after(15s)));
  json addresses = json::array();
  for (const auto& address : found) addresses.push_back(address.text());
  co_return addresses;
}

/// The relays through which it is reached: ids, limits, and its own addresses.
Task<json> host_relays(Peer& peer, json) {
  json relays = json::array(), addresses = json::array();
  for (const auto& held : peer.host().relays())
    relays.push_back({{"id", held.relay.text()},
                      {"bytes", held.limit.bytes},
                      {"seconds", std::chrono::duration<double>(held.limit.duration).count()}});
  for (const auto& address : peer.host().visible_addresses()) addresses.push_back(address.text());
  co_return json{{"relays", relays}, {"addresses", addresses}};
}

Task<json> host_peers(Peer& peer, json) {
  json peers = json::array();
  for (const auto& info : peer.host().peers()) {
    json addresses = json::array();
    for (const auto& address : info.addresses) addresses.push_back(address.text());
    peers.push_back({{"id", info.id.text()},
                     {"agent", info.agent},
                     {"protocols", info.protocols},
                     {"addresses", addresses},
                     {"remote", peer.host().remote_address(info.id).value_or(Multiaddr()).text()},
                     {"outbound", info.outbound},
                     {"security", info.security}});
  }
  co_return peers;
}

}  // namespace

void add_host_commands(Commands& commands) {
  commands["host_start"] = host_start;
  commands["host_bootstrap"] = host_bootstrap;
  commands["host_connect"] = host_connect;
  commands["host_disconnect"] = host_disconnect;
  commands["host_ping"] = host_ping;
  commands["host_find"] = host_find;
  commands["host_relays"] = host_relays;
  commands["host_peers"] = host_peers;
}

}  // namespace cohive::interop
