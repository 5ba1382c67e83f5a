// When the rounds of a run begin, how long they are waited for, and what they yield.
#include <algorithm>
#include <bit>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "run_impl.hpp"

namespace cohive::train {

using averaging::Round;
using averaging::RoundResult;

namespace {
constexpr double kLongestLead = 3600;   // seconds; ends that cannot be foreseen are far away
constexpr int kDividedLead = 2;         // times the matchmaking time
constexpr Duration kPollInterval = 1s;  // at the progress of the run, while a member waits
constexpr std::size_t kRoundsOfNewcomer = 2;  // after which it knows the trainers of a large run
constexpr std::size_t kFewTrainers = 32;      // all of whom a newcomer knows soon
}  // namespace

bool Scheduled::has_group() const {
  return round && (round->stage() == Round::Stage::awaiting_trigger || round->stage() == Round::Stage::running);
}

void Scheduled::forget_ended() {
  if (round && round->stage() == Round::Stage::finished) round.reset();
}

void Scheduled::give_up() {
  if (round) round->cancel();
  round.reset();
}

// ---- Beginning

/// Begins to look for groups as soon as the epoch's end is nearer than the time that it takes.
void Run::Impl::consider_rounds() {
  if (!joined || rounds_barred > 0) return;
  if (update && !update->done.is_set()) return;  // the present rounds are still in use
  gradients.forget_ended();
  state.forget_ended();
  const GlobalProgress global = tracker.snapshot();
  if (global.eta - runtime.wall_time() <= to_seconds(search_time(global))) begin_rounds(global);
}

/// How long before the end of the epoch a group is looked for. A divided run does not know how many come to a group: it
/// begins when the epoch ends by the estimate of its leader. Members whose estimates differ must be there by then.
Duration Run::Impl::search_time(const GlobalProgress& global) const {
  const bool divided = bits_of(options.use_local_updates ? state : gradients, global.expected) > 0;
  return options.matchmaking_time * (divided ? kDividedLead : 1);
}

/// A group that expects no more than came before a newcomer would begin without it.
void Run::Impl::expect_members() {
  const std::size_t expected = tracker.snapshot().expected;
  for (Scheduled* scheduled : {&gradients, &state})
    if (scheduled->round && expected > 1) scheduled->round->expect(expected);
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
      trains = trains || self.samples > 0;
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
Task<void> Run::Impl::watch_members(Impl& self) {
  for (;;) {
    co_await self.gradients.averager.member_waiting();
    if (!self.ended) co_await self.tracker.refresh();
    co_await self.runtime.sleep_for(kPollInterval);
  }
}

/// Begins the rounds of this epoch's end that have not begun.
void Run::Impl::begin_rounds(const GlobalProgress& global) {
  if (global.expected < 2 || ended) return;
  const std::uint64_t next = std::max(local_epoch + 1, global.epoch);
  if (!gradients.round && !state.round)
    log::debug("train", "looking for a group: epoch {} ends in {:.1f} s, {} of {} peers are expected", local_epoch,
               global.eta - runtime.wall_time(), global.expected, global.peers);
  // A newcomer has reported its progress by now, so that it is expected, too.
  if (!gradients.round && !options.use_local_updates)
    begin_round(gradients, msgpack::Value(), global.expected, options.averaging_timeout);
  if (!state.round && state_is_due(next))
    begin_round(state, msgpack::Value(next), global.expected, options.averaging_timeout);
}

/// One peer can report as a thousand trainers, which would divide a run into groups of one. So no more groups are made
/// than one of the last few filled to a part, and fewer with each round after the first that found none. A member of a
/// group that is small by chance does not make fewer: it would look for groups where few others do, and stay there.
std::size_t Scheduled::bits_for(std::size_t expected, std::size_t group) const {
  constexpr std::size_t kFewestMet = 2;    // groups that say anything
  constexpr std::size_t kLostMembers = 2;  // times as many as were met, for trainers that missed the round
  if (met.size() >= kFewestMet) expected = std::min(expected, kLostMembers * *std::ranges::max_element(met));
  if (group == 0 || expected <= group) return 0;
  // The nearest power of two: peers whose counts differ a little agree, but near the odd sizes in between.
  const double groups = static_cast<double>(expected) / static_cast<double>(group);
  const auto bits = static_cast<std::size_t>(std::lround(std::log2(groups)));
  const auto widths = static_cast<std::size_t>(std::bit_width(bits)) + 1;  // bits, half of them, and so on, and none
  return bits >> (misses > 0 ? (misses - 1) % widths : 0);
}

void Scheduled::count_group(std::size_t members) {
  constexpr std::size_t kMet = 4;
  misses = members > 0 ? 0 : misses + 1;
  if (members == 0) return;
  met.push_back(members << group_bits);
  if (met.size() > kMet) met.pop_front();
}

/// Members of a scheme such as PowerSGD go on from factors that they share: they meet the same members again.
std::size_t Run::Impl::bits_of(const Scheduled& scheduled, std::size_t expected) const {
  const bool one_group = &scheduled == &gradients && options.grad_averager_factory;
  return one_group ? 0 : scheduled.bits_for(expected, options.target_group_size);
}

void Run::Impl::begin_round(Scheduled& scheduled, msgpack::Value gather, std::size_t expected, Duration timeout) {
  averaging::RoundOptions round;
  round.gather = std::move(gather);
  round.timeout = timeout;
  round.expected_members = expected;
  scheduled.group_bits = bits_of(scheduled, expected);
  round.random_group_bits = scheduled.group_bits;
  if (scheduled.group_bits > 0) {
    const double now = runtime.wall_time(), least = to_seconds(options.matchmaking_time);
    round.scheduled_time = std::clamp(tracker.snapshot().eta, now + least, now + kDividedLead * least);
  }
  if (scheduled.met.size() < kRoundsOfNewcomer && tracker.others_began() && tracker.snapshot().peers > kFewTrainers)
    round.lead_delay = options.matchmaking_time / 2;
  round.allow_retries = false;
  round.limits = scheduled.pace.limits();
  scheduled.round = std::make_shared<Round>(scheduled.averager.begin(std::move(round)));
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

/// Waits for the group of a round; gives the round up, and yields false, when that has no point any more.
Task<bool> finds_group(Runtime& runtime, Round& round, Task<void> pointless) {
  (void)co_await race(runtime, round.grouped(), std::move(pointless));
  if (round.stage() != Round::Stage::looking_for_group) co_return true;
  round.cancel();
  co_return false;
}

}  // namespace

/// A peer that is late has a group only if its members are still looking for one. True without a round, too, where it
/// was given up meanwhile: there is nothing that this peer has missed.
Task<bool> Run::Impl::find_gradient_group(bool late) {
  averaging::Averager* const next = late ? nullptr : &state_averager;
  const Duration grace = late ? options.matchmaking_time : options.matchmaking_time / 4;
  const auto round = gradients.round;
  auto pointless = hopeless(tracker, local_epoch, gradients.apart(options), next, grace);
  if (co_await finds_group(runtime, *round, std::move(pointless)) || gradients.round != round) co_return true;
  gradients.round.reset();
  gradients.count_group(0);
  miss("gradients");
  metrics.grad_missed.increment();
  co_return false;
}

/// In the group that has been found.
Task<Outcome> Run::Impl::finish_gradient_round(double weight, std::shared_ptr<averaging::TensorParts> parts) {
  const auto round = std::exchange(gradients.round, nullptr);
  round->trigger(weight, std::move(parts));
  Outcome outcome = judge(gradients, co_await round->result(), "gradients");
  if (outcome.result) count_round(*outcome.result, true);
  const std::lock_guard lock(mutex);
  if (outcome.kind == Outcome::Kind::local) ++counters.grad_rounds_failed;
  (outcome.kind == Outcome::Kind::averaged ? metrics.grad_ok : metrics.grad_local).increment();
  co_return outcome;
}

/// While a group is being found, newcomers get copies of the model. What the trainer may change is copied first.
Task<Outcome> Run::Impl::finish_state_round(const StateRoundPlan& plan) {
  const auto round = std::exchange(state.round, nullptr);
  const bool exclusive = plan.how == StateRound::live || plan.how == StateRound::next;
  std::shared_ptr<averaging::TensorParts> parts;
  if (!exclusive) parts = co_await replica.state_parts(plan.how);
  if (plan.released && plan.how != StateRound::live) plan.released->set();
  auto pointless = hopeless(tracker, plan.epoch, state.apart(options), nullptr, plan.patience);
  const bool found = co_await finds_group(runtime, *round, std::move(pointless));
  std::optional<SharedModel::Change> change;
  if (exclusive && found) {
    change.emplace(co_await model.change());
    parts = co_await replica.state_parts(plan.how);
  }
  Outcome outcome{Outcome::Kind::missed};
  if (found) {
    round->trigger(plan.weight, parts);
    outcome = judge(state, co_await round->result(), "parameters");
  } else {
    state.count_group(0);
    miss("parameters");
  }
  if (outcome.result) count_round(*outcome.result, false);
  const bool averaged = outcome.kind == Outcome::Kind::averaged;
  if (parts) {
    if (!averaged) co_await parts->finish();
    parts.reset();
    outcome.publishable = co_await replica.finish_state(averaged);
    if (!change) model.changed();
  }
  const std::lock_guard lock(mutex);
  if (outcome.kind == Outcome::Kind::local) ++counters.state_rounds_failed;
  (averaged ? metrics.state_ok : metrics.state_failed).increment();
  co_return outcome;
}

void Run::Impl::miss(const char* what) {
  history.round_failed(what, "missed", "no group in time: the other peers went on without us, or do not average");
}

Outcome Run::Impl::judge(Scheduled& scheduled, Result<RoundResult> result, const char* what) {
  if (!result) {
    scheduled.pace.missed();
    history.round_failed(what, cause_of_round_failure(result.error()),
                         log::format("failed, proceeding with local values: {}", result.error()));
    return {Outcome::Kind::local};
  }
  history.round_averaged(what, *result);
  if (result->lost_senders.empty() && result->failed_reducers.empty()) {
    scheduled.pace.observe(*result);
  } else {
    scheduled.pace.missed();
  }
  log::write(options.verbose ? log::Level::info : log::Level::debug, "train",
             log::format("averaged {} with {} peers in {:.3f} s (group found in {:.3f} s)", what, result->group.size(),
                         to_seconds(result->allreduce), to_seconds(result->matchmaking)));
  return {Outcome::Kind::averaged, std::move(*result)};
}

void Run::Impl::count_round(const RoundResult& result, bool of_gradients) {
  std::vector<PeerId> members;
  for (const auto& member : result.group)
    if (std::ranges::count(result.lost_senders, member.peer) == 0) members.push_back(member.peer);
  Scheduled& scheduled = of_gradients ? gradients : state;
  scheduled.count_group(result.group.size());
  if (scheduled.group_bits == 0)
    tracker.took_part(members);
  else
    tracker.met(members);  // trainers of other groups are no absentees
  const std::lock_guard lock(mutex);
  counters.bytes_sent += result.bytes_sent;
  counters.bytes_received += result.bytes_received;
  ++(of_gradients ? counters.grad_rounds : counters.state_rounds);
  if (!of_gradients) return;
  if (!result.agreed_codecs.empty()) ++counters.grad_rounds_agreed;
  auto& by_size = counters.rounds_by_group_size;
  if (by_size.size() <= result.group.size()) by_size.resize(result.group.size() + 1);
  ++by_size[result.group.size()];
}

// ---- Rounds that will not be used

/// Where a group has formed, its members must not wait: gradients take part with weight 0, parameters as they are. Both
/// are told before either is waited for, as its members may be waiting in the other one.
Task<void> Run::Impl::abandon_rounds() {
  const RoundsSuspended barred(*this);
  std::shared_ptr<Round> grad_round, state_round;
  if (gradients.has_group()) grad_round = std::exchange(gradients.round, nullptr);
  if (state.has_group()) state_round = std::exchange(state.round, nullptr);
  gradients.give_up();
  state.give_up();
  if (!grad_round && !state_round) co_return;
  auto change = co_await model.change();
  std::shared_ptr<averaging::TensorParts> sums, parameters;
  if (grad_round) {
    replica.cut_gradients();
    sums = (co_await replica.take_gradients(std::nullopt)).parts;
    grad_round->trigger(0, sums);
  }
  if (state_round) {
    parameters = co_await replica.state_parts(StateRound::live);
    state_round->trigger(options.auxiliary ? 0 : 1, parameters);
  }
  if (grad_round) (void)co_await grad_round->result();
  sums.reset();
  if (!state_round) co_return;
  const auto result = co_await state_round->result();
  if (!result) co_await parameters->finish();
  parameters.reset();
  co_await replica.finish_state(result.has_value());
}

/// \param expected  how many peers average, as far as is known; below 2: peers may, of which nothing is known
/// \param timeout   for the round
/// \param patience  for its group
Task<std::size_t> Run::Impl::average_parameters(std::size_t expected, Duration timeout, Duration patience) {
  StepReport ignored;
  (void)co_await finish_update(ignored);
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  begin_round(state, msgpack::Value(local_epoch), expected < 2 ? 0 : expected, timeout);
  const Outcome outcome = co_await finish_state_round({.patience = patience});
  // Those that stop together end together, also where one has missed the last epoch: it is then behind most others.
  if (ended && outcome.result) (void)co_await take_epoch_of(outcome, (outcome.result->group.size() - 1) / 2 + 1);
  co_return outcome.group();
}

}  // namespace cohive::train
