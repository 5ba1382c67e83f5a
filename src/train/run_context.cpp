#include "run_context.hpp"

#include <algorithm>
#include <stdexcept>

#include "checkpoint_content.hpp"
#include "exchanges/exchanges.hpp"

namespace cohive::train {
namespace {

averaging::StateSharingOptions state_sharing_options(const RunOptions& options) {
  averaging::StateSharingOptions result;
  result.prefix = options.run_id + "_state_averager";
  result.class_name = "TrainingStateAverager";
  result.codec = options.load_state_compression;
  result.share = options.share_state && !options.client_mode && !options.auxiliary;
  return result;
}

TrackerOptions tracker_options(const RunOptions& options) {
  TrackerOptions result = options.tracker_options;
  result.run_id = options.run_id;
  result.target_batch_size = static_cast<double>(options.target_batch_size);
  result.client_mode = options.client_mode;
  result.auxiliary = options.auxiliary;
  result.performance_ema_alpha = options.performance_ema_alpha;
  return result;
}

std::vector<std::unique_ptr<Scheduled>> schedule(const ExchangeContext& context, const std::shared_ptr<LinkFit>& fit) {
  std::vector<std::unique_ptr<Scheduled>> scheduled;
  for (auto& exchange : make_exchanges(context, fit))
    scheduled.push_back(std::make_unique<Scheduled>(std::move(exchange)));
  return scheduled;
}

const RunOptions& checked(const RunOptions& options, const Replica& replica) {
  check(options);
  check_names(options.checkpoints.parameter_names, replica.gradient_infos().size());
  if (options.delay_optimizer_step && !replica.can_step_beside())
    throw std::invalid_argument(
        "cohive: delay_optimizer_step makes the next parameters beside the live ones, which this optimizer changes: "
        "leave it and delay_grad_averaging out");
  return options;
}

}  // namespace

RunContext::RunContext(Dht& d, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& r, const RunOptions& given)
    : dht(d),
      runtime(d.runtime()),
      replica(r),
      options(checked(given, r)),
      run_metrics(runtime.metrics(), options.run_id),
      metrics(run_metrics),
      wait_clock(runtime, run_metrics),
      history(runtime, run_metrics),
      tracker(d, std::move(key), tracker_options(options)),
      fit(options.outer_optimizer ? std::make_shared<LinkFit>(options) : nullptr),
      exchanges(schedule({d, r, options}, fit)),
      kept(exchanges),
      model(runtime, r, options.use_local_updates),
      sharing(d, state_sharing_options(options)),
      tasks(runtime, "training run") {
  model.complete_with([this](averaging::SharedState& state) { return complete(state); });
}

Task<void> RunContext::complete(averaging::SharedState& state) const {
  for (const auto& scheduled : exchanges) co_await scheduled->exchange().complete(state);
  co_await kept.append(runtime, state);
}

Task<std::optional<averaging::SharedState>> RunContext::copy_state(Duration patience, SharedModel::Beside beside) {
  const auto held = co_await gate.hold(runtime);
  co_return co_await model.copy(runtime.after(patience), std::move(beside));
}

void RunContext::follow_target() {
  if (!fit) return;
  tracker.set_target(fit->target());
  metrics.target_samples.set(fit->target());
  counts.note([this](TrainingStats& stats) {
    if (stats.rounds != fit->told()) stats.rounds = fit->told();
  });
}

Scheduled* RunContext::of_step() const {
  const auto found =
      std::ranges::find_if(exchanges, [](const auto& scheduled) { return scheduled->exchange().makes_step(); });
  return found == exchanges.end() ? nullptr : found->get();
}

Scheduled* RunContext::of_parameters() const {
  const auto found =
      std::ranges::find_if(exchanges, [](const auto& scheduled) { return scheduled->exchange().yields_parameters(); });
  return found == exchanges.end() ? nullptr : found->get();
}

}  // namespace cohive::train
