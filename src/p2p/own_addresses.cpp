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

}  // namespace cohive::p2p
