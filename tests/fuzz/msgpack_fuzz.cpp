// Msgpack: what decodes has one encoding, which decodes to the same.
#include "cohive/core/msgpack.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(msgpack)(ByteView input) {
  const auto value = msgpack::decode(input);
  if (!value) return;
  const std::string encoded = msgpack::encode(*value);
  const auto again = msgpack::decode(as_bytes(encoded));
  expect(again.has_value(), "what we encode decodes");
  // Bytes and not values are compared: NaN differs from itself.
  expect(msgpack::encode(*again) == encoded, "a value survives its encoding");
  (void)value->truthy();
  (void)value->as_uint();
  (void)value->as_int();
  (void)value->as_number();
}

}  // namespace cohive::fuzz
