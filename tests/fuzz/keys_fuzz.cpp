// Public keys of strangers, and identity files.
#include "cohive/core/keys.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(keys)(ByteView input) {
  if (const auto key = PublicKey::from_protobuf(input)) {
    (void)key->peer_id();
    expect(!key->verify(as_bytes("message"), input), "a key is no signature");
    const auto again = PublicKey::from_protobuf(as_bytes(key->protobuf()));
    expect(again && again->peer_id() == key->peer_id(), "a public key survives its protobuf");
  }
  if (const auto pair = KeyPair::from_protobuf(input)) {
    const Bytes signature = pair->sign(as_bytes("message"));
    expect(pair->public_key().verify(as_bytes("message"), signature), "a key pair verifies what it signs");
  }
}

}  // namespace cohive::fuzz
