#include "cohive/train/run.hpp"

#include "checkpoint_content.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "exchanges/exchanges.hpp"
#include "run_impl.hpp"

namespace cohive::train {
namespace {

averaging::StateSharingOptions state_sharing_options(const RunOptions& options) {
  averaging::StateSharingOptions result;
  result.prefix = options.run_id + "_state_averager";
  result.class_name = "TrainingStateAverager";
  result.codec = options.load_state_compression;
  result.share = !options.client_mode && !options.auxiliary;
  return result;
}

TrackerOptions tracker_options(const RunOptions& options) {
  TrackerOptions result = options.tracker_options;
  result.run_id = options.run_id;
  result.target_batch_size = static_cast<double>(options.target_batch_size);
  result.client_mode = options.client_mode;
  result.performance_ema_alpha = options.performance_ema_alpha;
  return result;
}

std::vector<std::unique_ptr<Scheduled>> schedule(Dht& dht, Replica& replica, const RunOptions& options) {
  std::vector<std::unique_ptr<Scheduled>> scheduled;
  for (auto& exchange : make_exchanges({dht, replica, options}))
    scheduled.push_back(std::make_unique<Scheduled>(std::move(exchange)));
  return scheduled;
}

const RunOptions& checked(const RunOptions& options) {
  check(options);
  return options;
}

}  // namespace

Run::Impl::Impl(Dht& d, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& r, RunOptions opts)
    : dht(d),
      runtime(d.runtime()),
      replica(r),
      options(checked(opts)),
      metrics(runtime.metrics()),
      wait_clock(runtime),
      history(runtime),
      tracker(d, key, tracker_options(options)),
      exchanges(schedule(d, r, options)),
      kept(exchanges),
      model(runtime, r),
      saving(runtime, "a checkpoint"),
      checkpoint_time(runtime.now()),
      retry(kFirstRetry),
      reports(d.host(), options.run_id, averaging::schema_hash(r.state_infos()), history),
      sharing(d, state_sharing_options(options)),
      tasks(runtime, "training run") {
  model.complete_with([this](averaging::SharedState& state) { return kept.append(runtime, state); });
  if (options.share_loss) metrics_record.emplace(d, std::move(key), options.run_id, tasks);
  check_names(options.checkpoints.parameter_names, replica.gradient_infos().size());
  if (options.delay_optimizer_step && !replica.can_step_beside())
    throw std::invalid_argument(
        "cohive: delay_optimizer_step makes the next parameters beside the live ones, which this optimizer changes: "
        "leave it and delay_grad_averaging out");
}

void Run::Impl::start() {
  joined = options.auxiliary;
  tasks.spawn(SharedModel::give_up_idle_copies(model), "idle copies of the state");
  tasks.spawn(prove_claims(*this), "claims of others");
  tasks.spawn(compare_with_founders(*this), "parameters of other founders");
  tasks.spawn(watch_progress(*this), "when to look for a group");
  tasks.spawn(watch_clients(*this), "trainers that are all clients");
  if (auto* const step = of_step()) tasks.spawn(watch_members(*this, *step), "members that wait for gradients");
  metrics.target_samples.set(static_cast<double>(options.target_batch_size));
  status = Status::of(runtime).add_to_list("runs", [this] { return status_json(); });
  tracker.start();
  for (const auto& scheduled : exchanges) scheduled->exchange().start();
  sharing.start();
}

/// The trainer's thread must not exchange the parameters meanwhile.
Task<std::optional<averaging::SharedState>> Run::Impl::copy_state(Duration timeout, SharedModel::Beside beside) {
  const auto held = co_await gate.hold(runtime);
  co_return co_await model.copy(runtime.after(timeout), std::move(beside));
}

// ---- The trainer's face

Run::Next Run::Impl::count(std::int64_t batch) {
  const GlobalProgress global = tracker.snapshot();
  if (metrics_record) metrics_record->add_samples(static_cast<double>(batch));
  bool post = false;
  {
    const std::lock_guard lock(mutex);
    counted.samples += static_cast<double>(batch);
    ++counted.batches;
    if (demanded || ready(global)) return Next::synchronise;
    post = !std::exchange(progress_posted, true);
  }
  if (post)
    runtime.post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->note_progress();
    });
  return Next::go_on;
}

/// Under the mutex, or on the loop's thread while the trainer waits.
bool Run::Impl::ready(const GlobalProgress& global) const {
  if (global.epoch > local_epoch) return true;
  const double all = global.samples - global.own_samples + counted.samples;
  // Nobody waits for a trainer whose samples are the only ones of this epoch, and those are counted.
  const bool is_due = global.others_train && runtime.wall_time() >= global.eta;
  return all >= static_cast<double>(options.target_batch_size) || is_due;
}

std::optional<StepReport> Run::Impl::publish() {
  const auto publication = gate.publish();
  if (!publication) return std::nullopt;
  replica.publish();
  return publication->report();
}

// ---- Leaving

Task<std::size_t> Run::Impl::finish() {
  (void)co_await catch_up_if_behind();  // a peer that missed the last epoch must not pull the other ones back
  StepReport last;
  (void)co_await finish_update(last);
  ended = true;
  // Peers that are about to average their gradients need not wait for ours.
  if (auto* const step = of_step()) {
    step->give_up();
    co_await step->averager().leave(runtime.after(options.shutdown_timeout));
  }
  (void)co_await within(runtime, runtime.after(options.shutdown_timeout), tracker.refresh(), "a last look at the run");
  const std::size_t expected = tracker.snapshot().expected;
  // Trainers that have just said goodbye may be looking for their last group still.
  const bool in_company = tracker.in_company(options.matchmaking_time);
  // One that is behind hears from our report that it is, and is waited for.
  if (!tracker.someone_is_behind()) co_await tracker.withdraw(runtime.after(options.shutdown_timeout));
  if (!in_company) {
    co_await abandon_rounds();
    co_return 0;
  }
  const Duration timeout = expected > 1 ? options.averaging_timeout : options.matchmaking_time;
  const std::size_t group = co_await average_parameters(expected, options.averaging_timeout, timeout);
  co_await tracker.close(runtime.after(options.shutdown_timeout));
  co_return group;
}

Task<void> Run::Impl::close() {
  const Deadline limit = runtime.after(options.shutdown_timeout);
  ended = true;
  // Beside the rest: a swarm that cannot be reached takes all of the time and the rounds still end in order.
  Nursery goodbye(runtime, "goodbye");
  goodbye.spawn(tracker.close(limit), "withdraw the report");
  (void)co_await within(runtime, limit, abandon_rounds(), "rounds to be left");
  for (const auto& scheduled : exchanges) co_await scheduled->averager().drain(limit);
  for (const auto& scheduled : exchanges) co_await scheduled->averager().leave(limit);
  (void)co_await saving.lock(limit);  // a checkpoint that is being written
  co_await goodbye.join();
  tasks.cancel();
}

// ---- Run

Run::Run(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& replica, RunOptions options)
    : impl_(std::make_shared<Impl>(dht, std::move(key), replica, std::move(options))) {}
Run::~Run() {
  impl_->status.reset();
  impl_->tasks.cancel();
}

Task<Result<>> Run::open_checkpoints() {
  return impl_->open_checkpoints();
}
void Run::start() {
  impl_->start();
}
Run::Next Run::count(std::int64_t samples) {
  return impl_->count(samples);
}
std::optional<StepReport> Run::publish() {
  return impl_->publish();
}

std::uint64_t Run::epoch() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->local_epoch;
}

GlobalProgress Run::progress() const {
  return impl_->tracker.snapshot();
}

TrainingStats Run::stats() const {
  const GlobalProgress global = impl_->tracker.snapshot();
  const std::lock_guard lock(impl_->mutex);
  TrainingStats stats = impl_->counters;
  stats.epoch = impl_->local_epoch;
  stats.global_samples = global.samples;
  stats.samples_per_second = global.samples_per_second;
  stats.peers = global.peers;
  return stats;
}

void Run::report_loss(double loss) {
  impl_->metrics.loss.set(loss);
  impl_->loss_reported = true;
  if (impl_->metrics_record) impl_->metrics_record->add_loss(loss);
}

void Run::forget_samples() {
  if (impl_->metrics_record) impl_->metrics_record->forget_samples();
  const std::lock_guard lock(impl_->mutex);
  impl_->counted = {};
}

Task<StepReport> Run::settle() {
  StepReport report;
  (void)co_await impl_->finish_update(report);
  co_return report;
}
Task<void> Run::restore(std::uint64_t epoch, std::function<void()> write) {
  return impl_->restore(epoch, std::move(write));
}

void Run::checkpoint_if_due() {
  impl_->checkpoint_if_due();
}

checkpoint::Metadata Run::loaded_strings() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->loaded;
}

Task<StepReport> Run::synchronise() {
  return impl_->synchronise();
}

Task<StepReport> Run::step(std::int64_t samples) {
  StepReport report = publish().value_or(StepReport());
  if (count(samples) == Next::synchronise) {
    const StepReport published = report;
    report = co_await synchronise();
    report.include(published);
  }
  report.epoch = epoch();
  checkpoint_if_due();
  co_return report;
}

Task<bool> Run::catch_up() {
  return impl_->catch_up_if_behind();
}
Task<std::size_t> Run::average_parameters() {
  // Peers that average need not train: a group is looked for even where none is known.
  const std::size_t expected = impl_->tracker.snapshot().expected;
  const Duration most = impl_->options.matchmaking_time * 3;
  const Duration limit = std::min<Duration>(impl_->options.averaging_timeout, most);
  return impl_->average_parameters(expected, limit, limit);
}
Task<Result<std::filesystem::path>> Run::checkpoint_now() {
  return impl_->write_checkpoint(impl_->own_strings(), impl_->options.averaging_timeout);
}
Task<Result<>> Run::save_checkpoint(std::filesystem::path path) {
  return impl_->save_checkpoint(std::move(path));
}
Task<Result<std::uint64_t>> Run::load_checkpoint(std::filesystem::path path) {
  return impl_->load_checkpoint(std::move(path));
}
Task<std::size_t> Run::finish() {
  return impl_->finish();
}
Task<void> Run::close() {
  return impl_->close();
}
Runtime& Run::runtime() const noexcept {
  return impl_->runtime;
}

}  // namespace cohive::train
