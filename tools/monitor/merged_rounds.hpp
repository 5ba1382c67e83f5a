// The rounds of a run, put together from what its trainers tell of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "monitor/run_report.hpp"

namespace cohive::tools {

/// A round of one group, or one that failed before a group was found.
struct MergedRound {
  RunReport::Round round;            ///< the longest times, the worst outcome
  std::vector<std::string> told_by;  ///< peer ids; a single one may say anything
};

/// The last rounds, oldest first, and rounds that most peers tell of. \param now  Unix time: rounds of another day and
/// of the future are left out
std::vector<MergedRound> merge_rounds(const std::map<PeerId, RunReport>& reports, double now, std::size_t most = 100);

}  // namespace cohive::tools
