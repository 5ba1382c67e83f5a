// The end of an epoch.
//   gradients of the group, weighted by samples > optimizer step > now and then the parameters of the group
// or whatever else the run exchanges, in the order of its list.
// All of it is one coroutine. The trainer goes on after it, or before the part of it that the options delay.
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/trace.hpp"
#include "run_impl.hpp"

namespace cohive::train {

Task<StepReport> Run::Impl::synchronise() {
  const TimePoint begin = runtime.now();
  const TraceSpan span(runtime, "train", "trainer waits");
  const WaitClock::Waiting waiting(wait_clock, Wait::progress);
  StepReport report;
  // Other trainers may be there, though nothing is known of them yet: an epoch that ended without them would send them
  // all to a download.
  if (!tracker.looked()) co_await tracker.refresh();
  note_progress();
  const bool missed = co_await finish_update(report);
  const GlobalProgress global = tracker.snapshot();
  {
    const std::lock_guard lock(mutex);
    demanded = false;
  }
  if (!joined) report.loaded_state = co_await join();
  if (joined && (missed || proof || out_of_sync(global)))
    report.loaded_state = co_await catch_up();
  else if (joined && !report.loaded_state && ready(global))
    co_await end_epoch(report);
  if (report.loaded_state && !ended) {
    caught_up = true;
    consider_rounds();  // the next batch may be too late for a group that this peer is waited for in
  }
  report.epoch = local_epoch;
  const std::lock_guard lock(mutex);
  counters.seconds_synchronised += to_seconds(runtime.now() - begin);
  co_return report;
}

/// Tells the swarm what the trainer has counted, and looks whether it is time to find a group.
void Run::Impl::note_progress() {
  double own = 0;
  {
    const std::lock_guard lock(mutex);
    progress_posted = false;
    own = counted.samples;
  }
  if (ended) return;
  tracker.report(local_epoch, own);
  const GlobalProgress global = tracker.snapshot();
  metrics.global_epoch.set(static_cast<double>(global.epoch));
  metrics.peers.set(static_cast<double>(global.peers));
  metrics.global_rate.set(global.samples_per_second);
  consider_rounds();
}

Counted Run::Impl::take_batches() {
  caught_up = false;
  const std::lock_guard lock(mutex);
  return std::exchange(counted, {});
}

Task<void> Run::Impl::end_epoch(StepReport& report) {
  const GlobalProgress global = tracker.snapshot();
  begin_rounds(global);
  for (const auto& scheduled : exchanges)
    if (scheduled->round()) co_await scheduled->exchange().hold();
  const auto current = std::make_shared<Update>(runtime, std::max(local_epoch + 1, global.epoch), take_batches());
  const auto* const step = of_step();
  current->late = global.epoch > local_epoch && !(step && step->has_group());
  update = current;
  replica.cut_gradients();
  tasks.spawn(advance(*this, current), "end of an epoch");
  co_await current->released.wait();
  if (current->failure) std::rethrow_exception(std::exchange(current->failure, nullptr));
  if (current->missed) {
    update.reset();
    report.loaded_state = co_await catch_up();
    co_return;
  }
  report.epoch_changed = true;
  // What is delayed is told when it is done.
  report.grad_group = std::exchange(current->report.grad_group, 0);
  report.state_group = std::exchange(current->report.state_group, 0);
  report.bytes_sent += std::exchange(current->report.bytes_sent, 0);
}

/// Waits for what the last epoch has left to do, and publishes it. True when the other peers did it without us.
Task<bool> Run::Impl::finish_update(StepReport& report) {
  if (!update) co_return false;
  const auto last = update;  // until it is done no round may begin
  if (!last->done.is_set()) wait_clock.turn_to(Wait::delayed_work);
  co_await last->done.wait();
  if (update == last) update.reset();
  if (auto publication = co_await gate.publish(runtime)) {
    report = publication->report();
    // All parameters of some models are copied: not on the loop.
    const auto right = std::make_shared<ParameterGate::Publication>(std::move(*publication));
    co_await runtime.offload([self = shared_from_this(), used = replica.in_use(), right] { self->replica.publish(); });
  }
  // A step that was made before something else failed is not lost.
  if (last->failure) std::rethrow_exception(std::exchange(last->failure, nullptr));
  co_return last->missed;
}

Task<void> Run::Impl::advance(Impl& self, std::shared_ptr<Update> update) {
  const auto end = on_exit([&self, &update] {
    self.finished(*update);
    update->released.set();
    update->done.set();
  });
  try {
    co_await self.make(*update);
  } catch (const std::exception& error) {
    log::error("train", "the end of epoch {} failed: {}", update->epoch - 1, log::quoted(error.what()));
    update->failure = std::current_exception();
    // Their groups have heard of it, or will now.
    for (const auto& scheduled : self.exchanges) scheduled->give_up();
  }
}

/// The exchanges, one after another: those that the optimizer steps with end the epoch.
Task<void> Run::Impl::make(Update& update) {
  if (options.delay_grad_averaging) release(update);
  std::size_t next = 0;
  for (; next < exchanges.size() && exchanges[next]->exchange().makes_step(); ++next) {
    co_await take_part(update, next);
    if (update.missed) co_return;
  }
  const auto has_state_of_epoch = [&] {
    if (options.use_local_updates) model.set_epoch(update.epoch);
    sharing.set_priority(static_cast<double>(update.epoch));
  };
  if (!options.outer_optimizer) has_state_of_epoch();
  enter_epoch(update.epoch);
  for (; next < exchanges.size() && !update.missed; ++next) {
    if (!exchanges[next]->round()) continue;
    co_await take_part(update, next);
    update.released.is_set() ? tracker.restart_timer() : tracker.training_resumes();
  }
  if (options.outer_optimizer && !update.missed) has_state_of_epoch();  // its anchor belongs to it
}

void Run::Impl::release(Update& update) {
  enter_epoch(update.epoch);
  update.released.set();
}

/// A peer that has missed the group of its step learns it from the epoch that it hears of, or from members that wait
/// for it in the next round. One that is late has a group only if its members are still looking for one.
Task<void> Run::Impl::take_part(Update& update, std::size_t number) {
  Scheduled& scheduled = *exchanges[number];
  Search search{.epoch = update.epoch, .patience = options.matchmaking_time * 2};
  // Where no round of this epoch's end came before, the others may be about to look whether the epoch has ended.
  if (number == 0)
    search.patience = std::max(search.patience, options.tracker_options.max_refresh_period + options.matchmaking_time);
  if (scheduled.exchange().makes_step()) {
    search = {.epoch = local_epoch, .patience = options.matchmaking_time};
    if (!update.late && number + 1 < exchanges.size()) {
      search.next = &exchanges[number + 1]->averager();
      search.patience /= 4;
    }
  }
  const Moment moment{Occasion::epoch_end, update.epoch, update.counted.samples, update.counted.batches};
  const Exchanged done = co_await exchange(scheduled, moment, search, &update);
  if (done.effect == Effect::publishable) update.publishable = true;
  if (done.effect == Effect::behind) update.missed = true;
}

/// As in hivemind: a peer that has missed the gradients learns it now, instead of being waited for in the next round.
void Run::Impl::enter_epoch(std::uint64_t epoch) {
  {
    const std::lock_guard lock(mutex);
    if (local_epoch == epoch) return;
    local_epoch = epoch;
  }
  if (!ended) tracker.update_epoch(epoch);
  note_epoch(epoch);
}

void Run::Impl::finished(Update& update) {
  const std::lock_guard lock(mutex);
  update.report.epoch = local_epoch;
  if (update.missed || update.failure) demanded = true;
  if (!update.publishable || update.missed) return;
  StepReport report = update.report;
  report.updated = true;
  gate.offer(report);
}

}  // namespace cohive::train
