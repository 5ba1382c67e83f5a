/// \file
/// ProgressTracker: how far the whole run is, through signed records in the DHT. Source: hivemind wire spec,
/// section 7.1. Loop thread only, except snapshot().
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::train {

/// Samples per second as an exponential average of the time per sample.
class PerformanceEma {
 public:
  explicit PerformanceEma(double alpha = 0.1) : alpha_(alpha) {}
  /// `samples` were processed until `now` (seconds) since the last call.
  void update(double samples, double now);
  /// Time until the next update does not count.
  void reset_timer(double now) { last_ = now; }
  double samples_per_second() const { return samples_per_second_; }

 private:
  double alpha_;
  double ema_ = 0, last_ = -1, samples_per_second_ = 1e-20;
  int updates_ = 0;
};

struct TrackerOptions {
  std::string run_id;
  double target_batch_size = 0;
  bool client_mode = false;
  Duration min_refresh = 500ms, max_refresh = 10s, default_refresh = 3s;
  double expected_drift_peers = 3, expected_drift_rate = 0.2;
  Duration metadata_expiration = 60s;
};

/// The run as last seen.
struct GlobalProgress {
  std::uint64_t epoch = 0;
  double samples = 0;  ///< accumulated towards this epoch by all peers
  double samples_per_second = 0;
  std::size_t peers = 0, clients = 0;
  std::size_t expected = 0;  ///< of these, in the next round: see took_part
  double eta = 0;            ///< Unix seconds when the target will be reached
};

class ProgressTracker {
 public:
  ProgressTracker(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, TrackerOptions options);
  ~ProgressTracker();
  void start();
  /// Says goodbye: our record becomes null.
  Task<void> close();

  /// What this peer has accumulated in its current epoch.
  void report(std::uint64_t epoch, double samples);
  /// The epoch is over.
  void update_epoch(std::uint64_t epoch);
  /// The time since the last report went into something else than training, and does not count towards our speed.
  void restart_timer();
  /// The members of a round that has ended. Who was not among them is not expected in the next one until it reports
  /// again: what a peer reported before it vanished is kept for metadata_expiration.
  void took_part(const std::vector<PeerId>& members);
  /// Reads the DHT now.
  Task<void> refresh();
  /// Until the run is past `epoch`.
  Task<void> epoch_passed(std::uint64_t epoch);

  /// Any thread.
  GlobalProgress snapshot() const;
  Runtime& runtime() const { return runtime_; }

 private:
  static Task<void> report_loop(ProgressTracker& self);
  static Task<void> fetch_loop(ProgressTracker& self);
  Task<void> store_record();
  void publish();
  void fetch_soon();
  void set(const GlobalProgress& progress);
  double uptime() const { return to_seconds(runtime_.now().time_since_epoch()); }  // no matter who sets the clock

  Dht& dht_;
  Runtime& runtime_;
  std::shared_ptr<dht::RsaSignatureValidator> key_;
  TrackerOptions options_;
  PerformanceEma ema_;
  std::uint64_t epoch_ = 0;
  double samples_ = 0;
  std::optional<std::uint64_t> active_epoch_;  // of the run, when we last reported samples
  bool unpublished_ = false, fetch_now_ = false;
  Condition changed_, fetch_wanted_, seen_;
  TimePoint next_fetch_{};
  mutable std::mutex mutex_;
  GlobalProgress global_;
  std::unordered_map<PeerId, double> reports_, absent_;  // when they reported last, by their own clocks
  TaskGroup tasks_;
};

}  // namespace cohive::train
