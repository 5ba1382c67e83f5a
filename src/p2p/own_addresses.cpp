#include "own_addresses.hpp"

#include <algorithm>

namespace cohive::p2p {

std::vector<Multiaddr> OwnAddresses::announced() const {
  if (!self_.options.announce.empty()) return self_.options.announce;
  std::vector<Multiaddr> result;
  for (const auto& source : sources_)
    for (auto& address : source())
      if (std::find(result.begin(), result.end(), address) == result.end()) result.push_back(std::move(address));
  return result;
}

std::vector<Multiaddr> OwnAddresses::told_to(Multiaddr::Scope scope) const {
  using Scope = Multiaddr::Scope;
  auto result = announced();
  // Loopback addresses only help peers that are on this machine too.
  if (scope != Scope::loopback && self_.options.announce.empty())
    std::erase_if(result, [](const Multiaddr& one) { return one.scope() == Scope::loopback; });
  // Peers outside have no use for addresses of our own networks, of which a machine with containers has many.
  const auto inside = [](const Multiaddr& one) { return one.scope() != Scope::public_; };
  if (result.size() > kMaxTold && scope == Scope::public_ && !std::ranges::all_of(result, inside))
    std::erase_if(result, inside);
  if (result.size() > kMaxTold) result.erase(result.begin() + kMaxTold, result.end());
  return result;
}

}  // namespace cohive::p2p
