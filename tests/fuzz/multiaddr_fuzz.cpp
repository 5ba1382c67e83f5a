// Multiaddresses, binary and text: whatever parses comes back the same through both forms.
#include "cohive/core/multiaddr.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {
namespace {

void examine(const Multiaddr& address) {
  const auto from_bytes = Multiaddr::from_bytes(address.bytes());
  expect(from_bytes && *from_bytes == address, "a multiaddr survives its binary form");
  constexpr std::size_t kShort = 1000;  // longer texts are refused
  if (const std::string text = address.text(); text.size() <= kShort) {
    const auto from_text = Multiaddr::from_text(text);
    expect(from_text && *from_text == address, "a multiaddr survives its text form");
  }
  for (const auto& component : address.components()) (void)address.value(component.code);
  if (const auto peer = address.peer()) expect(address.with_peer(*peer).peer() == peer, "the peer can be put back");
  (void)address.without_peer().bytes();
  (void)address.encapsulate(address).text();
  (void)address.tcp_endpoint();
  (void)address.scope();
  (void)address.is_unspecified();
}

}  // namespace

COHIVE_FUZZ_TARGET(multiaddr)(ByteView input) {
  if (const auto address = Multiaddr::from_bytes(input)) examine(*address);
  if (const auto address = Multiaddr::from_text(as_text(input))) examine(*address);
}

}  // namespace cohive::fuzz
