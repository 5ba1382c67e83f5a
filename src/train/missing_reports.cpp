// What a ProgressTracker does where the run's record lacks reports of members, or has old ones.
#include <algorithm>
#include <unordered_set>

#include "cohive/train/progress_tracker.hpp"
#include "member_reports.hpp"
#include "progress_entry.hpp"

namespace cohive::train {
namespace {

constexpr Duration kReportDelay = 1500ms;  // until a report of a new epoch is in the record, and was read

}  // namespace

/// Puts what members have told us in the place of what the record has of them. A report that it lacks is of the key
/// that has signed for the peer before.
void ProgressTracker::take_answers(std::vector<Entry>& entries) {
  std::unordered_set<PeerId> in_record;
  const auto take = [this](Entry& entry, const ShardReport& told) {
    entry.epoch = told.epoch;
    entry.samples = std::min(told.samples, options_.target_batch_size);
    entry.samples_per_second = told.samples_per_second;
    entry.time = told.time;
  };
  for (Entry& entry : entries) {
    if (!entry.peer) continue;
    in_record.insert(*entry.peer);
    const ShardReport* told = answers_->told(*entry.peer);
    if (told && told->epoch > entry.epoch) take(entry, *told);
  }
  unlisted_.clear();
  for (const PeerId& peer : members_) {
    const ShardReport* told = answers_->told(peer);
    if (!told || in_record.contains(peer) || !dht_.host().connected(peer)) continue;
    const auto met = met_.find(peer);
    std::string marker = met != met_.end() && !met->second.empty() ? met->second : peer.binary();
    bound_[peer] = marker;
    Entry& entry = entries.emplace_back(Entry{.marker = std::move(marker), .client = told->client, .peer = peer});
    take(entry, *told);
    unlisted_.push_back(peer);
  }
  const bool lists_us = std::ranges::find(entries, key_->ownership_marker(), &Entry::marker) != entries.end();
  if (unlisted_.empty() || lists_us || !trains()) return;
  entries.push_back({.marker = key_->ownership_marker(),
                     .epoch = epoch_,
                     .samples = samples_,
                     .samples_per_second = ema_.samples_per_second(),
                     .client = options_.client_mode,
                     .peer = dht_.host().id()});
}

/// Members of the last round that have not reached this epoch as far as is known. Those that are not in the record may
/// train no more.
std::vector<PeerId> ProgressTracker::missing_members() const {
  std::vector<PeerId> missing;
  for (const PeerId& peer : members_) {
    if (peer == dht_.host().id() || is_absent(peer)) continue;
    const auto report = reports_.find(peer);
    const bool behind = report == reports_.end() || report->second.epoch < epoch_;
    if (behind || std::ranges::find(unlisted_, peer) != unlisted_.end()) missing.push_back(peer);
  }
  return missing;
}

/// Where the run is divided into groups, the members of one tell little of it.
void ProgressTracker::ask_missing_members() {
  if (3 * snapshot().expected > 4 * members_.size()) return;
  if (asking_ || drawn_ || sharded_ || withdrawn_ || !trains() || missing_members().empty()) return;
  asking_ = true;
  tasks_.spawn(ask_them(*this), "ask members for their reports");
}

/// Their reports of an epoch that has just begun are on their way.
Task<void> ProgressTracker::ask_them(ProgressTracker& self) {
  co_await self.runtime_.sleep_until(self.entered_ + kReportDelay +
                                     self.least_period(self.readers_of(self.snapshot())));
  const bool news = co_await self.answers_->ask(self.missing_members());
  self.asking_ = false;
  if (!news || self.sharded_) co_return;
  self.take_in();
  self.fetch_wanted_.notify_all();  // the next look may be sooner by now
}

}  // namespace cohive::train
