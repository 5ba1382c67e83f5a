// Progress of a run, as its trainers tell it in the DHT.
#include "cohive/train/progress_tracker.hpp"

#include <atomic>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/core/names.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "swarm.hpp"

namespace cohive::c {
namespace {

constexpr Duration kGoodbyeTime = 5s;  // for the withdrawal of the record

std::atomic<std::uint64_t> next_tracker{std::uint64_t{1} << 63};  // beside the ids of averagers

train::TrackerOptions read_tracker_options(const char* text) {
  OptionReader reader(text);
  train::TrackerOptions options;
  reader.read("run_id", options.run_id);
  reader.read("target_batch_size", options.target_batch_size);
  reader.read("client_mode", options.client_mode);
  reader.read("min_refresh_period", options.min_refresh_period);
  reader.read("max_refresh_period", options.max_refresh_period);
  reader.read("default_refresh_period", options.default_refresh_period);
  reader.read("expected_drift_peers", options.expected_drift_peers);
  reader.read("expected_drift_rate", options.expected_drift_rate);
  reader.read("performance_ema_alpha", options.performance_ema_alpha);
  reader.read("metadata_expiration", options.metadata_expiration);
  reader.read("sharded_above", options.sharded_above);
  reader.finish();
  if (const auto fault = fault_of_name(options.run_id)) refuse("run_id " + *fault);
  if (!(options.target_batch_size >= 1)) refuse("target_batch_size must be at least 1");
  if (!(options.performance_ema_alpha > 0 && options.performance_ema_alpha <= 1))
    refuse("performance_ema_alpha must be above 0 and at most 1");
  if (options.min_refresh_period <= Duration::zero() || options.max_refresh_period < options.min_refresh_period)
    refuse("refresh periods must be above 0, and the longest one not below the shortest");
  return options;
}

std::string described(const train::ProgressTracker& tracker) {
  const auto seen = tracker.snapshot();
  return msgpack::encode(msgpack::Map{{{"epoch", seen.epoch},
                                       {"claimed", seen.claimed},
                                       {"samples", seen.samples},
                                       {"own_samples", seen.own_samples},
                                       {"samples_per_second", seen.samples_per_second},
                                       {"own_samples_per_second", tracker.own_samples_per_second()},
                                       {"peers", std::uint64_t{seen.peers}},
                                       {"clients", std::uint64_t{seen.clients}},
                                       {"eta", seen.eta}}});
}

/// \param tracker  null: it was dropped before
Task<Result<std::string>> close_tracker(std::shared_ptr<train::ProgressTracker> tracker) {
  if (!tracker) co_return Error(cohive::Errc::closed, "it was shut down");
  co_await tracker->close(tracker->runtime().after(kGoodbyeTime));
  co_return std::string("\xc0");  // nil
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;
using cohive::train::ProgressTracker;

struct cohive_tracker {
  std::shared_ptr<SwarmState> swarm;
  std::uint64_t id;
  Origin origin;
};

namespace cohive::c {
namespace {

/// Runs `body(tracker)` on the loop, and waits for it.
template <class F>
std::int32_t with_tracker(cohive_tracker* handle, F body) noexcept {
  return with_handle(handle, "tracker", [&] {
    handle->swarm->on_loop(
        [&](train::Membership&) { body(handle->swarm->object<train::ProgressTracker>(handle->id)); });
  });
}

}  // namespace
}  // namespace cohive::c

std::int32_t cohive_tracker_open(cohive_swarm* swarm, const char* options, cohive_tracker** tracker) {
  return with_swarm(swarm, [&](SwarmState& state) {
    there(tracker, "tracker") = nullptr;
    auto wanted = read_tracker_options(options);
    auto handle = std::make_unique<cohive_tracker>(swarm->state, next_tracker++, Origin());
    state.on_loop([&](cohive::train::Membership& membership) {
      auto made = std::make_shared<ProgressTracker>(*membership.dht, membership.key, std::move(wanted));
      made->start();
      state.keep(handle->id, std::move(made));
    });
    *tracker = handle.release();
  });
}

std::int32_t cohive_tracker_report(cohive_tracker* tracker, std::uint64_t epoch, double samples) {
  return with_tracker(tracker, [&](ProgressTracker& self) {
    if (!(samples >= 0) || !std::isfinite(samples)) refuse("samples must be finite and not negative");
    self.report(epoch, samples);
  });
}

std::int32_t cohive_tracker_enter(cohive_tracker* tracker, std::uint64_t epoch) {
  return with_tracker(tracker, [&](ProgressTracker& self) { self.update_epoch(epoch); });
}

std::int32_t cohive_tracker_resume(cohive_tracker* tracker) {
  return with_tracker(tracker, [&](ProgressTracker& self) { self.training_resumes(); });
}

std::int32_t cohive_tracker_snapshot(cohive_tracker* tracker, cohive_bytes* progress) {
  return with_tracker(tracker, [&](ProgressTracker& self) { give(progress, described(self)); });
}

std::int32_t cohive_tracker_close(cohive_tracker* tracker, cohive_ticket** closed) {
  return guarded([&] {
    there(closed, "closed") = nullptr;
    if (there(tracker, "tracker").origin.elsewhere()) return fail_elsewhere(tracker->origin);
    auto ticket = std::make_shared<Ticket>();
    tracker->swarm->begin(ticket, [swarm = tracker->swarm.get(), id = tracker->id](cohive::train::Membership&) {
      return close_tracker(swarm->take<ProgressTracker>(id));
    });
    *closed = handle_of(std::move(ticket));
    return static_cast<std::int32_t>(COHIVE_OK);
  });
}

void cohive_tracker_free(cohive_tracker* tracker) {
  if (!tracker || tracker->origin.elsewhere()) return;
  (void)guarded(
      [&] { tracker->swarm->on_loop([&](cohive::train::Membership&) { tracker->swarm->drop(tracker->id); }); });
  delete tracker;
}
