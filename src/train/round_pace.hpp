// How long rounds of one averager last, and so how long the next one may: limits follow what the last rounds took,
// and the options are upper bounds. A member that falls silent is then given up in seconds where rounds take a second,
// and a slow link is waited for. Source of the rule: hivemind issue 676 (median and median absolute deviation).
#pragma once

#include <cstdint>
#include <deque>

#include "cohive/averaging/round.hpp"

namespace cohive::train {

class RoundPace {
 public:
  struct Bounds {
    Duration allreduce, sender, reducer;  ///< what the options allow
  };
  explicit RoundPace(Bounds bounds) : bounds_(bounds) {}

  /// Notes a round that has succeeded.
  void observe(const averaging::RoundReport& round);
  /// Notes one that has not, or that lost members: the next one gets twice the time.
  void missed();
  /// Returns the limits of the next round; unset as long as too few rounds were seen.
  averaging::RoundLimits limits() const;

 private:
  struct Sample {
    double seconds;  ///< of the all-reduce
    double longest;  ///< wait for a member: its first part, its next one, a result
  };
  Bounds bounds_;
  std::deque<Sample> samples_;
  double slack_ = 1;  // doubles with every round that was missed
};

}  // namespace cohive::train
