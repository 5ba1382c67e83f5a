#include "scheduled.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/detail/assertion.hpp"

namespace cohive::train {

using averaging::Round;

namespace {

RoundPace pace_of(const averaging::Averager& averager) {
  const auto& options = averager.options();
  return RoundPace({options.allreduce_timeout, options.sender_timeout, options.reducer_timeout});
}

}  // namespace

Scheduled::Scheduled(std::unique_ptr<Exchange> of) : exchange_(std::move(of)), pace_(pace_of(exchange_->averager())) {}

void Scheduled::begin(averaging::RoundOptions options) {
  COHIVE_ASSERT(!round_);
  group_bits_ = options.random_group_bits;
  options.allow_retries = false;
  options.limits = pace_.limits();
  options.limits.least = exchange_->patience();
  round_ = std::make_shared<Round>(averager().begin(std::move(options)));
}

bool Scheduled::has_group() const {
  return round_ && (round_->stage() == Round::Stage::awaiting_trigger || round_->stage() == Round::Stage::running);
}

bool Scheduled::may_be_apart() const {
  return round_ && is_divided() && round_->stage() == Round::Stage::looking_for_group;
}

void Scheduled::forget_ended() {
  if (round_ && round_->stage() == Round::Stage::finished) round_.reset();
}

void Scheduled::give_up() {
  if (round_) round_->cancel();
  round_.reset();
}

/// One peer can report as a thousand trainers, which would divide a run into groups of one. So no more groups are made
/// than one of the last few filled to a part, and fewer with each round after the first that found none. A member of a
/// group that is small by chance does not make fewer: it would look for groups where few others do, and stay there.
std::size_t Scheduled::bits_for(std::size_t expected, std::size_t group) const {
  constexpr std::size_t kLostMembers = 2;  // times as many as were met, for trainers that missed the round
  if (!exchange_->is_divided()) return 0;
  if (!is_new()) expected = std::min(expected, kLostMembers * *std::ranges::max_element(met_));
  if (group == 0 || expected <= group) return 0;
  // The nearest power of two: peers whose counts differ a little agree, but near the odd sizes in between.
  const double groups = static_cast<double>(expected) / static_cast<double>(group);
  const auto bits = static_cast<std::size_t>(std::lround(std::log2(groups)));
  const auto widths = static_cast<std::size_t>(std::bit_width(bits)) + 1;  // bits, half of them, and so on, and none
  return bits >> (misses_ > 0 ? (misses_ - 1) % widths : 0);
}

void Scheduled::count_group(std::size_t members) {
  constexpr std::size_t kMet = 4;
  misses_ = members > 0 ? 0 : misses_ + 1;
  if (members == 0) return;
  met_.push_back(members << group_bits_);
  if (met_.size() > kMet) met_.pop_front();
}

void Scheduled::ended(const averaging::RoundReport* report, bool found) {
  if (report) count_group(report->group.size());
  if (!found) return count_group(0);
  if (report && report->lost_senders.empty() && report->failed_reducers.empty())
    pace_.observe(*report);
  else if (pace_.limits().sender.value_or(Duration::max()) > exchange_->patience())  // else it waits long enough
    pace_.missed();
}

}  // namespace cohive::train
