// What a run tells in the status of its process: an element of "runs".
#include "json_number.hpp"
#include "run_impl.hpp"

namespace cohive::train {
namespace {

using nlohmann::json;

constexpr double kFarthestEnd = 7 * 86400;  // seconds: what is further is an end that cannot be foreseen

}  // namespace

std::string Run::Impl::status_json() const {
  const GlobalProgress global = tracker.snapshot();
  const double left = std::max(0.0, global.eta - runtime.wall_time());
  json run{{"run_id", options.run_id},
           {"mode", options.auxiliary     ? "auxiliary"
                    : options.client_mode ? "client"
                                          : "node"},
           {"epoch", local_epoch},
           {"global_epoch", global.epoch},
           {"samples", finite(global.samples)},
           {"own_samples", finite(global.own_samples)},
           {"target_samples", options.target_batch_size},
           {"samples_per_second", finite(global.samples_per_second)},
           {"eta_seconds", left < kFarthestEnd ? finite(left) : json()},
           {"peers", global.peers},
           {"clients", global.clients},
           {"loss", finite(last_loss())}};
  auto waits = json::object();
  for (std::size_t i = 0; i < kWaits.size(); ++i)
    if (wait_clock.seconds()[i] > 0) waits[kWaits[i]] = wait_clock.seconds()[i];
  run["wait_seconds"] = std::move(waits);
  {
    const std::lock_guard lock(mutex);
    run["gradient_rounds"] = counters.grad_rounds;
    run["gradient_rounds_failed"] = counters.grad_rounds_failed;
    run["parameter_rounds"] = counters.state_rounds;
    run["parameter_rounds_failed"] = counters.state_rounds_failed;
    run["state_downloads"] = counters.state_downloads;
    run["bytes_sent"] = counters.bytes_sent;
    run["bytes_received"] = counters.bytes_received;
  }
  std::string text = run.dump(-1, ' ', false, json::error_handler_t::replace);
  text.pop_back();
  return text + ",\"rounds\":" + history.rounds() + ",\"epochs\":" + history.epochs() + "}";
}

double Run::Impl::last_loss() const {
  return loss_reported ? metrics.loss.value() : std::nan("");
}

/// In metrics and in the history, when this peer enters an epoch.
void Run::Impl::note_epoch(std::uint64_t entered) {
  metrics.epoch.set(static_cast<double>(entered));
  if (entered == 0) return;
  if (metrics_record && !ended) metrics_record->publish(entered, tracker.own_samples_per_second());
  const GlobalProgress global = tracker.snapshot();
  metrics.epoch_seconds.observe(history.epoch_ended(
      {entered - 1, global.samples, global.samples_per_second, last_loss(), global.peers, wait_clock.total()}));
}

}  // namespace cohive::train
