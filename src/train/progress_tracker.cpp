#include "cohive/train/progress_tracker.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/log.hpp"

namespace cohive::train {
namespace {

constexpr double kNoRate = 1e-20;  // never zero: the schema wants a positive float
constexpr double kMaxPlausible = 1e15;
constexpr double kMinTime = 1e-12;  // seconds per sample; batches reported at one instant are not infinitely fast

struct Entry {
  std::uint64_t epoch;
  double samples, samples_per_second, time;
  bool client;
  std::optional<PeerId> peer;
};

/// A peer's record, strictly typed: what does not fit is left out.
std::optional<Entry> parse(const msgpack::Value& value) {
  const auto* map = value.get_if<msgpack::Map>();
  if (!map) return std::nullopt;
  const auto *epoch = map->find("epoch"), *samples = map->find("samples_accumulated"),
             *rate = map->find("samples_per_second"), *time = map->find("time"), *client = map->find("client_mode");
  if (!epoch || !samples || !rate || !time || !client) return std::nullopt;
  const auto* rate_value = rate->get_if<double>();
  const auto* time_value = time->get_if<double>();
  const auto* client_value = client->get_if<bool>();
  if (!epoch->as_uint() || !samples->as_uint() || !rate_value || !time_value || !client_value) return std::nullopt;
  if (!(*rate_value >= 0 && *rate_value < kMaxPlausible) || !std::isfinite(*time_value)) return std::nullopt;
  const auto* peer = map->find("peer_id");
  const auto* peer_bytes = peer ? peer->get_if<msgpack::Bin>() : nullptr;
  return Entry{*epoch->as_uint(), static_cast<double>(*samples->as_uint()),
               *rate_value,       *time_value,
               *client_value,     peer_bytes ? PeerId::from_bytes(as_bytes(peer_bytes->data)) : std::nullopt};
}

}  // namespace

void PerformanceEma::update(double samples, double now) {
  if (samples <= 0 || last_ < 0) {
    last_ = now;
    return;
  }
  ++updates_;
  ema_ = alpha_ * (now - last_) / samples + (1 - alpha_) * ema_;
  const double adjusted = ema_ / (1 - std::pow(1 - alpha_, updates_));
  samples_per_second_ = 1 / std::max(adjusted, kMinTime);
  last_ = now;
}

ProgressTracker::ProgressTracker(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, TrackerOptions options)
    : dht_(dht),
      runtime_(dht.runtime()),
      key_(std::move(key)),
      options_(std::move(options)),
      changed_(runtime_, "progress to report"),
      fetch_wanted_(runtime_, "time to look at the run's progress"),
      seen_(runtime_, "news of the run's progress"),
      tasks_(runtime_, "progress tracker") {}
ProgressTracker::~ProgressTracker() = default;

void ProgressTracker::start() {
  restart_timer();
  tasks_.spawn(report_loop(*this), "report progress");
  tasks_.spawn(fetch_loop(*this), "fetch progress");
}

GlobalProgress ProgressTracker::snapshot() const {
  std::lock_guard lock(mutex_);
  return global_;
}

void ProgressTracker::set(const GlobalProgress& progress) {
  {
    std::lock_guard lock(mutex_);
    global_ = progress;
    global_.expected = progress.peers - std::min(progress.peers, absent_.size());
  }
  seen_.notify_all();
}

Task<void> ProgressTracker::epoch_passed(std::uint64_t epoch) {
  while (snapshot().epoch <= epoch) co_await seen_.wait();
}

void ProgressTracker::report(std::uint64_t epoch, double samples) {
  const double extra = samples - (epoch == epoch_ ? samples_ : 0);
  if (extra > 0) {
    ema_.update(extra, uptime());
  } else {
    restart_timer();
  }
  GlobalProgress global = snapshot();
  if (epoch == epoch_ && epoch == global.epoch) {
    global.samples += extra;
    set(global);
  }
  epoch_ = epoch;
  samples_ = samples;
  if (samples > 0) active_epoch_ = global.epoch;
  publish();
}

void ProgressTracker::update_epoch(std::uint64_t epoch) {
  GlobalProgress global = snapshot();
  if (epoch > global.epoch) {
    global.epoch = epoch;
    global.samples = 0;
    global.eta = dht_.now() + 1e9;
    set(global);
  }
  epoch_ = epoch;
  samples_ = 0;
  restart_timer();
  publish();
  fetch_soon();
}

void ProgressTracker::restart_timer() {
  ema_.reset_timer(uptime());
}

void ProgressTracker::took_part(const std::vector<PeerId>& members) {
  for (const auto& [peer, time] : reports_)
    if (peer != dht_.host().id() && std::find(members.begin(), members.end(), peer) == members.end())
      absent_[peer] = time;
  set(snapshot());
}

void ProgressTracker::publish() {
  unpublished_ = true;
  changed_.notify_all();
}

Task<void> ProgressTracker::store_record() {
  using namespace msgpack;
  const double now = dht_.now();
  Map record{{{"peer_id", Value::bin(dht_.host().id().bytes())},
              {"epoch", epoch_},
              {"samples_accumulated", static_cast<std::uint64_t>(std::max(0.0, samples_))},
              {"samples_per_second", ema_.samples_per_second()},
              {"time", now},
              {"client_mode", options_.client_mode}}};
  const auto stored = co_await dht_.store(options_.run_id + "_progress", Bin{key_->ownership_marker()},
                                          std::move(record), now + to_seconds(options_.metadata_expiration));
  if (!stored) log::warn("train", "the swarm does not know our progress: {}", stored.error());
}

Task<void> ProgressTracker::report_loop(ProgressTracker& self) {
  for (;;) {
    const Deadline again = self.runtime_.after(self.options_.metadata_expiration / 2);
    while (!self.unpublished_ && co_await self.changed_.wait(again)) {
    }
    self.unpublished_ = false;
    // Who no longer trains is not to be counted: no more reports once the run has passed two epochs without it.
    if (self.active_epoch_ && *self.active_epoch_ + 1 >= self.snapshot().epoch) {
      co_await self.store_record();
      // Who begins at the same time as others sees them at once, not after the period of a lonely peer.
      if (self.snapshot().peers == 0) self.fetch_soon();
    }
    co_await self.runtime_.sleep_for(self.options_.min_refresh / 2);  // joins bursts of reports
  }
}

void ProgressTracker::fetch_soon() {
  fetch_now_ = true;
  fetch_wanted_.notify_all();
}

Task<void> ProgressTracker::refresh() {
  auto found = co_await dht_.get(options_.run_id + "_progress", true);
  const double now = dht_.now();
  GlobalProgress global;
  std::vector<Entry> entries;
  if (found)
    for (const auto& [subkey, stored] : found->entries())
      if (auto entry = parse(stored.value)) entries.push_back(*entry);
  global.epoch = epoch_;
  for (const Entry& entry : entries)
    if (!entry.client) global.epoch = std::max(global.epoch, entry.epoch);
  global.samples_per_second = kNoRate;
  double estimated = 0;
  reports_.clear();
  for (const Entry& entry : entries) {
    if (!entry.peer) continue;
    double& latest = reports_.try_emplace(*entry.peer, entry.time).first->second;
    latest = std::max(latest, entry.time);
  }
  std::erase_if(absent_, [this](const auto& absence) {
    const auto report = reports_.find(absence.first);
    return report == reports_.end() || report->second > absence.second;
  });
  for (const Entry& entry : entries) {
    ++global.peers;
    global.clients += entry.client;
    global.samples_per_second += entry.samples_per_second;
    if (entry.epoch != global.epoch) continue;
    global.samples += entry.samples;
    estimated += entry.samples + std::max(0.0, now - entry.time) * entry.samples_per_second;
  }
  if (entries.empty()) {
    global.samples = samples_;
    global.samples_per_second = ema_.samples_per_second();
    global.eta = now + std::max(0.0, options_.target_batch_size - samples_) / ema_.samples_per_second();
    next_fetch_ = runtime_.now() + options_.default_refresh;
  } else {
    const double wait = std::max(0.0, options_.target_batch_size - estimated) / global.samples_per_second;
    const auto peers = static_cast<double>(global.peers);
    const double expected = std::max(peers + options_.expected_drift_peers, peers * (1 + options_.expected_drift_rate));
    global.eta = now + wait;
    next_fetch_ =
        runtime_.now() + std::clamp(from_seconds(wait * peers / expected), options_.min_refresh, options_.max_refresh);
  }
  set(global);
}

Task<void> ProgressTracker::fetch_loop(ProgressTracker& self) {
  for (;;) {
    self.fetch_now_ = false;
    co_await self.refresh();
    while (!self.fetch_now_ && co_await self.fetch_wanted_.wait(Deadline(self.next_fetch_))) {
    }
    co_await self.runtime_.sleep_for(self.options_.min_refresh / 5);
  }
}

Task<void> ProgressTracker::close() {
  tasks_.cancel();
  if (!active_epoch_) co_return;
  const auto stored = co_await dht_.store(options_.run_id + "_progress", msgpack::Bin{key_->ownership_marker()},
                                          msgpack::Value(), dht_.now() + to_seconds(options_.metadata_expiration));
  if (!stored) log::debug("train", "our progress is not taken back: {}", stored.error());
}

}  // namespace cohive::train
