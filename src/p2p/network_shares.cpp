#include "network_shares.hpp"

namespace cohive::p2p {

std::string network_of(const Multiaddr& address) {
  if (address.scope() == Multiaddr::Scope::loopback) return {};
  const auto parts = address.components();
  if (parts.empty()) return {};
  const auto& value = parts[0].value;
  if (parts[0].code == Multiaddr::ip6 && value.size() == 16) return to_string(ByteView(value).first(8));
  return to_string(value);
}

}  // namespace cohive::p2p
