#include "network_block.hpp"

#include <algorithm>

namespace cohive::p2p {
namespace {

constexpr std::uint64_t kIpv4 = std::uint64_t{1} << 63;  // tells 1.2.3.0/24 from ::1:203/48
constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

std::uint64_t number(ByteView bytes) {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

}  // namespace

std::optional<std::uint64_t> network_block(const Multiaddr& address) {
  if (address.scope() != Multiaddr::Scope::public_) return std::nullopt;
  const auto parts = address.components();
  if (parts.empty()) return std::nullopt;
  const ByteView ip = parts[0].value;
  if (parts[0].code == Multiaddr::ip4 && ip.size() == 4) return kIpv4 | number(ip.first(3));
  if (parts[0].code != Multiaddr::ip6 || ip.size() != 16) return std::nullopt;
  if (std::equal(std::begin(kMapped), std::end(kMapped), ip.begin())) return kIpv4 | number(ip.subspan(12, 3));
  return number(ip.first(6));
}

}  // namespace cohive::p2p
