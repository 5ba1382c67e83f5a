#include "cohive/core/network_of.hpp"

#include <algorithm>

namespace cohive {
namespace {

constexpr std::uint64_t kIpv4 = std::uint64_t{1} << 63;  // tells 1.2.3.0/24 from ::1:203/48
constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/// The 4 or 16 bytes of the IP address that `address` begins with; empty for any other.
Bytes ip_of(const Multiaddr& address) {
  auto parts = address.components();
  if (parts.empty()) return {};
  Bytes& ip = parts[0].value;
  if (parts[0].code == Multiaddr::ip4 && ip.size() == 4) return std::move(ip);
  if (parts[0].code != Multiaddr::ip6 || ip.size() != 16) return {};
  if (std::equal(std::begin(kMapped), std::end(kMapped), ip.begin())) ip.erase(ip.begin(), ip.begin() + 12);
  return std::move(ip);
}

std::size_t block_size(const Bytes& ip) {
  return ip.size() == 4 ? 3 : 6;
}

}  // namespace

std::optional<std::uint64_t> network_block(const Multiaddr& address) {
  if (address.scope() != Multiaddr::Scope::public_) return std::nullopt;
  const Bytes ip = ip_of(address);
  if (ip.empty()) return std::nullopt;
  std::uint64_t value = 0;
  for (const std::uint8_t byte : ByteView(ip).first(block_size(ip))) value = value << 8 | byte;
  return ip.size() == 4 ? kIpv4 | value : value;
}

Networks networks_of(const Multiaddr& address) {
  const auto scope = address.scope();
  const Bytes ip = ip_of(address);
  if (scope == Multiaddr::Scope::loopback || ip.empty()) return {};
  Networks networks;
  networks.host = to_string(ip);
  networks.subnet = ip.size() == 4 ? networks.host : to_string(ByteView(ip).first(8));
  networks.block = scope == Multiaddr::Scope::public_ ? to_string(ByteView(ip).first(block_size(ip))) : networks.subnet;
  return networks;
}

std::string network_of(const Multiaddr& address) {
  return networks_of(address).block;
}

}  // namespace cohive
