#include "run_status.hpp"

#include <algorithm>

#include "json_number.hpp"

namespace cohive::train {
namespace {

using Json = nlohmann::json;

constexpr double kFarthestEnd = 7 * 86400;  // seconds: what is further is an end that cannot be foreseen

}  // namespace

RunStatus::RunStatus(RunContext& run, std::shared_ptr<dht::RsaSignatureValidator> key) : run_(run) {
  if (run.options.share_loss) record_.emplace(run.dht, std::move(key), run.options.run_id, run.tasks);
}

void RunStatus::start() {
  run_.metrics.target_samples.set(run_.target());
  shown_ = Status::of(run_.runtime).add_to_list("runs", [this] { return json(); });
}

void RunStatus::add_samples(double samples) {
  run_.metrics.samples.increment(samples);
  if (record_) record_->add_samples(samples);
}
void RunStatus::forget_samples() {
  if (record_) record_->forget_samples();
}
void RunStatus::report_loss(double loss) {
  TrainMetrics::loss(run_.run_metrics).set(loss);
  loss_ = loss;
  if (record_) record_->add_loss(loss);
}

void RunStatus::epoch_entered(std::uint64_t epoch) {
  run_.metrics.epoch.set(static_cast<double>(epoch));
  if (epoch == 0) return;
  const GlobalProgress global = run_.tracker.snapshot();
  if (record_ && !run_.ended) record_->publish(epoch, run_.tracker.own_samples_per_second(), global.peers);
  run_.metrics.epoch_seconds.observe(run_.history.epoch_ended(
      {epoch - 1, global.samples, global.samples_per_second, loss_, global.peers, run_.wait_clock.total()}));
}

std::string RunStatus::json() const {
  const GlobalProgress global = run_.tracker.snapshot();
  const double left = std::max(0.0, global.eta - run_.runtime.wall_time());
  Json run{{"run_id", run_.options.run_id},
           {"mode", run_.options.auxiliary     ? "auxiliary"
                    : run_.options.client_mode ? "client"
                                               : "node"},
           {"epoch", run_.counts.epoch()},
           {"global_epoch", global.epoch},
           {"samples", finite(global.samples)},
           {"own_samples", finite(global.own_samples)},
           {"target_samples", static_cast<std::int64_t>(run_.target())},
           {"samples_per_second", finite(global.samples_per_second)},
           {"eta_seconds", left < kFarthestEnd ? finite(left) : Json()},
           {"peers", global.peers},
           {"clients", global.clients},
           {"loss", finite(loss_)}};
  auto waits = Json::object();
  const auto& seconds = run_.wait_clock.seconds();
  for (std::size_t i = 0; i < kWaits.size(); ++i)
    if (seconds[i] > 0) waits[kWaits[i]] = seconds[i];
  run["wait_seconds"] = std::move(waits);
  const TrainingStats stats = run_.counts.stats();
  if (run_.fit && !run_.fit->told().empty()) run["link_fit"] = run_.fit->told();
  run["gradient_rounds"] = stats.grad_rounds;
  run["gradient_rounds_failed"] = stats.grad_rounds_failed;
  run["parameter_rounds"] = stats.state_rounds;
  run["parameter_rounds_failed"] = stats.state_rounds_failed;
  run["state_downloads"] = stats.state_downloads;
  run["bytes_sent"] = stats.bytes_sent;
  run["bytes_received"] = stats.bytes_received;
  std::string text = run.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.pop_back();
  return text + ",\"rounds\":" + run_.history.rounds() + ",\"epochs\":" + run_.history.epochs() + "}";
}

}  // namespace cohive::train
