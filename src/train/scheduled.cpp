#include "scheduled.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

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
  taken_up_ = false;
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

/// The nearest power of two: peers whose counts differ a little agree, but near the odd sizes in between.
std::size_t bits_of(std::size_t expected, std::size_t group) {
  if (group == 0 || expected <= group) return 0;
  return static_cast<std::size_t>(std::lround(std::log2(static_cast<double>(expected) / static_cast<double>(group))));
}

/// One peer can report as a thousand trainers, which would divide a run into groups of one. So no more groups are made
/// than one of the last few filled to a part, and fewer after rounds that found none, in every other one: a trainer may
/// have missed them for another reason. A member of a
/// group that is small by chance does not make fewer: it would look for groups where few others do, and stay there. Nor
/// do some that meet apart from the others, as at the beginning, when they know few: all that they have met counts.
std::size_t Scheduled::bits_for(std::size_t expected, std::size_t group, bool all) const {
  constexpr std::size_t kLostMembers = 2;  // times as many as were met, for trainers that missed the round
  if (!exchange_->is_divided()) return 0;
  if (!all) expected = std::min(expected, kLostMembers * std::max(known_, *std::ranges::max_element(met_)));
  const std::size_t bits = bits_of(expected, group);
  const auto widths = static_cast<std::size_t>(std::bit_width(bits)) + 1;  // bits, half of them, and so on, and none
  return bits >> (misses_ % 2 == 0 ? misses_ / 2 % widths : 0);
}

void Scheduled::count_group(const std::vector<averaging::Member>& members) {
  constexpr std::size_t kMet = 4, kCompanies = 16;
  misses_ = members.empty() ? misses_ + 1 : 0;
  if (members.empty()) return;
  met_.push_back(members.size() << group_bits_);
  if (met_.size() > kMet) met_.pop_front();
  auto& company = companies_.emplace_back();
  for (const auto& member : members) company.push_back(member.peer);
  if (companies_.size() > kCompanies) companies_.pop_front();
  std::set<PeerId> known;
  for (const auto& one : companies_) known.insert(one.begin(), one.end());
  known_ = known.size();
}

void Scheduled::ended(const averaging::RoundReport* report, bool found) {
  if (report) count_group(report->group);
  if (!found) return count_group({});
  // A round without a member that was killed says too little of one with it, or with what replaces it.
  if (report && report->lost_senders.empty() && report->failed_reducers.empty())
    pace_.observe(*report);
  else if (pace_.limits().sender.value_or(Duration::max()) > exchange_->patience())  // else it waits long enough
    pace_.missed();
}

}  // namespace cohive::train
