// The proof of membership in front of every message of a moderated swarm.
#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "dht/signed_calls.hpp"
#include "dht_validators.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {
namespace {

/// Every token counts, so that signatures are looked at.
class Anybody final : public dht::Authorizer {
 public:
  Anybody() : Authorizer(rsa_validator()) {}
  dht::AccessToken token() override { return {"anybody", key().public_key(), "never", ""}; }
  bool is_valid(const dht::AccessToken&, const PeerId&) const override { return true; }
};

}  // namespace

COHIVE_FUZZ_TARGET(dht_auth)(ByteView input) {
  SimRuntime runtime;
  const PeerId peer = KeyPair::ed25519_from_seed(Bytes(32)).peer_id();
  dht::SignedCalls calls(runtime, std::make_shared<Anybody>());
  if (calls.check_request(peer, input)) expect(!calls.check_request(peer, input), "a request counts once");
  (void)calls.check_reply(peer, input, "12345678");
}

}  // namespace cohive::fuzz
