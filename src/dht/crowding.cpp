#include "crowding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cohive::dht {
namespace {

constexpr double kChance = 1e-3;
// A table lacks some of the nodes around us; judged too small a swarm looks crowded everywhere.
constexpr double kMargin = 2;
constexpr std::size_t kFewest = 3;  // fewer capture no key

}  // namespace

double share_of_space(const DhtId& distance) {
  double share = 0;
  for (std::size_t i = DhtId::kSize; i-- > 0;) share = (share + distance.bytes[i]) / 256;
  return share;
}

double estimate_swarm_size(const DhtId& self, const std::vector<NodeEntry>& nearest) {
  const std::size_t count = std::min(kNodesToJudgeBy, nearest.size());
  if (count == 0) return 0;
  const double share = share_of_space(nearest[count - 1].id.distance(self));
  return kMargin * static_cast<double>(count) / std::max(share, std::numeric_limits<double>::min());
}

bool is_crowd(std::size_t count, double expected) {
  const auto nodes = static_cast<double>(count);
  if (count < kFewest || expected >= nodes) return false;
  if (expected <= 0) return true;
  // Chernoff's bound for so many or more of a Poisson distribution.
  return nodes - expected + nodes * std::log(expected / nodes) <= std::log(kChance);
}

}  // namespace cohive::dht
