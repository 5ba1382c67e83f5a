// Keys, subkeys and values travel as the hexadecimal of their msgpack.
#include "cohive/dht/schema.hpp"
#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

/// Of a moderated swarm in which every token with this name counts.
class NamedMember final : public dht::Authorizer {
 public:
  NamedMember(std::shared_ptr<const dht::RsaSignatureValidator> key, std::string name)
      : Authorizer(std::move(key)), name_(std::move(name)) {}
  dht::AccessToken token() override { return {name_, key().public_key(), "2100-01-01", "granted"}; }
  bool is_valid(const dht::AccessToken& token, const PeerId&) const override { return token.username == name_; }

 private:
  std::string name_;
};

/// initial_peers, client, signed (adds a validator with a new key), progress (run id: adds the schema of trainers),
/// member (name in the tokens of a moderated swarm)
Task<json> dht_start(Peer& peer, json request) {
  dht::DhtOptions options;
  options.client_mode = request.value("client", false);
  options.cache_locally = options.cache_on_store = request.value("cache", true);
  if (!request.value("cache", true)) options.cache_nearest = 0;
  if (request.contains("member"))
    options.authorizer =
        std::make_shared<NamedMember>(co_await dht::make_rsa_validator(peer.runtime), request["member"]);
  auto node = std::make_unique<Dht>(peer.host(), options);
  json result;
  if (request.contains("progress"))
    node->add_validator(std::make_shared<dht::SchemaValidator>(dht::training_progress_schema(), request["progress"]));
  if (request.value("signed", false)) {
    auto validator = co_await dht::make_rsa_validator(peer.runtime);
    result["marker"] = to_hex(as_bytes(validator->ownership_marker()));
    node->add_validator(validator);
  }
  value_of(co_await node->start(addresses_of(request.value("initial_peers", json::array()))));
  peer.dht_ = std::move(node);
  result["node_id"] = peer.dht().node_id().hex();
  co_return result;
}

/// key, value, expiration, subkey (optional)
Task<json> dht_store(Peer& peer, json request) {
  const auto key = value_from(request.at("key"));
  const auto value = value_from(request.at("value"));
  const double expiration = request.at("expiration");
  const auto stored = request.contains("subkey")
                          ? co_await peer.dht().store(key, value_from(request["subkey"]), value, expiration)
                          : co_await peer.dht().store(key, value, expiration);
  co_return stored.has_value();
}

/// items: a list of what dht_store takes
Task<json> dht_store_many(Peer& peer, json request) {
  std::vector<dht::StoreItem> items;
  for (const auto& item : request.at("items")) {
    items.push_back({value_from(item.at("key")), std::nullopt, value_from(item.at("value")), item.at("expiration")});
    if (item.contains("subkey")) items.back().subkey = value_from(item["subkey"]);
  }
  const auto stored = co_await peer.dht().store_many(std::move(items));
  json result = json::array();
  for (const auto& one : stored) result.push_back(one.has_value());
  co_return result;
}

/// key, latest
Task<json> dht_get(Peer& peer, json request) {
  const auto found = co_await peer.dht().get(value_from(request.at("key")), request.value("latest", false));
  if (!found) co_return json();
  json result{{"expiration", found->expiration}};
  if (const auto* value = found->value()) result["value"] = hex_of(*value);
  if (found->is_dictionary()) {
    result["entries"] = json::array();
    for (const auto& [subkey, stored] : found->entries())
      result["entries"].push_back({hex_of(subkey), hex_of(stored.value), stored.expiration});
  }
  co_return result;
}

/// peer
Task<json> dht_ping(Peer& peer, json request) {
  const auto id = value_of(co_await peer.dht().ping(peer_of(request.at("peer"))));
  co_return id ? json(id->hex()) : json();
}

Task<json> dht_info(Peer& peer, json) {
  json nodes = json::array();
  for (const auto& [id, peer_id] : peer.dht().known_nodes()) nodes.push_back({id.hex(), peer_id.text()});
  co_return json{{"nodes", nodes}, {"stored", peer.dht().storage_size()}, {"cached", peer.dht().cache_size()}};
}

}  // namespace

void add_dht_commands(Commands& commands) {
  commands["dht_start"] = dht_start;
  commands["dht_store"] = dht_store;
  commands["dht_store_many"] = dht_store_many;
  commands["dht_get"] = dht_get;
  commands["dht_ping"] = dht_ping;
  commands["dht_info"] = dht_info;
}

}  // namespace cohive::interop
