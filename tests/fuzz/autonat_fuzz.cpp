// Requests to be dialled back, and the answers to our own. The first byte says which.
#include "fuzz.hpp"
#include "p2p/autonat_message.hpp"

namespace cohive::fuzz {
namespace {

void request(ByteView bytes) {
  const auto parsed = p2p::parse_dial_back_request(bytes);
  if (!parsed) return;
  expect(parsed->addresses.size() <= p2p::kMaxDialBackAddresses, "the addresses of a request are bounded");
  const auto observed = Multiaddr::from_text("/ip4/8.8.4.4/tcp/4001").value();
  const auto candidates = p2p::dial_back_candidates(observed, parsed->addresses);
  expect(candidates.size() <= p2p::kMaxDialBackAddresses, "the dials of a request are bounded");
  for (const auto& address : candidates)
    expect(address.value(Multiaddr::ip4) == observed.value(Multiaddr::ip4) && !address.is_circuit(),
           "only the host that asks is dialled");
  expect(p2p::parse_dial_back_request(as_bytes(p2p::encode(*parsed))).has_value(), "what was read can be written");
}

}  // namespace

COHIVE_FUZZ_TARGET(autonat)(ByteView input) {
  Input in(input);
  if (in.byte() % 2 == 0) return request(in.rest());
  if (const auto parsed = p2p::parse_dial_back_response(in.rest()))
    expect(p2p::parse_dial_back_response(as_bytes(p2p::encode(*parsed))).has_value(), "what was read can be written");
}

}  // namespace cohive::fuzz
