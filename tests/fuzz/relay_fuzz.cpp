// Messages of relays and of peers that ask them, vouchers, and messages of hole punching. The first byte says which.
#include "fuzz.hpp"
#include "p2p/circuit_message.hpp"

namespace cohive::fuzz {
namespace {

template <class Message>
void message(ByteView bytes) {
  const auto parsed = p2p::parse_relay_message<Message>(bytes);
  if (!parsed) return;
  expect(parsed->has_type(), "a message has a type");
  const std::string again = parsed->SerializeAsString();
  if (again.size() <= p2p::kMaxRelayMessage)
    expect(p2p::parse_relay_message<Message>(as_bytes(again)).has_value(), "what was read can be written");
}

void address(ByteView bytes) {
  const auto parsed = Multiaddr::from_bytes(bytes);
  if (!parsed) return;
  const auto parts = p2p::parse_circuit(*parsed);
  if (!parts) return;
  Multiaddr again = p2p::circuit_through(parts->relay_address, parts->relay);
  if (parts->target) again = again.with_peer(*parts->target);
  const auto same = p2p::parse_circuit(again);
  expect(same && same->relay == parts->relay && same->target == parts->target, "what was read can be written");
}

}  // namespace

COHIVE_FUZZ_TARGET(relay)(ByteView input) {
  Input in(input);
  const auto kind = in.byte() % 5;
  const ByteView rest = in.rest();
  if (kind == 0) return message<proto::Hop>(rest);
  if (kind == 1) return message<proto::Stop>(rest);
  if (kind == 2) return message<proto::HolePunch>(rest);
  if (kind == 3) return address(rest);
  const PeerId peer = KeyPair::ed25519_from_seed(Bytes(32, 1)).peer_id();
  expect(!p2p::check_voucher(rest, peer, peer), "no voucher is signed by a key that signs none");
}

}  // namespace cohive::fuzz
