#include "cohive/dht/dht_id.hpp"

#include <algorithm>

#include "cohive/core/crypto.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::dht {

DhtId DhtId::of(const msgpack::Value& source) {
  DhtId id;
  if (const auto* raw = source.get_if<msgpack::Bin>()) {
    id.bytes = crypto::sha1(as_bytes(raw->data));
  } else {
    id.bytes = crypto::sha1(as_bytes(msgpack::encode(source)));
  }
  return id;
}

DhtId DhtId::random(Runtime& runtime) {
  DhtId id;
  runtime.random_bytes(id.bytes);
  return id;
}

std::optional<DhtId> DhtId::from_bytes(ByteView bytes) {
  if (bytes.size() != kSize) return std::nullopt;
  DhtId id;
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  return id;
}

DhtId DhtId::distance(const DhtId& other) const {
  DhtId result;
  for (std::size_t i = 0; i < kSize; ++i) result.bytes[i] = bytes[i] ^ other.bytes[i];
  return result;
}

std::string DhtId::hex() const {
  return to_hex(bytes);
}

}  // namespace cohive::dht
