#include "scenarios/progress_record.hpp"

#include <cstring>

#include "cohive/core/keys.hpp"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"

namespace cohive::sim {

PeerId invented_peer(std::uint64_t number) {
  Bytes seed(32, 0x77);
  std::memcpy(seed.data(), &number, sizeof number);
  return KeyPair::ed25519_from_seed(seed).peer_id();
}

Task<void> store_under_key(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, std::string name,
                           msgpack::Map report, double expiration) {
  const msgpack::Value marker = msgpack::Bin{key->ownership_marker()};
  dht::Record record{dht::DhtId::of(name).binary(), msgpack::encode(marker), msgpack::encode(report), expiration};
  proto::StoreRequest request;
  request.add_keys(record.key);
  request.add_subkeys(record.subkey);
  request.add_values(key->sign_value(record));
  request.add_expiration_time(expiration);
  request.add_in_cache(false);
  for (const auto& [id, peer] : dht.known_nodes())
    (void)co_await rpc::call_unary(dht.host(), peer, "DHTProtocol.rpc_store", request.SerializeAsString(),
                                   dht.runtime().after(3s));
}

}  // namespace cohive::sim
