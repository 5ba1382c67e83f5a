#include "run_rounds.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "exchanges/parameter_greeting.hpp"

namespace cohive::train {

using averaging::Round;
using averaging::RoundReport;

namespace {
constexpr int kDividedLead = 2;           // times the matchmaking time
constexpr Duration kPollInterval = 1s;    // at the progress of the run, while a member waits
constexpr std::size_t kFewTrainers = 32;  // all of whom a newcomer knows soon
constexpr std::uint64_t kLookAround = 8;  // epochs from one round for all in sight to the next
constexpr double kMajority = 0.5;         // more of the other members of a group
}  // namespace

// ---- Beginning

void RunRounds::start() {
  for (const auto& scheduled : run_.exchanges) {
    const bool ends_epochs = scheduled == run_.exchanges.front() || scheduled->exchange().needs_every_round();
    if (ends_epochs) run_.tasks.spawn(watch_members(*this, *scheduled), "members that wait for this peer");
    if (ends_epochs || scheduled->exchange().makes_step())
      run_.tasks.spawn(watch_majority(*this, *scheduled), "most members, which wait for this peer");
  }
}

void RunRounds::consider() {
  if (suspended()) return;
  for (const auto& scheduled : run_.exchanges) scheduled->forget_ended();
  const GlobalProgress global = run_.tracker.snapshot();
  if (global.eta - run_.runtime.wall_time() <= to_seconds(search_time(global))) begin_all(global);
}

/// A divided run does not know how many come to a group: it
/// begins when the epoch ends by the estimate of its leader. Members whose estimates differ must be there by then.
Duration RunRounds::search_time(const GlobalProgress& global) const {
  const bool divided = bits_for(*run_.exchanges.front(), global.expected) > 0;
  return run_.options.matchmaking_time * (divided ? kDividedLead : 1);
}

/// Whether a round is for all trainers in sight: that of a newcomer, which knows few yet, and one in eight of all
/// others. So many newcomers may have come at once that these make groups of their own, and those that were there would
/// never meet them.
bool RunRounds::looks_at_all(const Scheduled& scheduled) const {
  return scheduled.is_new() || run_.counts.epoch() % kLookAround == 0;
}

std::size_t RunRounds::bits_for(const Scheduled& scheduled, std::size_t expected) const {
  const bool all = looks_at_all(scheduled);
  if (all) expected = std::max(expected, run_.tracker.snapshot().in_sight);
  return scheduled.bits_for(expected, run_.options.target_group_size, all);
}

/// A leader that knows few of those in sight would begin with them.
std::size_t RunRounds::members_for(const Scheduled& scheduled, std::size_t expected) const {
  const bool sees_more = looks_at_all(scheduled) && bits_for(scheduled, expected) > 0;
  return sees_more ? std::max(expected, run_.tracker.snapshot().in_sight) : expected;
}

void RunRounds::expect_members() {
  const std::size_t expected = run_.tracker.snapshot().expected;
  for (const auto& scheduled : run_.exchanges)
    if (scheduled->round() && expected > 1) scheduled->round()->expect(members_for(*scheduled, expected));
}

namespace {

/// Completes when more than this share of the other members wait for this peer, those that are late apart: a newcomer
/// that ends the epoch before has found our group.
Task<void> member_in_time(Scheduled& scheduled, double share) {
  return scheduled.averager().member_waiting(
      share, [&what = scheduled.exchange()](const averaging::Member& waiting, const averaging::Member& own) {
        return !what.is_late(waiting, own);
      });
}

}  // namespace

/// A member that waits for what we have has ended the epoch already, which the next look at the progress may tell us
/// only after it has stopped waiting. Where trainers step by themselves it is enough to come, when the epoch is nearly
/// over: reducers that ended it with one member long before the others would lose all of these.
Task<void> RunRounds::watch_members(RunRounds& self, Scheduled& scheduled) {
  for (;;) {
    co_await member_in_time(scheduled, 0);
    if (!scheduled.exchange().makes_step() && scheduled.awaits_epoch() && self.is_nearly_over())
      self.run_.counts.note_awaited();
    if (!self.run_.ended) co_await self.run_.tracker.refresh();
    co_await self.run_.runtime.sleep_for(kPollInterval);
  }
}

bool RunRounds::is_nearly_over() const {
  const double left = run_.tracker.snapshot().eta - run_.runtime.wall_time();
  return left <= to_seconds(run_.options.matchmaking_time) / 2;
}

/// Where most members of a group wait, the epoch has ended, whatever this peer can read of the progress. A single one
/// could end everybody's epochs.
Task<void> RunRounds::watch_majority(RunRounds& self, Scheduled& scheduled) {
  for (;;) {
    co_await member_in_time(scheduled, kMajority);
    if (scheduled.awaits_epoch()) self.run_.counts.note_awaited();
    co_await self.run_.runtime.sleep_for(kPollInterval);
  }
}

void RunRounds::begin_all(const GlobalProgress& global) {
  if (global.expected < 2 || run_.ended) return;
  const std::uint64_t next = std::max(run_.counts.epoch() + 1, global.epoch);
  if (std::ranges::none_of(run_.exchanges, [](const auto& scheduled) { return scheduled->round() != nullptr; }))
    log::debug("train", "looking for a group: epoch {} ends in {:.1f} s, {} of {} peers are expected",
               run_.counts.epoch(), global.eta - run_.runtime.wall_time(), global.expected, global.peers);
  // A newcomer has reported its progress by now, so that it is expected, too.
  for (const auto& scheduled : run_.exchanges) {
    const Exchange& what = scheduled->exchange();
    // Members that this peer follows are in other epochs, by which their rounds of the parameters are due.
    const bool due = what.due(next) || (what.yields_parameters() && follows_others() && trails_);
    if (what.yields_to_divided_rounds() && bits_for(*scheduled, global.expected) > 0) continue;
    if (!scheduled->round() && due && !what.follows(next))
      begin(*scheduled, next, global.expected, run_.options.averaging_timeout);
  }
}

void RunRounds::begin_following(Scheduled& scheduled, std::uint64_t epoch, const RoundReport& before) {
  begin(scheduled, epoch, before.group.size(), run_.options.averaging_timeout, before.group);
}

void RunRounds::begin(Scheduled& scheduled, std::uint64_t epoch, std::size_t expected, Duration timeout,
                      std::vector<averaging::Member> members) {
  averaging::RoundOptions round;
  round.gather = scheduled.exchange().greeting(epoch);
  round.timeout = timeout;
  round.expected_members = members_for(scheduled, expected);
  round.meets = std::move(members);
  if (scheduled.is_new() && run_.tracker.others_began() && run_.tracker.snapshot().peers > kFewTrainers)
    round.lead_delay = run_.options.matchmaking_time / 2;
  round.last = run_.ended;
  round.random_group_bits = bits_for(scheduled, expected);
  round.codecs = [&what = scheduled.exchange(), divided = round.random_group_bits > 0](
                     const std::vector<averaging::Member>& members) { return what.codecs(members, divided); };
  if (round.random_group_bits == 0) {
    for (const auto& other : run_.tracker.trainers())
      if (other.epoch + 1 >= epoch) round.others.push_back(other.peer);
  } else {
    const double now = run_.runtime.wall_time(), least = to_seconds(run_.options.matchmaking_time);
    round.scheduled_time = std::clamp(run_.tracker.snapshot().eta, now + least, now + kDividedLead * least);
  }
  // Nobody needs the group of the parameters before the gradients have been averaged, and then its members are known.
  round.early = run_.of_step() && !scheduled.exchange().makes_step() && round.random_group_bits == 0;
  scheduled.begin(std::move(round));
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
Task<RunRounds::Grouped> RunRounds::find_group(Scheduled& scheduled, std::shared_ptr<Round> round, Search search,
                                               const Update* update) {
  auto company = std::exchange(company_, {});
  if (!round) co_return Grouped{};
  const bool steps = scheduled.exchange().makes_step();
  // Where its group is not there yet, some members do not remember groups. Such peers look once, after this round,
  // whether they are in the epoch of the others.
  if (update && !steps && round->stage() == Round::Stage::looking_for_group) run_.tracker.report_at_once();
  if (!steps) round->hurry(update ? std::move(company) : std::vector<PeerId>());
  // Other groups may end it later. Peers that end their training with this one may have their group just now.
  const Duration apart = run_.ended               ? run_.options.matchmaking_time * 2
                         : scheduled.is_divided() ? run_.options.matchmaking_time
                                                  : 0s;
  (void)co_await race(run_.runtime, round->grouped(),
                      hopeless(run_.tracker, search.epoch, apart, search.next, search.patience));
  if (steps && scheduled.round() != round) co_return Grouped{};  // given up meanwhile
  if (round->stage() != Round::Stage::looking_for_group) co_return Grouped{std::move(round)};
  round->cancel();
  miss(scheduled);
  co_return Grouped{.missed = true};
}

/// Where this peer has averaged with nobody, there may be nobody: what it has of its own is not lost.
bool RunRounds::needs_state(const Exchange& what) const {
  return what.needs_every_round() && !run_.options.auxiliary && run_.tracker.snapshot().met > 0;
}

/// Averages what is offered in a round, and tells `update` of it.
Task<std::shared_ptr<const RoundReport>> RunRounds::average(Scheduled& scheduled, std::shared_ptr<Round> round,
                                                            Exchange::Offer offer, Update* update) {
  const Exchange& what = scheduled.exchange();
  round->trigger(offer.weight, std::move(offer.parts));
  auto outcome = co_await round->report();
  if (outcome && !offer.finite) outcome = Error(averaging::Errc::not_finite);
  if (outcome && (*outcome)->left_out() && update && !what.makes_step() && needs_state(what))
    outcome = Error(averaging::Errc::refused);
  auto report = judge(scheduled, std::move(outcome));
  if (!update || !report) co_return report;
  auto& group = what.makes_step() ? update->report.grad_group : update->report.state_group;
  group = std::max(group, report->group.size());
  update->report.bytes_sent += report->bytes_sent;
  co_return report;
}

/// Returns the least epoch of those members of a round that are beyond `epoch`, by what they greet each other with,
/// where most are. What those say counts that this peer has averaged with: any number of others may join, and say
/// anything. Where there is none of these, a peer that has nothing of the run yet counts all.
std::optional<std::uint64_t> RunRounds::least_ahead(const averaging::Round& round, std::uint64_t epoch) const {
  struct Say {
    std::size_t all = 0;
    std::vector<std::uint64_t> ahead;
  };
  Say acquainted, strangers;
  const p2p::Reputation& reputation = run_.dht.host().reputation();
  for (const averaging::Member& member : round.members()) {
    if (member.peer == run_.dht.host().id()) continue;
    Say& say = reputation.has_history(member.peer) ? acquainted : strangers;
    ++say.all;
    if (const auto theirs = ParameterGreeting::of(member).epoch.value_or(0); theirs > epoch)
      say.ahead.push_back(theirs);
  }
  const bool is_new = !reputation.has_any_history() && run_.counts.stats().state_downloads == 0;
  const Say& say = acquainted.all == 0 && (is_new || follows_others()) ? strangers : acquainted;
  if (2 * say.ahead.size() <= say.all) return std::nullopt;
  return std::ranges::min(say.ahead);
}

/// Tells whether this peer is epochs behind: it has slept, and has not heard of it yet. Its parameters would pull those
/// of the members back, and its gradients belong to old ones. If no state bears out what members say, they are believed
/// less often each time.
bool RunRounds::is_left_behind(const averaging::Round& round, std::uint64_t epoch) {
  const auto ahead = least_ahead(round, epoch + 1);
  if (!ahead || !doubt_.is_over(run_.runtime.now())) return false;
  doubt_.begin(run_.runtime.now());
  told_ = Told{.behind = epoch, .ahead = *ahead};
  return true;
}

/// Donors may be a little behind the members that said so.
void RunRounds::tried_to_catch_up(std::uint64_t epoch, bool none_shared) {
  const auto told = std::exchange(told_, std::nullopt);
  if (!told) return;
  if (epoch > told->behind + 1 && epoch - told->behind >= (told->ahead - told->behind) / 2)
    doubt_.end();
  else if (none_shared)
    follow_others();
}

Task<Exchanged> RunRounds::exchange(Scheduled& scheduled, Moment moment, Search search, Update* update,
                                    std::function<void()> release) {
  Exchange& what = scheduled.exchange();
  const bool steps = what.makes_step();
  moment.divided = scheduled.is_divided();
  const auto trainer_waits_for = [&](Wait reason) {
    if (update) run_.wait_clock.turn_to(reason);
  };
  const Wait of_round = steps ? Wait::gradients : Wait::parameters;
  const Wait of_work = steps ? Wait::step : Wait::parameters;
  const Release release_at = what.release(moment);
  // Until a step takes its round, others see that there is one (out_of_sync), and it may be given up.
  auto round = steps ? scheduled.round() : scheduled.take();
  std::optional<Exchange::Offer> offer;

  co_await what.prepare(moment);
  if (release_at == Release::offered) {
    offer = co_await what.offer(moment);
    if (update) update->released.set();
  }
  if (round) trainer_waits_for(of_round);
  auto [grouped, missed] = co_await find_group(scheduled, std::move(round), search, update);
  round = std::move(grouped);
  if (missed && update && needs_state(what)) {
    co_await what.drop();
    co_return Exchanged{.effect = Effect::behind};
  }
  if (!round && !offer && !steps) co_return Exchanged();

  trainer_waits_for(of_work);
  std::optional<SharedModel::Change> change;
  if (!offer) {
    change.emplace(co_await run_.model.change());
    offer = co_await what.offer(moment);
  }
  if (steps) round = scheduled.take();
  Exchanged done;
  const bool has_round = round != nullptr;
  const bool tells_epoch = steps || what.yields_parameters();
  const bool gives = update || moment.occasion == Occasion::extra;
  const bool follows = round && gives && tells_epoch && follows_others() && least_ahead(*round, moment.epoch);
  if (round && tells_epoch) trails_ = follows;
  const bool behind =
      round && update && tells_epoch && !follows && !run_.options.auxiliary && is_left_behind(*round, moment.epoch);
  if (behind || follows) {
    log::info("train", "most members of the round are ahead of epoch {}: their {} count, and ours do not", moment.epoch,
              what.name());
    offer->weight = 0;
  }
  if (round) {
    trainer_waits_for(of_round);
    done.round = co_await average(scheduled, std::move(round), *std::exchange(offer, std::nullopt), update);
    trainer_waits_for(of_work);
  }
  offer.reset();
  if (update && release_at == Release::averaged) release();
  const bool failed = has_round && !done.round && !steps && update && needs_state(what);
  if (failed) co_await what.drop();
  if (!change) change.emplace(co_await run_.model.change_beside());
  done.effect = co_await what.take(moment, done.round.get());
  if (has_round && what.yields_parameters() && follows_others()) {
    const bool whole = done.round && done.round->parts_failed == 0;
    follows_ = whole ? 0 : follows_ - 1;
    if (whole && follows) {
      followed_ = done.round;
      run_.counts.demand();
    }
  }
  if (failed || behind) done.effect = Effect::behind;
  if (steps) run_.model.set_epoch(moment.epoch);
  co_return done;
}

void RunRounds::miss(Scheduled& scheduled) {
  const bool steps = scheduled.exchange().makes_step();
  if (steps) (void)scheduled.take();
  scheduled.ended(nullptr, false);
  const char* why =
      run_.options.outer_optimizer
          ? "no group in time: the other peers went on without us, or have another outer optimizer, or none"
          : "no group in time: the other peers went on without us, or do not average";
  run_.history.round_failed(scheduled.exchange().name(), "missed", why);
  (steps ? run_.metrics.grad_missed : run_.metrics.state_failed).increment();
}

/// Counts and tells how a round went. Null: it averaged nothing.
std::shared_ptr<const RoundReport> RunRounds::judge(Scheduled& scheduled, Outcome result) {
  const std::string& what = scheduled.exchange().name();
  const bool steps = scheduled.exchange().makes_step();
  if (!result) {
    scheduled.ended(nullptr, true);
    run_.history.round_failed(what, cause_of_round_failure(result.error()),
                              log::format("failed, proceeding with local values: {}", result.error()));
    (steps ? run_.metrics.grad_local : run_.metrics.state_failed).increment();
    run_.counts.note(
        [steps](TrainingStats& stats) { ++(steps ? stats.grad_rounds_failed : stats.state_rounds_failed); });
    return nullptr;
  }
  const auto& report = *result;
  run_.history.round_averaged(what, report);
  scheduled.ended(report.get(), true);
  log::write(run_.options.verbose ? log::Level::info : log::Level::debug, "train",
             log::format("averaged {} with {} peers in {:.3f} s (group found in {:.3f} s)", what, report->group.size(),
                         to_seconds(report->allreduce), to_seconds(report->matchmaking)));
  count_round(scheduled, *report);
  (steps ? run_.metrics.grad_ok : run_.metrics.state_ok).increment();
  return report;
}

void RunRounds::count_round(Scheduled& scheduled, const RoundReport& result) {
  const bool steps = scheduled.exchange().makes_step();
  std::vector<PeerId> members;
  for (const auto& member : result.group)
    if (std::ranges::count(result.lost_senders, member.peer) == 0) members.push_back(member.peer);
  // Trainers of other groups are no absentees, also where this one thinks that it is the only one.
  const std::size_t reported = run_.tracker.snapshot().peers;
  run_.tracker.met(result.contributors());
  if (!scheduled.is_divided() && bits_of(reported, run_.options.target_group_size) == 0)
    run_.tracker.took_part(members, result.lost_senders);
  if (steps && !scheduled.is_divided()) company_ = members;
  run_.counts.note([steps, &result](TrainingStats& stats) {
    stats.bytes_sent += result.bytes_sent;
    stats.bytes_received += result.bytes_received;
    ++(steps ? stats.grad_rounds : stats.state_rounds);
    if (!steps) return;
    if (!result.agreed_codecs.empty()) ++stats.grad_rounds_agreed;
    auto& by_size = stats.rounds_by_group_size;
    if (by_size.size() <= result.group.size()) by_size.resize(result.group.size() + 1);
    ++by_size[result.group.size()];
  });
}

// ---- Rounds that will not be used

/// All members of groups that have formed hear from us before any is waited for, as they may
/// be waiting in another round.
Task<void> RunRounds::abandon() {
  const Suspended suspended(*this);
  struct Grouped {
    Exchange* what;
    std::shared_ptr<Round> round;
    Moment moment;
  };
  std::vector<Grouped> grouped;
  for (const auto& scheduled : run_.exchanges) {
    const Moment moment{
        .occasion = Occasion::given_up, .epoch = run_.counts.epoch(), .divided = scheduled->is_divided()};
    if (scheduled->has_group()) grouped.push_back({&scheduled->exchange(), scheduled->take(), moment});
    scheduled->give_up();
  }
  if (grouped.empty()) co_return;
  auto change = co_await run_.model.change();
  for (const auto& [what, round, moment] : grouped) {
    auto offer = co_await what->offer(moment);
    round->trigger(offer.weight, std::move(offer.parts));
  }
  for (const auto& [what, round, moment] : grouped) {
    const auto result = co_await round->report();
    (void)co_await what->take(moment, result ? result->get() : nullptr);
  }
}

}  // namespace cohive::train
