// When the rounds of a run begin, how long they are waited for, and what they yield.
#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "run_impl.hpp"

namespace cohive::train {

using averaging::Round;
using averaging::RoundReport;

namespace {
constexpr double kLongestLead = 3600;     // seconds; ends that cannot be foreseen are far away
constexpr int kDividedLead = 2;           // times the matchmaking time
constexpr Duration kPollInterval = 1s;    // at the progress of the run, while a member waits
constexpr std::size_t kFewTrainers = 32;  // all of whom a newcomer knows soon
}  // namespace

// ---- Beginning

/// Begins to look for groups as soon as the epoch's end is nearer than the time that it takes.
void Run::Impl::consider_rounds() {
  if (!joined || rounds_barred > 0) return;
  if (update && !update->done.is_set()) return;  // the present rounds are still in use
  for (const auto& scheduled : exchanges) scheduled->forget_ended();
  const GlobalProgress global = tracker.snapshot();
  if (global.eta - runtime.wall_time() <= to_seconds(search_time(global))) begin_rounds(global);
}

/// How long before the end of the epoch a group is looked for. A divided run does not know how many come to a group: it
/// begins when the epoch ends by the estimate of its leader. Members whose estimates differ must be there by then.
Duration Run::Impl::search_time(const GlobalProgress& global) const {
  const bool divided = exchanges.front()->bits_for(global.expected, options.target_group_size) > 0;
  return options.matchmaking_time * (divided ? kDividedLead : 1);
}

/// A group that expects no more than came before a newcomer would begin without it.
void Run::Impl::expect_members() {
  const std::size_t expected = tracker.snapshot().expected;
  for (const auto& scheduled : exchanges)
    if (scheduled->round() && expected > 1) scheduled->round()->expect(expected);
}

/// Peers find each other when all of them look at the same time: not only after a batch, which may take seconds.
Task<void> Run::Impl::watch_progress(Impl& self) {
  for (;;) {
    const double left = self.tracker.snapshot().eta - self.runtime.wall_time();
    const double lead = left - to_seconds(self.search_time(self.tracker.snapshot()));
    const Deadline begin =
        lead > 0 ? self.runtime.after(from_seconds(std::min(lead, kLongestLead))) : Deadline::never();
    co_await self.tracker.news(begin);
    if (!self.joined) self.begin_or_join();
    self.expect_members();
    if (self.ended || self.tracker.snapshot().epoch > self.local_epoch) continue;
    bool trains = self.options.auxiliary || self.caught_up;
    {
      const std::lock_guard lock(self.mutex);
      trains = trains || self.counted.samples > 0;
    }
    if (trains) self.consider_rounds();
  }
}

/// The first trainer of a run begins it; one that is not joins it with its next batch.
void Run::Impl::begin_or_join() {
  if (!tracker.looked()) return;
  if (!tracker.others_began()) return has_joined();
  const std::lock_guard lock(mutex);
  demanded = true;
}

/// A member that waits for our gradients has ended the epoch already, which the next look at the progress may tell us
/// only after it has stopped waiting.
Task<void> Run::Impl::watch_members(Impl& self, Scheduled& scheduled) {
  for (;;) {
    co_await scheduled.averager().member_waiting();
    if (!self.ended) co_await self.tracker.refresh();
    co_await self.runtime.sleep_for(kPollInterval);
  }
}

/// Begins the rounds of this epoch's end that have not begun.
void Run::Impl::begin_rounds(const GlobalProgress& global) {
  if (global.expected < 2 || ended) return;
  const std::uint64_t next = std::max(local_epoch + 1, global.epoch);
  if (std::ranges::none_of(exchanges, [](const auto& scheduled) { return scheduled->round() != nullptr; }))
    log::debug("train", "looking for a group: epoch {} ends in {:.1f} s, {} of {} peers are expected", local_epoch,
               global.eta - runtime.wall_time(), global.expected, global.peers);
  // A newcomer has reported its progress by now, so that it is expected, too.
  for (const auto& scheduled : exchanges)
    if (!scheduled->round() && scheduled->exchange().due(next))
      begin_round(*scheduled, next, global.expected, options.averaging_timeout);
}

void Run::Impl::begin_round(Scheduled& scheduled, std::uint64_t epoch, std::size_t expected, Duration timeout) {
  averaging::RoundOptions round;
  round.gather = scheduled.exchange().greeting(epoch);
  round.timeout = timeout;
  round.expected_members = expected;
  if (scheduled.is_new() && tracker.others_began() && tracker.snapshot().peers > kFewTrainers)
    round.lead_delay = options.matchmaking_time / 2;
  round.last = ended;
  round.random_group_bits = scheduled.bits_for(expected, options.target_group_size);
  if (round.random_group_bits > 0) {
    const double now = runtime.wall_time(), least = to_seconds(options.matchmaking_time);
    round.scheduled_time = std::clamp(tracker.snapshot().eta, now + least, now + kDividedLead * least);
  }
  scheduled.begin(std::move(round));
}

/// The exchange that the optimizer steps with; null with local updates.
Scheduled* Run::Impl::of_step() const {
  const auto found =
      std::ranges::find_if(exchanges, [](const auto& scheduled) { return scheduled->exchange().makes_step(); });
  return found == exchanges.end() ? nullptr : found->get();
}

/// The exchange that makes our parameters those of others; null where there is none.
Scheduled* Run::Impl::of_parameters() const {
  const auto found =
      std::ranges::find_if(exchanges, [](const auto& scheduled) { return scheduled->exchange().yields_parameters(); });
  return found == exchanges.end() ? nullptr : found->get();
}

// ---- Ending

namespace {

/// Completes when waiting for a group has no point any more: the run has passed `epoch` for `others`, the time by which
/// groups of one round may be apart, or `grace` has gone by since members have been waiting for this peer in the round
/// of `next`. A member that waits for our parameters has the gradients: it says so sooner than the report of the epoch
/// comes through the DHT, if this peer owns parts of that round.
Task<void> hopeless(ProgressTracker& tracker, std::uint64_t epoch, Duration others, averaging::Averager* next,
                    Duration grace) {
  auto passed = [](ProgressTracker& run, std::uint64_t end, Duration time) -> Task<void> {
    co_await run.epoch_passed(end);
    co_await run.runtime().sleep_for(time);
  };
  auto late = [](Runtime& runtime, averaging::Averager* waiting, Duration time) -> Task<void> {
    if (waiting) co_await waiting->member_waiting();
    co_await runtime.sleep_for(time);
  };
  (void)co_await race(tracker.runtime(), passed(tracker, epoch, others), late(tracker.runtime(), next, grace));
}

}  // namespace

/// Waits for the group of a round, and gives the round up when that has no point any more.
Task<Grouped> Run::Impl::find_group(Scheduled& scheduled, std::shared_ptr<Round> round, Search search) {
  // Other groups may end it later. Peers that end their training with this one may have their group just now.
  const Duration apart = ended ? options.matchmaking_time * 2 : scheduled.is_divided() ? options.matchmaking_time : 0s;
  (void)co_await race(runtime, round->grouped(), hopeless(tracker, search.epoch, apart, search.next, search.patience));
  if (scheduled.exchange().makes_step() && scheduled.round() != round) co_return Grouped{};  // given up meanwhile
  if (round->stage() != Round::Stage::looking_for_group) co_return Grouped{std::move(round)};
  round->cancel();
  miss(scheduled);
  co_return Grouped{.missed = true};
}

/// One exchange, from the search for its group to what is done with the answer. While a group is being found, newcomers
/// get copies of the model. A step is made without a group, too.
Task<Exchanged> Run::Impl::exchange(Scheduled& scheduled, Moment moment, Search search, Update* update) {
  Exchange& what = scheduled.exchange();
  const bool steps = what.makes_step();
  const auto trainer_waits_for = [&](Wait reason) {
    if (update) wait_clock.turn_to(reason);
  };
  const Wait of_round = steps ? Wait::gradients : Wait::parameters;
  const Wait of_work = steps ? Wait::step : Wait::parameters;
  const Release release_at = what.release(moment);
  // Until a step takes its round, others see that there is one (out_of_sync), and it may be given up.
  auto round = steps ? scheduled.round() : scheduled.take();
  bool missed = false;
  std::optional<Exchange::Offer> offer;

  co_await what.prepare(moment);
  if (release_at == Release::offered) {
    offer = co_await what.offer(moment);
    if (update) update->released.set();
  }
  if (round) {
    trainer_waits_for(of_round);
    const auto grouped = co_await find_group(scheduled, std::move(round), search);
    round = grouped.round;
    missed = grouped.missed;
  }
  // Where this peer has averaged with nobody, there may be nobody: what it has of its own is not lost.
  const auto needs_state = [&] {
    return update && what.needs_every_round() && !options.auxiliary && tracker.snapshot().met > 0;
  };
  if (missed && needs_state()) {
    co_await what.drop();
    co_return Exchanged{.effect = Effect::behind};
  }
  if (!round && !offer && !steps) co_return Exchanged();

  trainer_waits_for(of_work);
  std::optional<SharedModel::Change> change;
  if (!offer) {
    change.emplace(co_await model.change());
    offer = co_await what.offer(moment);
  }
  if (steps) round = scheduled.take();
  Exchanged done;
  const bool has_round = round != nullptr;
  if (round) {
    trainer_waits_for(of_round);
    round->trigger(offer->weight, std::move(offer->parts));
    done.round = judge(scheduled, co_await round->report());
    trainer_waits_for(of_work);
  }
  offer.reset();
  if (update) {
    auto& group = steps ? update->report.grad_group : update->report.state_group;
    group = std::max(group, done.group());
    if (done.round) update->report.bytes_sent += done.round->bytes_sent;
    if (release_at == Release::averaged) release(*update);
  }
  const bool failed = has_round && !done.round && !steps && needs_state();
  if (failed) co_await what.drop();
  if (!change && !what.kept().empty()) change.emplace(co_await model.change());
  done.effect = co_await what.take(moment, done.round.get());
  if (failed) done.effect = Effect::behind;
  if (!change) model.changed();
  if (steps) model.set_epoch(moment.epoch);
  co_return done;
}

void Run::Impl::miss(Scheduled& scheduled) {
  const bool steps = scheduled.exchange().makes_step();
  if (steps) (void)scheduled.take();
  scheduled.ended(nullptr, false);
  const char* why =
      options.outer_optimizer
          ? "no group in time: the other peers went on without us, or have another outer optimizer, or none"
          : "no group in time: the other peers went on without us, or do not average";
  history.round_failed(scheduled.exchange().name(), "missed", why);
  (steps ? metrics.grad_missed : metrics.state_failed).increment();
}

/// Counts and tells how a round went. Null: it averaged nothing.
std::shared_ptr<const RoundReport> Run::Impl::judge(Scheduled& scheduled,
                                                    Result<std::shared_ptr<const RoundReport>> result) {
  const std::string& what = scheduled.exchange().name();
  const bool steps = scheduled.exchange().makes_step();
  if (!result) {
    scheduled.ended(nullptr, true);
    history.round_failed(what, cause_of_round_failure(result.error()),
                         log::format("failed, proceeding with local values: {}", result.error()));
    (steps ? metrics.grad_local : metrics.state_failed).increment();
    const std::lock_guard lock(mutex);
    ++(steps ? counters.grad_rounds_failed : counters.state_rounds_failed);
    return nullptr;
  }
  const auto& report = *result;
  history.round_averaged(what, report);
  scheduled.ended(report.get(), true);
  log::write(options.verbose ? log::Level::info : log::Level::debug, "train",
             log::format("averaged {} with {} peers in {:.3f} s (group found in {:.3f} s)", what, report->group.size(),
                         to_seconds(report->allreduce), to_seconds(report->matchmaking)));
  count_round(scheduled, *report);
  (steps ? metrics.grad_ok : metrics.state_ok).increment();
  return report;
}

void Run::Impl::count_round(Scheduled& scheduled, const RoundReport& result) {
  const bool steps = scheduled.exchange().makes_step();
  std::vector<PeerId> members;
  for (const auto& member : result.group)
    if (std::ranges::count(result.lost_senders, member.peer) == 0) members.push_back(member.peer);
  if (scheduled.is_divided())
    tracker.met(members);  // trainers of other groups are no absentees
  else
    tracker.took_part(members, result.lost_senders);
  const std::lock_guard lock(mutex);
  counters.bytes_sent += result.bytes_sent;
  counters.bytes_received += result.bytes_received;
  ++(steps ? counters.grad_rounds : counters.state_rounds);
  if (!steps) return;
  if (!result.agreed_codecs.empty()) ++counters.grad_rounds_agreed;
  auto& by_size = counters.rounds_by_group_size;
  if (by_size.size() <= result.group.size()) by_size.resize(result.group.size() + 1);
  ++by_size[result.group.size()];
}

// ---- Rounds that will not be used

/// Where a group has formed, its members must not wait. All of them hear from us before any is waited for, as they may
/// be waiting in another round.
Task<void> Run::Impl::abandon_rounds() {
  const RoundsSuspended barred(*this);
  std::vector<std::pair<Exchange*, std::shared_ptr<Round>>> grouped;
  for (const auto& scheduled : exchanges) {
    if (scheduled->has_group()) grouped.emplace_back(&scheduled->exchange(), scheduled->take());
    scheduled->give_up();
  }
  if (grouped.empty()) co_return;
  const Moment moment{Occasion::given_up, local_epoch};
  auto change = co_await model.change();
  for (const auto& [what, round] : grouped) {
    auto offer = co_await what->offer(moment);
    round->trigger(offer.weight, std::move(offer.parts));
  }
  for (const auto& [what, round] : grouped) {
    const auto result = co_await round->report();
    (void)co_await what->take(moment, result ? result->get() : nullptr);
  }
}

/// \param expected  how many peers average, as far as is known; below 2: peers may, of which nothing is known
/// \param timeout   for the round
/// \param patience  for its group
Task<std::size_t> Run::Impl::average_parameters(std::size_t expected, Duration timeout, Duration patience) {
  StepReport ignored;
  (void)co_await finish_update(ignored);
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  const auto first = std::ranges::find_if(exchanges, [](const auto& one) { return !one->exchange().makes_step(); });
  Scheduled& of_model = **first;
  begin_round(of_model, local_epoch, expected < 2 ? 0 : expected, timeout);
  Search search{.patience = patience};
  if (ended) search.epoch = local_epoch + 1;  // peers that are beyond that go on
  const Exchanged done = co_await exchange(of_model, {Occasion::extra, local_epoch}, search);
  // Those that stop together end together, also where one has missed the last epoch: it is then behind most others.
  if (ended && done.round && of_model.exchange().yields_parameters())
    (void)co_await take_epoch_of(done, (done.round->group.size() - 1) / 2 + 1);
  co_return done.group();
}

}  // namespace cohive::train
