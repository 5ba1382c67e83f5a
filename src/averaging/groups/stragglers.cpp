#include "stragglers.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxRecords = 4096;
constexpr std::size_t kRounds = 4;     // that members may still tell of
constexpr std::size_t kMostOwed = 16;  // rounds
// Strangers that are late are a new one each time: they cost a run a seventeenth of its time at most.
constexpr int kWaryFor = 16;  // times as long as the round with them took
constexpr Duration kLongestWary = 10min;

/// A member that has waited for more than half of the others in vain was most likely cut off itself. In a group of two
/// there is no other peer to go on with.
bool is_plausible(std::size_t stragglers, std::size_t members) {
  return 2 * stragglers + 1 <= members;
}

}  // namespace

void Stragglers::group_began(const std::string& id, std::set<PeerId> members, bool tells_strangers_apart) {
  if (!rounds_.empty()) learn_from(rounds_.back());  // all members have told of it by now
  rounds_.push_back({id, std::move(members), tells_strangers_apart, runtime_.now()});
  if (rounds_.size() > kRounds) rounds_.pop_front();
}

/// How long a round takes when nobody is late: not one in which another member has waited.
void Stragglers::learn_from(const Round& round) {
  if (round.in_time.empty() || !round.named.empty()) return;
  last_took_ = round.took;
  for (const PeerId& peer : round.in_time) {
    const Record* before = find(peer);
    // What is noted of a peer that was late is forgotten all the same.
    Record& record = before && before->late > 0 ? records_[peer] : record_of(peer);
    record.took = round.took;
  }
}

Stragglers::Round* Stragglers::find_round(const std::string& id) {
  const auto found = std::ranges::find(rounds_, id, &Round::id);
  return found == rounds_.end() ? nullptr : &*found;
}

/// Nothing where what was noted is forgotten by now.
const Stragglers::Record* Stragglers::find(const PeerId& peer) const {
  const auto found = records_.find(peer);
  return found == records_.end() || runtime_.now() - found->second.last > kMemory ? nullptr : &found->second;
}

Stragglers::Record& Stragglers::record_of(const PeerId& peer) {
  const TimePoint now = runtime_.now();
  if (records_.size() >= kMaxRecords && !records_.contains(peer)) {
    std::erase_if(records_, [now](const auto& item) { return now - item.second.last > kMemory; });
    if (records_.size() >= kMaxRecords)
      records_.erase(std::ranges::min_element(records_, {}, [](const auto& item) { return item.second.last; }));
  }
  Record& record = records_[peer];
  if (now - record.last > kMemory) record = {.took = record.took};
  record.last = now;
  return record;
}

void Stragglers::be_wary(const Round& round, Duration waited) {
  if (!round.tells_strangers_apart) return;
  if (!is_wary())
    log::info("averaging", "newcomers are not waited for as long as usual for a while: one of them was late");
  distrust_until_ = std::max(distrust_until_, runtime_.now() + std::min<Duration>(waited * kWaryFor, kLongestWary));
}

void Stragglers::round_ended(const RoundEnd& end) {
  Round* round = find_round(end.group_id);
  if (!round || !end.report) return;
  const auto& stragglers = end.report->stragglers;
  const Duration took = end.report->allreduce;
  const auto lost = end.report->lost();
  const auto is_late_stranger = [&](const PeerId& peer) {
    return peer != own_ && round->members.contains(peer) && is_stranger(peer);
  };
  if (std::ranges::any_of(stragglers, is_late_stranger)) be_wary(*round, took);
  if (!is_plausible(stragglers.size(), round->members.size())) return;
  const auto is_in = [](const std::vector<PeerId>& list, const PeerId& peer) {
    return std::ranges::find(list, peer) != list.end();
  };
  for (const PeerId& peer : stragglers) {
    if (peer == own_ || !round->members.contains(peer)) continue;
    Record& record = record_of(peer);
    if (record.owed == 0) ++record.late;
    record.owed = std::max(record.owed, std::min(record.late, kMostOwed));
  }
  round->took = took;
  for (const PeerId& peer : round->members) {
    if (peer == own_ || is_in(lost, peer) || is_in(stragglers, peer) || round->named.contains(peer)) continue;
    if (stragglers.empty()) round->in_time.insert(peer);
    const auto found = records_.find(peer);
    if (found == records_.end()) continue;
    found->second.owed -= std::min<std::size_t>(found->second.owed, 1);
    found->second.led_in_vain = false;
  }
}

bool Stragglers::told(const PeerId& witness, const std::string& id, const std::vector<PeerId>& stragglers) {
  Round* round = find_round(id);
  if (!round || witness == own_ || !round->members.contains(witness)) return false;
  std::size_t& told = round->witnesses[witness];
  if (stragglers.size() > kMostTold - told || !is_plausible(told + stragglers.size(), round->members.size()))
    return false;
  told += stragglers.size();
  for (const PeerId& peer : stragglers) {
    if (peer == own_ || peer == witness || !round->members.contains(peer)) continue;
    round->named.insert(peer);
    Record& record = record_of(peer);
    record.owed = std::max<std::size_t>(record.owed, 1);
    if (is_stranger(peer)) be_wary(*round, runtime_.now() - round->began);
  }
  return true;
}

void Stragglers::led_in_vain(const PeerId& peer) {
  record_of(peer).led_in_vain = true;
}

std::optional<Duration> Stragglers::patience(const PeerId& peer) const {
  const Record* record = find(peer);
  const bool late = (record && record->owed > 0) || (is_wary() && is_stranger(peer));
  if (!late) return std::nullopt;
  const auto usual = record && record->took ? record->took : last_took_;
  return usual ? *usual + std::max(kGrace, *usual / 2) : first_patience_;
}

bool Stragglers::leads_in_vain(const PeerId& peer) const {
  const Record* record = find(peer);
  return record && record->led_in_vain;
}

}  // namespace cohive::averaging
