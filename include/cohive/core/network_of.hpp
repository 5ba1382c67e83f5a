/// \file
/// Which network an address belongs to. Identities cost nothing, addresses little, networks money: what is scarce is
/// shared among networks first, then among their parts, down to single addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohive/core/multiaddr.hpp"

namespace cohive {

/// The IPv4 /24 or IPv6 /48 network of a public address, which one owner commonly has whole. Nothing for others: on a
/// private network or one machine all peers are neighbours.
std::optional<std::uint64_t> network_block(const Multiaddr& address);

/// The networks of an address, from large to small, as keys of tables. All are empty for this machine, which is
/// trusted, and for addresses that do not begin with an IP address.
struct Networks {
  std::string block;   ///< the IPv4 /24 or IPv6 /48 network; of an address that is not public: the subnet
  std::string subnet;  ///< the IPv4 address or IPv6 /64 network
  std::string host;    ///< the IP address
  /// Tells whether it is in no network.
  bool empty() const noexcept { return block.empty(); }
  /// Tells whether all three are the same.
  bool operator==(const Networks&) const = default;
};
/// Returns them; an IPv6 address that stands for one of IPv4 has the networks of that one.
Networks networks_of(const Multiaddr& address);
/// The largest of them, which budgets, rates and limits count by.
std::string network_of(const Multiaddr& address);

}  // namespace cohive
