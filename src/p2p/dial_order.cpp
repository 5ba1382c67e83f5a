#include "dial_order.hpp"

#include <array>
#include <set>

namespace cohive::p2p {
namespace {

using Source = KnownAddress::Source;

constexpr Duration kHeadStart = 250ms;
constexpr Duration kNearHeadStart = 30ms;  // of an address of this machine or its own network

/// Direct addresses that worked, of this machine, private ones by IPv6 and IPv4, public ones by IPv6 and IPv4;
/// circuits.
enum Kind : std::size_t { verified, loopback, private6, private4, public6, public4, circuit, kinds };

Kind kind_of(const KnownAddress& known) {
  if (known.address.is_circuit()) return circuit;
  if (known.source == Source::verified) return verified;
  const bool ip4 = known.address.first_code() == Multiaddr::ip4;
  switch (known.address.scope()) {
    case Multiaddr::Scope::loopback:
      return loopback;
    case Multiaddr::Scope::private_:
      return ip4 ? private4 : private6;
    default:
      return ip4 ? public4 : public6;
  }
}

}  // namespace

std::vector<KnownAddress> dial_order(const std::vector<KnownAddress>& addresses) {
  std::array<std::vector<const KnownAddress*>, kinds> by_kind;
  std::set<Multiaddr> seen;
  for (const auto& known : addresses)
    if (seen.insert(known.address.without_peer()).second) by_kind[kind_of(known)].push_back(&known);
  std::vector<KnownAddress> result;
  const auto append = [&result](const KnownAddress* known) { result.push_back(*known); };
  for (const KnownAddress* known : by_kind[verified]) append(known);
  const std::size_t direct = seen.size() - by_kind[circuit].size();
  for (std::size_t round = 0; result.size() < direct; ++round)
    for (std::size_t kind = loopback; kind < circuit; ++kind)
      if (round < by_kind[kind].size()) append(by_kind[kind][round]);
  for (const KnownAddress* known : by_kind[circuit]) append(known);
  return result;
}

Duration head_start(const Multiaddr& address) {
  return is_near(address) ? kNearHeadStart : kHeadStart;
}

}  // namespace cohive::p2p
