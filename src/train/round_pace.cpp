#include "round_pace.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/detail/median.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kLearning = 3, kMemory = 16;  // rounds
constexpr double kDeviations = 6;                   // of the median absolute deviation, beyond the median
constexpr double kFactor = 2;                       // and at least this much of the median
constexpr double kLeast = 2;                        // seconds: scheduling, a retransmission or two
constexpr double kMostSlack = 16;

double bound(const std::vector<double>& values) {
  const double usual = median(values);
  std::vector<double> deviations;
  for (double value : values) deviations.push_back(std::abs(value - usual));
  return kLeast + std::max(kFactor * usual, usual + kDeviations * median(deviations));
}

}  // namespace

void RoundPace::observe(const averaging::RoundReport& round) {
  Sample sample{to_seconds(round.allreduce), to_seconds(round.arrival_spread())};
  for (const auto& member : round.exchanged)
    sample.longest =
        std::max({sample.longest, to_seconds(member.longest_part_wait), to_seconds(member.longest_result_wait)});
  samples_.push_back(sample);
  if (samples_.size() > kMemory) samples_.pop_front();
  slack_ = 1;
}

void RoundPace::missed() {
  slack_ = std::min(slack_ * 2, kMostSlack);
}

averaging::RoundLimits RoundPace::limits() const {
  if (samples_.size() < kLearning) return {};
  std::vector<double> seconds, longest;
  for (const Sample& sample : samples_) {
    seconds.push_back(sample.seconds);
    longest.push_back(sample.longest);
  }
  const auto limit = [this](double wanted, Duration most) { return std::min(from_seconds(wanted * slack_), most); };
  averaging::RoundLimits limits;
  const double wait = bound(longest);
  limits.sender = limit(wait, bounds_.sender);
  limits.reducer = limit(2 * wait, bounds_.reducer);  // a reducer waits for its senders in turn
  // A member that is lost costs its wait on top of what rounds take.
  limits.allreduce = limit(bound(seconds) + 2 * wait, bounds_.allreduce);
  return limits;
}

}  // namespace cohive::train
