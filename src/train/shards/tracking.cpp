// What a ProgressTracker does where its run reports in shards.
#include <algorithm>
#include <cmath>

#include "cohive/core/on_exit.hpp"
#include "cohive/train/progress_tracker.hpp"
#include "shards.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

// How often a trainer reports and looks, at least and where the run is not as it was expected, and how long it waits
// for leaders, or before it tries again.
constexpr Duration kExchangeAgain = 9s, kExchangeSoon = 2500ms, kLeastExchange = 1s;
// What others reckon of a trainer may be off by so many batches, and by such a part of what it does in an epoch.
constexpr double kBatchesOff = 1.5, kShareOff = 0.03;
constexpr Duration kLongestSilence = 30s, kLeadersTime = 10s, kSmallTime = 30s, kWayAgain = 60s, kWayAgainUnheard = 5s;
constexpr double kLongestHalfBatch = 60;  // seconds
// For the record, or the leaders, until a newcomer has looked.
constexpr Duration kRecordTime = 1s, kFirstLookTime = 3s;
constexpr Duration kGoodbyeTime = 10s;
constexpr double kLargeEnough = 0.75;  // a run for shards, in TrackerOptions::sharded_above
constexpr double kLeastRate = 1e-20;   // never zero, as reports have it

}  // namespace

/// A peer that no longer trains is not to be counted: no more reports once the run has passed two epochs without it.
bool ProgressTracker::trains() const {
  return active_epoch_ && *active_epoch_ + 1 >= snapshot().epoch;
}

/// Samples come batch by batch: on average half of the next one has been computed. A trainer that waits, or whose batch
/// takes long, makes no more than this.
ShardReport ProgressTracker::own_report() const {
  const double speed = ema_.samples_per_second();
  const double half = std::min(batch_ / speed / 2, kLongestHalfBatch);
  const double time = std::max(changed_at_ + half, dht_.now() - half);
  return {epoch_, std::max(0.0, samples_), speed, time, options_.client_mode};
}

/// Tells whether others reckon something else than this trainer's samples, from its last report or as they have none.
/// That of a new epoch is on its way.
bool ProgressTracker::is_misjudged() const {
  const auto& told = shards_->reported();
  if (!told) return trains() && !withdrawn_;
  if (told->epoch != epoch_) return false;
  const ShardReport own = own_report();
  const double reckoned = told->samples + (own.time - told->time) * told->samples_per_second;
  const double speed = std::max(snapshot().samples_per_second, own.samples_per_second);
  const double share = options_.target_batch_size * own.samples_per_second / speed;
  return std::abs(own.samples - reckoned) > std::max(kBatchesOff * batch_, kShareOff * share);
}

/// Anybody can write what looks like the sum of shards. Trainers of a run that reports in shards are not in the record.
/// \param reporting  those in the record that this peer has averaged with
bool ProgressTracker::most_have_left_the_record(std::size_t reporting) const {
  const auto in_touch = static_cast<std::size_t>(
      std::ranges::count_if(met_, [this](const auto& one) { return dht_.host().connected(one.first); }));
  return reporting == 0 || 2 * reporting < in_touch;
}

/// Tells from a look at the record how this peer reports from now on. Where most of a large run have left the record,
/// they report in shards: the leaders know, before the sum of these is in the record.
void ProgressTracker::note_way(std::size_t peers, bool sum_seen) {
  if (options_.sharded_above == 0 || withdrawn_) return;
  const std::size_t known = snapshot().peers;
  const bool others_left = 2 * known > options_.sharded_above && 2 * peers < known;
  const bool goes = credible(peers) > options_.sharded_above || sum_seen || others_left;
  if (!goes || runtime_.now() < not_before_) return;
  enter_shards(others_left && !sum_seen ? kLeadersTime : kLongestSilence);
  fetch_soon();
}

/// \param patience  in which leaders have to answer, or it goes back to the record
void ProgressTracker::enter_shards(Duration patience) {
  sharded_ = true;
  large_at_ = runtime_.now();
  answered_ = large_at_ - (kLongestSilence - patience);
}

/// Tells whether leaders know the run. What is left in the record of such a run is not worth reading, and where many
/// come at once those that hold it would send all of it to each of them.
Task<bool> ProgressTracker::found_in_shards() {
  if (options_.sharded_above == 0) co_return false;
  const auto least = static_cast<double>(options_.sharded_above) * kLargeEnough;
  if (!co_await shards_->find_run(least, runtime_.after(kFirstLookTime))) co_return false;
  if (!sharded_) enter_shards(kLeadersTime);
  co_return true;
}

/// Those that hold the record of a run into which many come may be slow to send it.
Task<void> ProgressTracker::look_for_shards(ProgressTracker& self) {
  co_await self.runtime_.sleep_for(kRecordTime);
  if (self.looked_ || self.sharded_ || !co_await self.found_in_shards()) co_return;
  co_await self.refresh_from_shards();
}

/// \param away  for how long it reports in the record at least
Task<void> ProgressTracker::leave_shards(Duration away) {
  co_await shards_->withdraw(runtime_.after(kGoodbyeTime));  // it would be counted twice
  sharded_ = false;
  // In the record keys report for peers again, the first one that is seen for each.
  std::erase_if(bound_, [](const auto& one) { return one.second == one.first.binary(); });
  for (auto& [peer, marker] : met_)
    if (marker == peer.binary()) marker.clear();
  not_before_ = runtime_.now() + away;
  publish();
  fetch_soon();
}

Task<void> ProgressTracker::refresh_from_shards() {
  const bool told = shards_->reported() && shards_->reported()->epoch == epoch_;
  if (exchanging_ || (told && runtime_.now() - exchanged_ < kLeastExchange)) co_return;
  exchanging_ = true;
  const auto over = on_exit([this] { exchanging_ = false; });
  std::optional<ShardReport> report;
  if (trains() && !withdrawn_) report = own_report();
  const auto seen = co_await shards_->exchange(report);
  exchanged_ = runtime_.now();
  next_fetch_ = exchanged_ + kExchangeSoon;
  if (seen && report && std::exchange(stored_, false)) co_await store_record(true);
  if (!seen || !seen->run) {
    if (runtime_.now() - answered_ > kLongestSilence) co_await leave_shards(kWayAgainUnheard);
    co_return;
  }
  answered_ = runtime_.now();
  const ProgressSum& run = *seen->run;
  if (run.trainers >= kLargeEnough * static_cast<double>(options_.sharded_above)) large_at_ = answered_;
  if (answered_ - large_at_ > kSmallTime) co_return co_await leave_shards(kWayAgain);
  drawn_ = true;
  std::vector<Entry> entries;
  for (const auto& [trainer, told_of] : seen->reports)
    entries.push_back({trainer.binary(), told_of.epoch, told_of.samples, told_of.samples_per_second, told_of.time,
                       told_of.client, trainer});
  bind_peers(entries);
  note_reports(entries);
  GlobalProgress global;
  agree_on_epoch(entries, global);
  heard_ = run.epoch;
  // Where none was drawn that this peer has averaged with, the leaders' word makes it look for the next epoch's state.
  const bool next = global.met == 0 && !met_.empty() && run.epoch > epoch_;
  if (!options_.auxiliary) global.epoch = next ? epoch_ + 1 : std::max(epoch_, std::min(global.epoch, run.epoch));
  count_run(run, global);
  if (!std::exchange(looked_, true)) others_began_ = true;
  // Trainers enter an epoch at unlike times: what others reckon of it at its beginning is soon wrong.
  if (run.epoch >= epoch_ && !seen->is_news)
    next_fetch_ = exchanged_ + std::clamp<Duration>((exchanged_ - entered_) / 2, kExchangeSoon, kExchangeAgain);
  set(global);
}

void ProgressTracker::count_run(const ProgressSum& run, GlobalProgress& global) {
  const auto& own = shards_->reported();
  global.peers = static_cast<std::size_t>(std::lround(run.trainers));
  global.clients = static_cast<std::size_t>(std::lround(run.clients));
  global.samples_per_second = std::max(run.samples_per_second, kLeastRate);
  global.samples = global.own_samples = epoch_ == global.epoch ? samples_ : 0;
  others_.clear();
  if (run.epoch == global.epoch) {
    const double ours = own && own->epoch == run.epoch
                            ? std::max(0.0, own->samples + (run.time - own->time) * own->samples_per_second)
                            : 0;
    const double samples = std::max(0.0, run.samples - ours);
    global.samples += samples;
    others_.push_back({samples, global.samples_per_second - (own ? own->samples_per_second : 0), run.time});
  }
  const double wait = until_target(global);
  global.eta = dht_.now() + wait;
}

}  // namespace cohive::train
