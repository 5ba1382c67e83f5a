#include "cohive/train/progress_tracker.hpp"

#include <algorithm>
#include <stdexcept>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/names.hpp"
#include "cohive/dht/schema.hpp"
#include "core/detail/median.hpp"
#include "dht/detail/later_expiration.hpp"
#include "member_reports.hpp"
#include "progress_entry.hpp"
#include "shards/shards.hpp"

namespace cohive::train {
namespace {

constexpr double kNoRate = 1e-20;         // never zero: the schema wants a positive float
constexpr double kRefreshPerPeer = 0.05;  // seconds
constexpr std::size_t kManyPeers = 16, kReplicasRead = 2;
// Of larger runs each replica draws some records, of nearly 1 kB each, and the rest is taken to be like them.
constexpr std::size_t kTooManyPeers = 128, kReplicasDrawn = 3, kRecordsSampled = 16;
constexpr Duration kLongestHurry = 1s;    // between looks of all trainers of such a run at the same news
constexpr double kFarAway = 1e9;          // seconds until an end that cannot be foreseen yet
constexpr std::size_t kMaxSpeeds = 4096;  // remembered
constexpr double kSlowest = 1e-9;         // samples per second; below, nothing was measured yet
constexpr double kMuchFaster = 16;        // than the median trainer

}  // namespace

ProgressTracker::ProgressTracker(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, TrackerOptions options)
    : dht_(dht),
      runtime_(dht.runtime()),
      key_(std::move(key)),
      options_(std::move(options)),
      ema_(options_.performance_ema_alpha),
      changed_(runtime_, "progress to report"),
      fetch_wanted_(runtime_, "time to look at the run's progress"),
      seen_(runtime_, "news of the run's progress"),
      shards_(std::make_unique<ProgressShards>(dht_, key_, options_)),
      answers_(std::make_unique<MemberReports>(
          dht_, options_.run_id,
          [this] { return trains() && !withdrawn_ ? std::optional(report_for_others()) : std::nullopt; })),
      tasks_(runtime_, "progress tracker") {
  if (const auto fault = fault_of_name(options_.run_id))
    throw std::invalid_argument("TrackerOptions::run_id " + *fault);
  dht_.add_validator(std::make_shared<dht::SchemaValidator>(dht::training_progress_schema(), options_.run_id));
  dht_.add_validator(key_);
}
ProgressTracker::~ProgressTracker() = default;

void ProgressTracker::start() {
  started_ = runtime_.now();
  restart_timer();
  // This peer answers for shards before it has looked: others may know by then that the run is large.
  if (options_.sharded_above > 0) shards_->serve();
  answers_->serve();
  losses_ = dht_.host().on_lost([this](const PeerId& peer) {
    if (reports_.contains(peer)) lost_[peer] = dht_.now();
  });
  tasks_.spawn(report_loop(*this), "report progress");
  tasks_.spawn(fetch_loop(*this), "fetch progress");
  tasks_.spawn(look_for_shards(*this), "look for shards");
}

Task<void> ProgressTracker::close(Deadline deadline) {
  tasks_.cancel();
  co_await withdraw(deadline);
  co_await shards_->close(deadline);
}

Task<void> ProgressTracker::withdraw(Deadline deadline) {
  withdrawn_ = true;
  co_await shards_->withdraw(deadline);
  if (std::exchange(stored_, false)) co_await store_record(true, deadline);
}

GlobalProgress ProgressTracker::snapshot() const {
  std::lock_guard lock(mutex_);
  return global_;
}

void ProgressTracker::set(const GlobalProgress& progress) {
  {
    std::lock_guard lock(mutex_);
    if (global_.peers > 1 && progress.peers <= 1 && !withdrawn_)
      log::warn("train", "no other trainer of run {} is in sight any more; going on alone", options_.run_id);
    if (global_.expected > 1) company_left_ = runtime_.now();
    global_ = progress;
    count_expected(global_);
    global_.others_train = !others_.empty();
    global_.shard_bytes = shards_->bytes_sent();
  }
  seen_.notify_all();
}

bool ProgressTracker::in_company(Duration grace) const {
  return snapshot().expected > 1 || (company_left_ && runtime_.now() - *company_left_ <= grace);
}

Task<void> ProgressTracker::epoch_passed(std::uint64_t epoch) {
  for (;;) {
    const GlobalProgress global = snapshot();
    if (global.epoch > epoch || (!global.in_touch && heard_ > epoch)) co_return;
    co_await seen_.wait();
  }
}

Task<void> ProgressTracker::news(Deadline deadline) {
  co_await seen_.wait(deadline);
}

// ---- What this peer tells

void ProgressTracker::report(std::uint64_t epoch, double samples) {
  const double extra = samples - (epoch == epoch_ ? samples_ : 0);
  changed_at_ = dht_.now();
  if (extra > 0) {
    batch_ = extra;
    ema_.update(extra, uptime());
  } else {
    restart_timer();
  }
  GlobalProgress global = snapshot();
  if (epoch == epoch_ && epoch == global.epoch) {
    global.samples += extra;
    global.own_samples += extra;
    set(global);
  }
  epoch_ = epoch;
  samples_ = samples;
  if (samples > 0) active_epoch_ = std::max(global.epoch, epoch);
  publish();
  if (sharded_ && is_misjudged()) fetch_soon();
}

void ProgressTracker::begin_anew(std::uint64_t epoch) {
  active_epoch_ = epoch;
  report(epoch, 0);
}

void ProgressTracker::update_epoch(std::uint64_t epoch) {
  GlobalProgress global = snapshot();
  const bool back = epoch < epoch_;  // as its user wishes: where others are beyond that, the next look says so
  if (epoch > global.epoch || back) {
    global.epoch = epoch;
    global.claimed = std::max(global.claimed, epoch);
    global.samples = global.own_samples = 0;
    others_.clear();
    global.eta = dht_.now() + kFarAway;
    set(global);
  }
  epoch_ = epoch;
  samples_ = 0;
  changed_at_ = dht_.now();
  entered_ = runtime_.now();
  restart_timer();
  publish();
  fetch_soon();
}

void ProgressTracker::set_target(double samples) {
  if (samples == std::exchange(options_.target_batch_size, samples)) return;
  GlobalProgress global = snapshot();
  if (others_.empty() || global.epoch != epoch_) return;
  global.eta = dht_.now() + until_target(global);
  set(global);
}

void ProgressTracker::restart_timer() {
  ema_.reset_timer(uptime());
}

void ProgressTracker::training_resumes() {
  restart_timer();
  resumed_ = changed_at_ = dht_.now();
  GlobalProgress global = snapshot();
  if (others_.empty() || global.epoch != epoch_) return;
  global.eta = dht_.now() + until_target(global);
  set(global);
}

void ProgressTracker::report_at_once() {
  urgent_ = true;
  changed_.notify_all();
}

void ProgressTracker::publish() {
  unpublished_ = true;
  changed_.notify_all();
}

/// A report may wait to be stored. What is done since its time, others reckon. A long batch makes it no old one.
ShardReport ProgressTracker::report_for_others() const {
  const double now = dht_.now();
  ShardReport report = own_report();
  report.time = std::clamp(report.time, now - to_seconds(options_.metadata_expiration) / 2, now);
  return report;
}

Task<void> ProgressTracker::store_record(bool goodbye, std::optional<Deadline> deadline) {
  using namespace msgpack;
  const double now = dht_.now();
  const ShardReport own = report_for_others();
  const double expiration = dht::later_expiration(now + to_seconds(options_.metadata_expiration), newest_expiration_);
  Value record;
  if (!goodbye)
    record = entry_value(dht_.host().id(), own.epoch, own.samples, own.samples_per_second, own.time, own.client);
  const auto stored = co_await dht_.store(options_.run_id + "_progress", Bin{key_->ownership_marker()},
                                          std::move(record), expiration, deadline);
  if (!stored && !goodbye) log::warn("train", "the swarm does not know our progress: {}", stored.error());
}

/// What was there before this peer has said anything tells whether it is the first one.
Task<void> ProgressTracker::report_loop(ProgressTracker& self) {
  while (!self.looked_) co_await self.seen_.wait();
  for (;;) {
    const Deadline again = self.runtime_.after(self.options_.metadata_expiration / 2);
    while (!self.unpublished_)
      if (!co_await self.changed_.wait(again)) break;
    self.unpublished_ = false;
    // A peer that no longer trains is not to be counted: no more reports once the run has passed two epochs without it.
    if (self.withdrawn_) co_return;
    if (self.trains() && !self.sharded_) {
      const bool first = !std::exchange(self.stored_, true);
      co_await self.store_record(false);
      // Trainers that begin at the same time see each other at once, not after the period of a lonely peer.
      if (self.snapshot().peers <= (first ? 1 : 0)) self.fetch_soon();
    }
    // Joins bursts of reports.
    const Deadline next = self.runtime_.after(self.least_period(self.readers_of(self.snapshot())) / 2);
    while (!self.urgent_ && self.runtime_.now() < next.at()) (void)co_await self.changed_.wait(next);
    self.urgent_ = false;
  }
}

// ---- What the swarm tells

namespace {

/// While one leader follows another, both may have written what the shards come to.
void keep_one_sum(std::vector<ProgressEntry>& entries) {
  const auto sums = std::ranges::partition(entries, [](const ProgressEntry& one) { return !one.is_sum(); });
  if (sums.size() < 2) return;
  std::ranges::sort(sums, {}, &ProgressEntry::samples);
  const ProgressEntry middle = sums[(sums.size() - 1) / 2];
  entries.erase(sums.begin(), sums.end());
  entries.push_back(middle);
}

bool is_of_owner(const std::pair<msgpack::Value, dht::StoredValue>& entry) {
  const auto* subkey = entry.first.get_if<msgpack::Bin>();
  return subkey && subkey->data.find(dht::kOwnerMarker) != std::string::npos && !is_sum_of_shards(subkey->data);
}

}  // namespace

/// What does not fit is left out.
std::vector<ProgressTracker::Entry> ProgressTracker::entries_of(const dht::GetResult& record) const {
  std::vector<Entry> entries;
  for (const auto& [subkey, stored] : record.entries()) {
    auto entry = read_entry(subkey, stored.value, options_.target_batch_size);
    if (!entry) continue;
    const bool own = entry->marker == key_->ownership_marker();
    if (!own && !is_timely(entry->time, dht_.now())) continue;
    // The record of an earlier process with our identity is not another trainer.
    if (entry->peer == dht_.host().id() && !own) continue;
    entries.push_back(std::move(*entry));
  }
  keep_one_sum(entries);
  return entries;
}

/// A few trainers that were drawn may all be slow ones. So those of earlier draws are remembered, and the present ones
/// count for as many as make the mean of all. One that claims to be far faster than the others is not believed.
ProgressTracker::Speeds ProgressTracker::compare_speeds(const std::vector<Entry>& entries) {
  if (!drawn_) {
    speeds_.clear();
    return {};
  }
  const TimePoint now = runtime_.now();
  const auto tells_a_speed = [this](const Entry& entry) {
    return entry.samples_per_second > kSlowest && entry.marker != key_->ownership_marker() && !entry.is_sum();
  };
  std::erase_if(speeds_, [&](const auto& one) { return now >= one.second.forgotten; });
  for (const Entry& entry : entries)
    if (tells_a_speed(entry) && speeds_.size() < kMaxSpeeds)
      speeds_[entry.marker] = {entry.samples_per_second, now + options_.metadata_expiration};
  if (speeds_.empty()) return {};
  std::vector<double> known;
  for (const auto& [marker, speed] : speeds_) known.push_back(speed.samples_per_second);
  Speeds speeds;
  speeds.most = kMuchFaster * median(known);
  double all = 0, drawn = 0, count = 0;
  for (const double speed : known) all += std::min(speed, speeds.most);
  for (const Entry& entry : entries) {
    if (!tells_a_speed(entry)) continue;
    drawn += std::min(entry.samples_per_second, speeds.most);
    ++count;
  }
  if (drawn > 0) speeds.usual = all / static_cast<double>(known.size()) / (drawn / count);
  return speeds;
}

/// Some entries of the record were drawn, or all are there.
void ProgressTracker::add_up(const std::vector<Entry>& entries, GlobalProgress& global) {
  global.samples = global.own_samples = epoch_ == global.epoch ? samples_ : 0;
  double clients = 0, represented = 0;
  const auto own = static_cast<std::size_t>(std::ranges::count(entries, key_->ownership_marker(), &Entry::marker));
  const auto others = static_cast<std::size_t>(std::ranges::count_if(record_.entries(), is_of_owner)) - own;
  const double each = drawn_ && others > 0 ? static_cast<double>(record_.held - 1) / static_cast<double>(others) : 1;
  const Speeds speeds = compare_speeds(entries);
  for (const Entry& entry : entries) {
    const bool ours = entry.marker == key_->ownership_marker();
    const bool alike = !ours && !entry.is_sum();
    clients += (alike ? each : 1) * entry.client;
    represented += ours ? 0 : alike ? each : 1;
    if (!ours && !drawn_ && entry.peer && is_gone(*entry.peer, entry.time)) continue;
    const double like = alike ? each * speeds.usual : 1;  // trainers that it stands for
    const double speed = alike ? std::min(entry.samples_per_second, speeds.most) : entry.samples_per_second;
    // A stranger that claims to be ahead adds nothing to this epoch, however fast it claims to be.
    const bool claims_to_be_ahead = entry.epoch > global.epoch && !(entry.peer && is_met(*entry.peer));
    if (ours || !claims_to_be_ahead) global.samples_per_second += like * speed;
    if (entry.epoch != global.epoch || ours) continue;
    global.samples += like * entry.samples;
    others_.push_back({like * entry.samples, like * speed, entry.time});
  }
  global.peers = static_cast<std::size_t>(std::lround(represented)) + (drawn_ ? 1 : own);
  global.clients = static_cast<std::size_t>(std::lround(clients));
  const double wait = until_target(global);
  const std::size_t there = readers_of(global);
  const auto peers = static_cast<double>(there);
  const double expected = std::max(peers + options_.expected_drift_peers, peers * (1 + options_.expected_drift_rate));
  global.eta = dht_.now() + wait;
  const Duration least = least_period(there);
  // A peer that has just begun to look may see a run grow from one trainer to a hundred: it looks again and again.
  const Duration longest = std::clamp<Duration>(runtime_.now() - started_, least, options_.max_refresh_period);
  next_fetch_ = runtime_.now() + std::clamp<Duration>(from_seconds(wait * peers / expected), least, longest);
}

/// Seconds, if the others have gone on at their speed since they reported, or since this one could train again.
double ProgressTracker::until_target(const GlobalProgress& global) const {
  const double now = dht_.now();
  double samples = global.own_samples;
  for (const Other& other : others_)
    samples += other.samples + std::max(0.0, now - std::max(other.time, resumed_)) * other.samples_per_second;
  return std::max(0.0, options_.target_batch_size - samples) / global.samples_per_second;
}

/// The record grows with the trainers, and so does the number of its readers.
Duration ProgressTracker::least_period(std::size_t readers) const {
  return std::clamp<Duration>(from_seconds(static_cast<double>(readers) * kRefreshPerPeer), options_.min_refresh_period,
                              options_.max_refresh_period);
}

/// The record of many trainers is large, and each of them reads it. A newcomer does not know how large it is.
Task<Result<dht::GetResult>> ProgressTracker::read_record() {
  const std::string key = options_.run_id + "_progress";
  const GlobalProgress last = snapshot();
  if (!looked_ || last.peers > kTooManyPeers) {
    // All reports are signed: of what strangers have put beside them there may be any amount.
    auto drawn = co_await dht_.get_sampled(key, kReplicasDrawn, {.most_entries = kRecordsSampled, .only_owned = true});
    if (!drawn || !drawn->is_sampled() || drawn->held > kTooManyPeers) co_return drawn;
    if (!looked_ && co_await found_in_shards()) co_return drawn;
  }
  // Some replicas may lack what others have, and of few trainers each report counts.
  if (!looked_ || readers_of(last) > kManyPeers) co_return co_await dht_.get_sampled(key, kReplicasRead);
  co_return co_await dht_.get(key, true);
}

Task<void> ProgressTracker::refresh() {
  if (sharded_) co_return co_await refresh_from_shards();
  auto found = co_await read_record();
  if (!found && found.error() == cohive::Errc::timeout) {  // says nothing about the other trainers
    next_fetch_ = runtime_.now() + options_.default_refresh_period;
    co_return ask_missing_members();
  }
  if (sharded_) co_return co_await refresh_from_shards();  // since it began to read
  record_ = found ? std::move(*found) : dht::GetResult();
  take_in();
  dial_strangers();
  ask_missing_members();
}

/// Takes in the record that was read last, and what members have told.
void ProgressTracker::take_in() {
  std::vector<Entry> entries = entries_of(record_);
  others_.clear();
  drawn_ = record_.is_sampled();
  bind_peers(entries);
  if (!drawn_) take_answers(entries);
  GlobalProgress global;
  global.samples_per_second = kNoRate;
  note_reports(entries);
  agree_on_epoch(entries, global);
  if (entries.empty()) {
    global.samples = global.own_samples = samples_;
    global.samples_per_second = ema_.samples_per_second();
    global.eta = dht_.now() + until_target(global);
    next_fetch_ = runtime_.now() + options_.default_refresh_period;
  } else {
    add_up(entries, global);
  }
  const bool has_sum = std::ranges::any_of(entries, &Entry::is_sum);
  note_way(global.peers, has_sum && most_have_left_the_record(global.met));
  const auto is_own = [this](const auto& report) { return report.first == dht_.host().id(); };
  const bool alone = std::ranges::all_of(reports_, is_own) && std::ranges::none_of(entries, &Entry::is_sum);
  if (!looked_ && alone)
    log::info("train", "no other trainer reports for run {} yet: this is the first one, or the run has another name",
              options_.run_id);
  if (!std::exchange(looked_, true)) others_began_ = !alone;
  if (sharded_ && global.peers < snapshot().peers) return;  // who has left the record is not gone
  set(global);
}

void ProgressTracker::fetch_soon() {
  fetch_now_ = true;
  fetch_wanted_.notify_all();
}

Task<void> ProgressTracker::fetch_loop(ProgressTracker& self) {
  for (;;) {
    self.fetch_now_ = false;
    co_await self.refresh();
    while (!self.fetch_now_)
      if (!co_await self.fetch_wanted_.wait(Deadline(self.next_fetch_))) break;
    co_await self.runtime_.sleep_for(self.options_.min_refresh_period / 5);
    if (self.drawn_)
      co_await self.runtime_.sleep_for(from_seconds(self.runtime_.random_unit() * to_seconds(kLongestHurry)));
  }
}

}  // namespace cohive::train
