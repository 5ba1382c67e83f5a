#include "epochs.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::train {
namespace {
constexpr int kAlone = 2;  // epochs in a row: the DHT may fail to tell of others for a moment
}

void Epochs::note_progress() {
  run_.counts.loop_looks();
  run_.follow_target();
  if (run_.ended) return;
  run_.tracker.report(run_.counts.epoch(), run_.counts.counted().samples);
  const GlobalProgress global = run_.tracker.snapshot();
  run_.metrics.global_epoch.set(static_cast<double>(global.epoch));
  run_.metrics.peers.set(static_cast<double>(global.peers));
  run_.metrics.global_rate.set(global.samples_per_second);
  consider_rounds();
}

void Epochs::consider_rounds() {
  if (update_ && !update_->done.is_set()) return;
  if (run_.options.auxiliary) follow_the_run();
  rounds_.consider();
}

/// An auxiliary peer has no state that belongs to its epoch: it goes on with that of the run, or back to it. The end of
/// its own one takes the rounds that have a group, and where it is one epoch behind, those that it may be in time for.
void Epochs::follow_the_run() {
  const std::uint64_t epoch = run_.tracker.snapshot().epoch, own = run_.counts.epoch();
  const auto has_round = [](const auto& scheduled) { return scheduled->round() != nullptr; };
  const auto has_group = [](const auto& scheduled) { return scheduled->has_group(); };
  if (epoch == own || std::ranges::any_of(run_.exchanges, has_group)) return;
  if (epoch == own + 1 && std::ranges::any_of(run_.exchanges, has_round)) return;
  for (const auto& scheduled : run_.exchanges) scheduled->give_up();
  enter(epoch);
}

bool Epochs::trains() const {
  return run_.options.auxiliary || caught_up_ || run_.counts.counted().samples > 0;
}

Counted Epochs::take_batches() {
  caught_up_ = false;
  return run_.counts.take();
}

Task<void> Epochs::drop_batches() {
  run_.replica.cut_gradients();
  co_await run_.replica.drop_gradients();
  const double samples = take_batches().samples;
  alone_ = 0;
  for (const auto& scheduled : run_.exchanges) carry(*scheduled, samples, scheduled == run_.exchanges.front());
}

/// Samples that no round has averaged, though what came of them is still here, weigh in the next one. Nobody brings
/// more to a round than a whole one. \param missed  a round that was due
void Epochs::carry(Scheduled& scheduled, double samples, bool missed) {
  if (!scheduled.exchange().keeps_unaveraged()) {
    scheduled.carried = 0;
    return;
  }
  if (samples >= 1 && missed)
    log::info("train", "{:.0f} samples of this peer count in its next round: no round has averaged them", samples);
  scheduled.carried = std::min(scheduled.carried + samples, run_.target() * fragments());
}

double Epochs::fragments() const {
  return run_.options.outer_optimizer ? run_.options.outer_optimizer->fragments : 1;
}

Task<bool> Epochs::end(StepReport& report) {
  const GlobalProgress global = run_.tracker.snapshot();
  rounds_.begin_all(global);
  const bool has_round = std::ranges::any_of(run_.exchanges, [](const auto& one) { return one->round() != nullptr; });
  alone_ = has_round || global.expected > 1 ? 0 : alone_ + 1;
  for (const auto& scheduled : run_.exchanges)
    if (scheduled->round()) co_await scheduled->exchange().hold();
  const auto current =
      std::make_shared<Update>(run_.runtime, std::max(run_.counts.epoch() + 1, global.epoch), take_batches());
  for (const auto& scheduled : run_.exchanges) scheduled->take_up();
  const auto* const step = run_.of_step();
  current->late = global.epoch > run_.counts.epoch() && !(step && step->has_group());
  update_ = current;
  run_.replica.cut_gradients();
  run_.tasks.spawn(advance(*this, current), "end of an epoch");
  co_await current->released.wait();
  if (current->failure) std::rethrow_exception(std::exchange(current->failure, nullptr));
  if (current->missed) {
    update_.reset();
    co_return false;
  }
  report.epoch_changed = true;
  // What is delayed is told when it is done.
  report.grad_group = std::exchange(current->report.grad_group, 0);
  report.state_group = std::exchange(current->report.state_group, 0);
  report.bytes_sent += std::exchange(current->report.bytes_sent, 0);
  co_return true;
}

Task<bool> Epochs::settle(StepReport& report) {
  if (!update_) co_return true;
  const auto last = update_;  // until it is done no round may begin
  if (!last->done.is_set()) run_.wait_clock.turn_to(Wait::delayed_work);
  co_await last->done.wait();
  if (update_ == last) update_.reset();
  if (auto publication = co_await run_.gate.publish(run_.runtime)) {
    report = publication->report();
    // All parameters of some models are copied: not on the loop.
    auto right = std::make_shared<ParameterGate::Publication>(std::move(*publication));
    co_await run_.runtime.offload([used = run_.replica.in_use(), run = run_.shared_from_this(), right]() mutable {
      run->replica.publish();
      right.reset();  // before what it is a right to
    });
  }
  // A step that was made before something else failed is not lost.
  if (last->failure) std::rethrow_exception(std::exchange(last->failure, nullptr));
  co_return !last->missed;
}

Task<void> Epochs::advance(Epochs& self, std::shared_ptr<Update> update) {
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
    for (const auto& scheduled : self.run_.exchanges) scheduled->give_up();
  }
}

/// The exchanges, one after another: those that the optimizer steps with end the epoch.
Task<void> Epochs::make(Update& update) {
  if (run_.options.delay_grad_averaging) release(update);
  std::size_t next = 0;
  bool first = true;
  for (; next < run_.exchanges.size() && run_.exchanges[next]->exchange().makes_step(); ++next) {
    co_await take_part(update, next, std::exchange(first, false));
    if (update.missed) co_return;
  }
  const auto has_state_of_epoch = [&] {
    if (run_.options.use_local_updates) run_.model.set_epoch(update.epoch);
    run_.sharing.set_priority(static_cast<double>(update.epoch));
  };
  if (!run_.options.outer_optimizer) has_state_of_epoch();
  enter(update.epoch);
  // Schedules follow the epochs that a step ends by themselves; without one nothing else tells them.
  if (run_.options.use_local_updates) run_.replica.enter_epoch(update.epoch);
  std::shared_ptr<const averaging::RoundReport> last;  // of this end's rounds
  for (; next < run_.exchanges.size(); ++next) {
    Scheduled& scheduled = *run_.exchanges[next];
    Exchange& what = scheduled.exchange();
    const bool due = what.due(update.epoch);
    if (last && !update.missed && !scheduled.round() && due && what.follows(update.epoch))
      rounds_.begin_following(scheduled, update.epoch, *last);
    if (update.missed || !scheduled.round()) {
      if (due && alone_ >= kAlone && !what.kept().empty()) {
        const auto change = co_await run_.model.change();
        co_await what.alone();
      }
      carry(scheduled, update.counted.samples, due);
      continue;
    }
    last = co_await take_part(update, next, std::exchange(first, false));
    if (!update.released.is_set()) run_.tracker.training_resumes();
  }
  if (run_.options.outer_optimizer && !update.missed) has_state_of_epoch();  // its anchor belongs to it
}

void Epochs::release(Update& update) {
  enter(update.epoch);
  if (!update.released.is_set() && !run_.ended) run_.tracker.training_resumes();
  update.released.set();
}

/// A peer that has missed the group of its step learns it from the epoch that it hears of, or from members that wait
/// for it in the next round. One that is late has a group only if its members are still looking for one.
Task<std::shared_ptr<const averaging::RoundReport>> Epochs::take_part(Update& update, std::size_t number, bool first) {
  Scheduled& scheduled = *run_.exchanges[number];
  Search search{.patience = run_.options.matchmaking_time * 2};
  if (!rounds_.follows_others()) search.epoch = update.epoch;  // else the run is beyond it
  // Where no round of this epoch's end came before, the others may be about to look whether the epoch has ended.
  if (first)
    search.patience =
        std::max(search.patience, run_.options.tracker_options.max_refresh_period + run_.options.matchmaking_time);
  if (scheduled.exchange().makes_step()) {
    search = {.epoch = run_.counts.epoch(), .patience = run_.options.matchmaking_time};
    if (!update.late && number + 1 < run_.exchanges.size()) {
      search.next = &run_.exchanges[number + 1]->averager();
      search.patience /= 4;
    }
  }
  double samples = update.counted.samples;
  if (scheduled.exchange().keeps_unaveraged()) samples += std::exchange(scheduled.carried, 0);
  const Moment moment{Occasion::epoch_end, update.epoch, samples, update.counted.batches, update.counted.seconds};
  const Exchanged done =
      co_await rounds_.exchange(scheduled, moment, search, &update, [this, &update] { release(update); });
  if (scheduled.exchange().keeps_unaveraged()) {
    const double averaged = done.round ? samples * done.round->averaged_share() : 0;
    carry(scheduled, samples - averaged, true);
    const double of_model = averaged / fragments();
    run_.counts.note([of_model](TrainingStats& stats) { stats.samples_averaged += of_model; });
  }
  if (done.effect == Effect::publishable) update.publishable = true;
  if (done.effect == Effect::behind) update.missed = true;
  co_return done.round;
}

/// As in hivemind: a peer that has missed the gradients learns it now, instead of being waited for in the next round.
void Epochs::enter(std::uint64_t epoch) {
  if (!run_.counts.enter(epoch)) return;
  if (!run_.ended) run_.tracker.update_epoch(epoch);
  status_.epoch_entered(epoch);
}

void Epochs::take(std::uint64_t epoch) {
  enter(epoch);
  run_.replica.enter_epoch(epoch);
  run_.sharing.set_priority(static_cast<double>(epoch));
}

void Epochs::finished(Update& update) {
  update.report.epoch = run_.counts.epoch();
  if (update.publishable && !update.missed) {
    StepReport report = update.report;
    report.updated = true;
    run_.gate.offer(report);
  }
  if (update.missed || update.failure) run_.counts.demand();
}

}  // namespace cohive::train
