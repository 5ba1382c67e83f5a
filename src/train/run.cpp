#include "cohive/train/run.hpp"

#include <algorithm>
#include <ranges>

#include "all_clients.hpp"
#include "checkpoints.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/trace.hpp"
#include "run_report.hpp"

namespace cohive::train {
namespace {

constexpr double kLongestLead = 3600;  // seconds; ends that cannot be foreseen are far away

}  // namespace

/// The trainer's face of a run.
struct Run::Impl : std::enable_shared_from_this<Run::Impl> {
  Impl(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& replica, const RunOptions& options);

  void start();
  static Task<void> watch_progress(Impl& self);
  Next count(std::int64_t batch);
  bool ready(const GlobalProgress& global) const;
  std::optional<StepReport> publish();
  Task<StepReport> synchronise();
  Task<void> synchronise(StepReport& report);
  void checkpoint_if_due();
  Task<std::size_t> average_parameters(std::size_t expected, Duration timeout, Duration patience);
  Task<std::size_t> finish();
  Task<void> close();

  const std::shared_ptr<RunContext> context;
  RunContext& run = *context;
  RunReports reports;
  RunStatus status;
  RunRounds rounds{run};
  Epochs epochs{run, rounds, status};
  CatchingUp catching_up{run, rounds, epochs};
  Checkpoints checkpoints{run, rounds, epochs, catching_up};
};

Run::Impl::Impl(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& replica, const RunOptions& options)
    : context(std::make_shared<RunContext>(dht, key, replica, options)),
      reports(dht.host(), options.run_id, averaging::schema_hash(replica.state_infos()), run.history),
      status(run, std::move(key)) {}

void Run::Impl::start() {
  run.tasks.spawn(SharedModel::give_up_idle_copies(run.model), "idle copies of the state");
  catching_up.start();
  run.tasks.spawn(watch_progress(*this), "when to look for a group");
  run.tasks.spawn(watch_for_all_clients(run), "trainers that are all clients");
  rounds.start();
  status.start();
  run.tracker.start();
  for (const auto& scheduled : run.exchanges) {
    run.history.count_failures_of(scheduled->exchange().name());
    scheduled->exchange().start();
  }
  run.sharing.start();
}

/// Peers find each other when all of them look at the same time: not only after a batch, which may take seconds.
Task<void> Run::Impl::watch_progress(Impl& self) {
  RunContext& run = self.run;
  for (;;) {
    const GlobalProgress global = run.tracker.snapshot();
    const double lead = global.eta - run.runtime.wall_time() - to_seconds(self.rounds.search_time(global));
    const Deadline begin = lead > 0 ? run.runtime.after(from_seconds(std::min(lead, kLongestLead))) : Deadline::never();
    co_await run.tracker.news(begin);
    run.wait_clock.charge();
    if (!self.catching_up.joined()) self.catching_up.begin_or_join();
    self.rounds.expect_members();
    const bool is_behind = !run.options.auxiliary && run.tracker.snapshot().epoch > run.counts.epoch();
    if (run.ended || is_behind) continue;
    if (self.epochs.trains()) self.epochs.consider_rounds();
  }
}

// ---- Between batches

Run::Next Run::Impl::count(std::int64_t batch) {
  const GlobalProgress global = run.tracker.snapshot();
  status.add_samples(static_cast<double>(batch));
  run.counts.add_batch(static_cast<double>(batch), run.runtime.now());
  if (run.fit) run.fit->count(static_cast<double>(batch));
  if (run.counts.demanded() || ready(global)) return Next::synchronise;
  if (run.counts.tells_loop())
    run.runtime.post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->epochs.note_progress();
    });
  return Next::go_on;
}

/// Tells whether the epoch is to end, or has ended without this peer. Any thread.
bool Run::Impl::ready(const GlobalProgress& global) const {
  if (global.epoch > run.counts.epoch() || run.counts.awaited()) return true;
  const double all = global.samples - global.own_samples + run.counts.counted().samples;
  // Nobody waits for a trainer whose samples are the only ones of this epoch, and those are counted.
  const bool is_due = global.others_train && run.runtime.wall_time() >= global.eta;
  return all >= run.target() || is_due;
}

std::optional<StepReport> Run::Impl::publish() {
  const auto publication = run.gate.publish();
  if (!publication) return std::nullopt;
  run.replica.publish();
  return publication->report();
}

Task<StepReport> Run::Impl::synchronise() {
  const TimePoint begin = run.runtime.now();
  const TraceSpan span(run.runtime, "train", "trainer waits");
  const WaitClock::Waiting waiting(run.wait_clock, Wait::progress);
  StepReport report;
  co_await synchronise(report);
  report.epoch = run.counts.epoch();
  const double seconds = to_seconds(run.runtime.now() - begin);
  run.counts.note([seconds](TrainingStats& stats) { stats.seconds_synchronised += seconds; });
  run.counts.waited(run.runtime.now());
  co_return report;
}

Task<void> Run::Impl::synchronise(StepReport& report) {
  // Other trainers may be there, though nothing is known of them yet: an epoch that ended without them would send them
  // all to a download.
  if (!run.tracker.looked()) co_await run.tracker.refresh();
  epochs.note_progress();
  const bool missed = !co_await epochs.settle(report);
  const GlobalProgress global = run.tracker.snapshot();
  run.counts.demand_met();
  if (!catching_up.joined()) report.loaded_state = co_await catching_up.join();
  if (!catching_up.joined()) co_return;
  if (co_await catching_up.go_on_from_followed()) report.loaded_state = true;
  bool behind = missed || catching_up.is_behind(global);
  if (!behind && !report.loaded_state && ready(global)) behind = !co_await epochs.end(report);
  if (behind) report.loaded_state = co_await catching_up.catch_up();
  if (!report.loaded_state || run.ended) co_return;
  epochs.note_caught_up();
  epochs.consider_rounds();  // the next batch may be too late for a group that this peer is waited for in
}

void Run::Impl::checkpoint_if_due() {
  if (!checkpoints.begin_due()) return;
  auto not_begun = on_exit([this] { checkpoints.end_in_background(); });  // the program's strings may throw
  run.runtime.post([weak = weak_from_this(), strings = checkpoints.own_strings()] {
    if (const auto self = weak.lock())
      self->run.tasks.spawn(Checkpoints::write_in_background(self->checkpoints, strings), "a checkpoint");
  });
  not_begun.cancel();
}

/// \param expected  how many peers average, as far as is known; below 2: peers may, of which nothing is known
/// \param timeout   for the round
/// \param patience  for its group
Task<std::size_t> Run::Impl::average_parameters(std::size_t expected, Duration timeout, Duration patience) {
  StepReport ignored;
  (void)co_await epochs.settle(ignored);
  const RunRounds::Suspended suspended(rounds);
  const auto* const step = run.of_step();
  const bool gives_batches_up = step && step->has_group();
  co_await rounds.abandon();
  if (gives_batches_up) {
    co_await epochs.drop_batches();
    run.tracker.report(run.counts.epoch(), 0);
  }
  const auto of_model = [](const auto& one) { return one->exchange().takes_place_beside_epochs(); };
  for (const auto& scheduled : run.exchanges | std::views::filter(of_model))
    rounds.begin(*scheduled, run.counts.epoch(), expected < 2 ? 0 : expected, timeout);
  Search search{.patience = patience};
  if (run.ended) search.epoch = run.counts.epoch() + 1;  // peers that are beyond that go on
  std::size_t group = 0;
  bool behind = false;
  for (const auto& scheduled : run.exchanges | std::views::filter(of_model)) {
    const Exchanged done = co_await rounds.exchange(*scheduled, {Occasion::extra, run.counts.epoch()}, search);
    group = std::max(group, done.group());
    behind = behind || done.effect == Effect::behind;
    if (!done.round) search.patience = 0s;  // who is not there for one is there for none
    // Those that stop together end together, also where one has missed the last epoch: it is then behind most others.
    if (run.ended && done.round && scheduled->exchange().yields_parameters())
      (void)co_await catching_up.take_epoch_of(done, (done.round->group.size() - 1) / 2 + 1);
  }
  if (behind && !run.ended) (void)co_await catching_up.catch_up();
  co_return group;
}

// ---- Leaving

Task<std::size_t> Run::Impl::finish() {
  (void)co_await catching_up
      .catch_up_if_behind();  // a peer that missed the last epoch must not pull the other ones back
  StepReport last;
  (void)co_await epochs.settle(last);
  run.ended = true;
  // Peers that are about to average their gradients need not wait for ours. Some of them may be asleep.
  Nursery goodbye(run.runtime, "goodbye");
  if (auto* const step = run.of_step()) {
    step->give_up();
    goodbye.spawn(step->averager().leave(run.runtime.after(run.options.shutdown_timeout)), "leave the gradients");
  }
  (void)co_await within(run.runtime, run.runtime.after(run.options.shutdown_timeout), run.tracker.refresh(),
                        "a last look at the run");
  const std::size_t expected = run.tracker.snapshot().expected;
  // Trainers that have said goodbye look for their last group for as long: an epoch that this one ended alone took
  // time.
  const bool in_company = run.tracker.in_company(run.options.averaging_timeout);
  // One that is behind hears from our report that it is, and is waited for.
  if (!run.tracker.someone_is_behind()) co_await run.tracker.withdraw(run.runtime.after(run.options.shutdown_timeout));
  if (!in_company) {
    co_await rounds.abandon();
    co_await goodbye.join();
    co_return 0;
  }
  // Whoever leads waits for others for a search's time, where it does not know how many to expect.
  const Duration patience = expected > 1 ? run.options.averaging_timeout : run.options.matchmaking_time * 2;
  const std::size_t group = co_await average_parameters(expected, run.options.averaging_timeout, patience);
  co_await run.tracker.close(run.runtime.after(run.options.shutdown_timeout));
  co_await goodbye.join();
  co_return group;
}

Task<void> Run::Impl::close() {
  const Deadline limit = run.runtime.after(run.options.shutdown_timeout);
  run.ended = true;
  run.metrics.peers.set(0);  // alerts see by it that this run does not stand still, but has ended here
  // Beside the rest: a swarm that cannot be reached takes all of the time and the rounds still end in order.
  Nursery goodbye(run.runtime, "goodbye");
  goodbye.spawn(run.tracker.close(limit), "withdraw the report");
  try {
    (void)co_await within(run.runtime, limit, rounds.abandon(), "rounds to be left");
  } catch (const std::exception& error) {  // of the model: the others of a group do without its share
    log::error("train", "leaving rounds that had begun failed: {}", log::quoted(error.what()));
  }
  for (const auto& scheduled : run.exchanges) co_await scheduled->averager().drain(limit);
  for (const auto& scheduled : run.exchanges) goodbye.spawn(scheduled->averager().leave(limit), "leave");
  co_await checkpoints.drain(limit);
  co_await goodbye.join();
  run.tasks.cancel();
}

// ---- Run

Run::Run(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& replica, RunOptions options)
    : impl_(std::make_shared<Impl>(dht, std::move(key), replica, std::move(options))) {}
Run::~Run() {
  impl_->status.stop();
  impl_->run.tasks.cancel();
}

Task<Result<>> Run::open_checkpoints() {
  return impl_->checkpoints.open();
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
  return impl_->run.counts.epoch();
}

GlobalProgress Run::progress() const {
  return impl_->run.tracker.snapshot();
}

TrainingStats Run::stats() const {
  const GlobalProgress global = impl_->run.tracker.snapshot();
  TrainingStats stats = impl_->run.counts.stats();
  stats.epoch = epoch();
  stats.global_samples = global.samples;
  stats.samples_per_second = global.samples_per_second;
  stats.peers = global.peers;
  stats.target_samples = impl_->run.target();
  return stats;
}

void Run::report_loss(double loss) {
  impl_->status.report_loss(loss);
}

void Run::forget_samples() {
  impl_->status.forget_samples();
  (void)impl_->run.counts.take();
}

Task<StepReport> Run::settle() {
  StepReport report;
  (void)co_await impl_->epochs.settle(report);
  co_return report;
}
Task<void> Run::restore(std::uint64_t epoch, std::function<void()> write) {
  return impl_->catching_up.restore(epoch, std::move(write));
}

void Run::checkpoint_if_due() {
  impl_->checkpoint_if_due();
}

checkpoint::Metadata Run::loaded_strings() const {
  return impl_->checkpoints.loaded_strings();
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
  const bool loaded = co_await impl_->catching_up.catch_up_if_behind();
  impl_->run.counts.waited(impl_->run.runtime.now());
  co_return loaded;
}
Task<std::size_t> Run::average_parameters() {
  // Peers that average need not train: a group is looked for even where none is known.
  const std::size_t expected = impl_->run.tracker.snapshot().expected;
  const Duration most = impl_->run.options.matchmaking_time * 3;
  const Duration limit = std::min<Duration>(impl_->run.options.averaging_timeout, most);
  return impl_->average_parameters(expected, limit, limit);
}
Task<Result<std::filesystem::path>> Run::checkpoint_now() {
  return impl_->checkpoints.write(impl_->checkpoints.own_strings(), impl_->run.options.averaging_timeout);
}
Task<Result<>> Run::save_checkpoint(std::filesystem::path path) {
  return impl_->checkpoints.save(std::move(path));
}
Task<Result<std::uint64_t>> Run::load_checkpoint(std::filesystem::path path) {
  return impl_->checkpoints.load(std::move(path));
}
Task<std::size_t> Run::finish() {
  return impl_->finish();
}
Task<void> Run::close() {
  return impl_->close();
}
Runtime& Run::runtime() const noexcept {
  return impl_->run.runtime;
}

}  // namespace cohive::train
