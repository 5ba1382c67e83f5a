#include "lane_growth.hpp"

#include <algorithm>
#include <utility>

namespace cohive::p2p {
namespace {

constexpr std::size_t kFirstStep = 4;  // connections; then twice as many
constexpr double kGain = 1.1;          // of the rate by each step, else it is taken back
constexpr double kWorse = 0.9;         // of it: the path has changed meanwhile
constexpr double kQueueing = 1.25;     // of the shortest round trip: bytes wait for the thinnest link
constexpr Duration kFirstRest = 30s, kLongestRest = 10min;

}  // namespace

void LaneGrowth::rest(TimePoint now) {
  pause_ = std::clamp<Duration>(2 * pause_, kFirstRest, kLongestRest);
  rested_ = now + pause_;
}

bool LaneGrowth::is_queueing(Duration round_trip, Duration shortest) {
  return to_seconds(round_trip) > kQueueing * to_seconds(shortest);
}

std::size_t LaneGrowth::after(const Load& load, std::size_t lanes, TimePoint now) {
  const bool too_few = lanes < usual_;  // they were closed while nothing was to be sent
  const bool settled = std::exchange(measured_, lanes) == lanes;
  if (!too_few && !settled) return lanes;
  if (lanes > count_ && load.rate < kGain * rate_) {
    // One step is excused where far less comes than before, for a connection more takes nothing from a path.
    excused_ = !excused_ && load.rate < kWorse * rate_;
    if (!excused_) {
      usual_ = count_;
      rest(now);
      return count_;
    }
  } else {
    excused_ = false;
  }
  usual_ = std::max(usual_, lanes);
  rate_ = load.rate;
  count_ = lanes;
  if (is_queueing(load.round_trip, load.shortest) || now < rested_) return lanes;
  if (too_few) return count_ = usual_;
  if (!load.held_back) return lanes;
  return std::min(most_, std::max(kFirstStep, 2 * lanes));
}

}  // namespace cohive::p2p
