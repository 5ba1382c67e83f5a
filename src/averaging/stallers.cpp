#include "stallers.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxRecords = 4096;
constexpr std::size_t kForgiven = 1;  // rounds
constexpr Duration kLongestBan = 1h;
constexpr int kMostBans = 6;  // the next one is the longest

}  // namespace

void Stallers::round_ended(const std::vector<PeerId>& lost, std::size_t members, TimePoint now) {
  ++round_;
  members_ = members;
  last_.clear();
  if (!is_plausible(lost)) return;
  last_ = lost;
  if (last_.size() > kMostReported) last_.resize(kMostReported);
  for (const PeerId& peer : lost) note(peer, own_, now);
}

void Stallers::reported(const PeerId& witness, const std::vector<PeerId>& lost, TimePoint now) {
  if (!is_plausible(lost)) return;
  for (std::size_t i = 0; i < std::min(lost.size(), kMostReported); ++i)
    if (lost[i] != own_ && lost[i] != witness) note(lost[i], witness, now);
}

/// A member that has lost more than half of the others was most likely cut off itself. In a group of two there is no
/// other peer to go on with.
bool Stallers::is_plausible(const std::vector<PeerId>& lost) const {
  return 2 * lost.size() + 1 <= members_;
}

void Stallers::note(const PeerId& peer, const PeerId& witness, TimePoint now) {
  forget_old(now);
  if (records_.size() >= kMaxRecords && !records_.contains(peer)) return;
  Record& record = records_[peer];
  record.witnesses.insert(witness);
  record.last = now;
  if (witness == own_) ++record.own_rounds;
  if (record.last_round != round_) {
    record.last_round = round_;
    ++record.rounds;
  }
  if (now < record.until || record.rounds <= kForgiven) return;
  if (record.own_rounds <= kForgiven && !is_believed(record)) return;
  const Duration ban = std::min<Duration>(kFirstBan * (1 << record.bans), kLongestBan);
  record.until = now + ban;
  record.bans = std::min(record.bans + 1, kMostBans);
  log::info("averaging", "{} is kept out of groups for {:.0f} s: they have waited for it in vain again", peer,
            to_seconds(ban));
}

bool Stallers::is_believed(const Record& record) const {
  return record.witnesses.size() > std::max<std::size_t>(1, members_ / 3);
}

bool Stallers::has_stalled(const PeerId& peer, TimePoint now) const {
  const auto found = records_.find(peer);
  if (found == records_.end() || now - found->second.last > kMemory) return false;
  return found->second.own_rounds > 0 || is_believed(found->second);
}

bool Stallers::is_kept_out(const PeerId& peer, TimePoint now) const {
  const auto found = records_.find(peer);
  return found != records_.end() && now < found->second.until;
}

/// An honest peer starts anew after a while.
void Stallers::forget_old(TimePoint now) {
  std::erase_if(records_, [now](const auto& item) {
    return now - item.second.last > kMemory && now > item.second.until + kMemory;
  });
}

}  // namespace cohive::averaging
