// The epoch that most of several have reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cohive::train {

/// An epoch that somebody has reached, who counts for so much.
struct EpochVote {
  std::uint64_t epoch = 0;
  double weight = 1;
};

/// Returns the largest epoch that more than half of all weight has reached; 0 where there is none.
inline std::uint64_t reached_by_most(std::vector<EpochVote> votes) {
  std::ranges::sort(votes, std::greater(), &EpochVote::epoch);
  double all = 0, reached = 0;
  for (const EpochVote& vote : votes) all += vote.weight;
  for (const EpochVote& vote : votes)
    if ((reached += vote.weight) > all / 2) return vote.epoch;
  return 0;
}
/// Returns the largest epoch that more than half of several have reached, who all count alike.
inline std::uint64_t reached_by_most(std::span<const std::uint64_t> epochs) {
  std::vector<EpochVote> votes;
  for (const std::uint64_t epoch : epochs) votes.push_back({epoch});
  return reached_by_most(std::move(votes));
}

}  // namespace cohive::train
