#include "catching_up.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "exchanges/parameter_greeting.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {
namespace {

constexpr Duration kCopyPatience = 10s;  // for a copy of the state; a newcomer had better ask another donor then
constexpr Duration kFirstRetry = 500ms, kLastRetry = 8s;  // of a failed download
constexpr std::uint64_t kRoundsToFollow = 3;              // of the state, before another download is tried
constexpr double kSlowShare = 0.25;                       // of an epoch, for a download
constexpr int kMostTries = 3;         // to join a run whose state nobody shares; it may have ended a moment ago
constexpr int kMostFruitless = 5;     // downloads in a row that do not bring this peer to where others claim to be
constexpr std::size_t kCompared = 3;  // peers that are asked whether they hold the same parameters
constexpr Duration kFirstDoubt = 30s, kLongestDoubt = 15min;  // pauses between downloads that are to prove claims
constexpr std::size_t kKnownDonors = 8;  // trainers that are asked for their state, whatever the DHT says
constexpr std::uint64_t kNearEpochs = 16, kNearShare = 16;  // apart: donors that may agree, at least and of all epochs
constexpr std::uint64_t kLead = 2;                          // epochs that a donor may be ahead of all reports
constexpr Duration kBorneOutTime = 5s;                      // that reports may be behind a donor whose epochs are short
constexpr std::uint64_t kStateBytesPerValue = 32, kStateSlack = 64 << 20;

/// A state beyond this is not of our model: parameters, and what an optimizer keeps for each of them.
std::uint64_t most_state_bytes(const Replica& replica) {
  std::uint64_t values = 0;
  for (const auto* infos : {&replica.gradient_infos(), &replica.state_infos()})
    for (const auto& tensor : *infos) values += tensor.elements();
  return kStateBytesPerValue * values + kStateSlack;
}

/// Whether two states may be of one run at about one time. Epochs may be short, and some pass while donors are asked.
bool are_near(const msgpack::Value& one, const msgpack::Value& other) {
  const auto a = epoch_of(one), b = epoch_of(other);
  if (!a || !b) return a.has_value() == b.has_value();
  const auto [low, high] = std::minmax(*a, *b);
  return high - low <= std::max<std::uint64_t>(kNearEpochs, high / kNearShare);
}

}  // namespace

CatchingUp::CatchingUp(RunContext& run, RunRounds& rounds, Epochs& epochs)
    : run_(run), rounds_(rounds), epochs_(epochs), retry_(kFirstRetry), known_(kFirstDoubt, kLongestDoubt) {
  not_joined_.emplace(rounds_);
}

void CatchingUp::start() {
  if (run_.options.auxiliary) not_joined_.reset();
  run_.tasks.spawn(prove_claims(*this), "claims of others");
  run_.tasks.spawn(compare_with_founders(*this), "parameters of other founders");
}

/// Whether the swarm's parameters are newer than ours. When the other peers are one epoch ahead, that is the epoch
/// whose end we are about to reach together, if we have a group with them; else they averaged without us. Peers that
/// delay the averaging of gradients announce the epoch before there is a group: then it is enough to look for one now.
bool CatchingUp::out_of_sync(const GlobalProgress& global) const {
  if (run_.options.auxiliary || global.epoch <= run_.counts.epoch()) return false;
  if (global.epoch > run_.counts.epoch() + 1) return true;
  const auto* const step = run_.of_step();
  return step && !step->has_group() && !step->may_be_apart() && !run_.options.delay_grad_averaging;
}

Task<bool> CatchingUp::catch_up_if_behind() {
  const WaitClock::Waiting waiting(run_.wait_clock, Wait::progress);
  StepReport ignored;
  (void)co_await epochs_.settle(ignored);
  co_await run_.tracker.refresh();
  if (run_.options.auxiliary) co_return false;
  if (!joined()) co_return co_await join();
  if (!proof_ && run_.tracker.snapshot().epoch <= run_.counts.epoch()) co_return false;
  co_return co_await catch_up();
}

Task<bool> CatchingUp::catch_up() {
  run_.wait_clock.turn_to(Wait::download);
  const RunRounds::Suspended suspended(rounds_);
  bool loaded = co_await follow_this_round(), none_shared = false;
  if (!loaded) {
    co_await rounds_.abandon();
    const auto state = co_await load_state();
    loaded = state.has_value();
    none_shared = !loaded && state.error() == averaging::Errc::no_donor;
    if (none_shared && rounds_.follows_others() && may_follow(run_.tracker.snapshot()))
      loaded = co_await follow_next_round();
  }
  co_await epochs_.drop_batches();
  rounds_.tried_to_catch_up(run_.counts.epoch(), none_shared && !loaded);
  if (!run_.ended) loaded ? run_.tracker.begin_anew(run_.counts.epoch()) : run_.tracker.report(run_.counts.epoch(), 0);
  if (loaded && !out_of_sync(run_.tracker.snapshot())) {
    fruitless_ = 0;
  } else if (++fruitless_ >= kMostFruitless) {
    log::warn("train", "no state brings this peer to epoch {}, where others claim to be: training on at epoch {}",
              run_.tracker.snapshot().epoch, run_.counts.epoch());
    fruitless_ = 0;
    run_.tracker.doubt_claims_above(run_.counts.epoch() + 1);
  }
  if (loaded)
    retry_ = kFirstRetry;
  else
    co_await wait_after_failure();
  co_return loaded;
}

Task<void> CatchingUp::wait_after_failure() {
  run_.wait_clock.turn_to(Wait::retry);
  co_await run_.runtime.sleep_for(retry_);
  retry_ = std::min(retry_ * 2, kLastRetry);
}

// ---- Joining

void CatchingUp::begin_or_join() {
  if (!run_.tracker.looked()) return;
  if (!run_.tracker.others_began()) return has_joined();
  run_.counts.demand();
}

Task<bool> CatchingUp::join() {
  if (!run_.tracker.looked()) co_return false;  // the DHT does not answer yet
  run_.wait_clock.turn_to(Wait::download);
  std::uint64_t epoch = 0;
  const auto others = run_.tracker.trainers();
  for (const auto& other : others) epoch = std::max(epoch, other.epoch);
  const bool newcomer = run_.tracker.others_began() && !others.empty() && epoch >= run_.counts.epoch();
  std::optional<bool> same;
  if (newcomer && epoch == run_.counts.epoch()) same = co_await holds_what_others_hold();
  if (!newcomer || same == true) {
    if (!others.empty() && epoch + kLead < run_.counts.epoch())
      log::warn(
          "train",
          "others report for run {}, at epoch {} at most, and this peer goes on from epoch {}: those that have "
          "averaged with one another do not take its state. Start all of them from the newest checkpoint, or this "
          "one without",
          run_.options.run_id, epoch, run_.counts.epoch());
    const std::uint64_t most = run_.tracker.epoch_of_most();
    if (run_.tracker.others_began() && most > run_.counts.epoch()) {
      log::warn("train",
                "clients report epoch {} of run {}, and share no state: the parameters of this peer, of epoch {}, "
                "count for nothing beside theirs until a round has given it those. Start it from the newest "
                "checkpoint, if there is one",
                most, run_.options.run_id, run_.counts.epoch());
      rounds_.follow_others();
    }
    has_joined();
    co_return false;
  }
  const RunRounds::Suspended suspended(rounds_);
  co_await rounds_.abandon();
  const auto loaded = co_await load_state();
  if (loaded) {
    log::info("train", "joined run {}, which others have begun: their state of epoch {} has taken the place of ours",
              run_.options.run_id, run_.counts.epoch());
    co_await epochs_.drop_batches();
    has_joined();
    founder_ = false;
    run_.tracker.begin_anew(run_.counts.epoch());
    retry_ = kFirstRetry;
    co_return true;
  }
  co_await epochs_.drop_batches();
  // Trainers that were killed a moment ago still report, and so may some that never were.
  const bool none_shared = loaded.error() == averaging::Errc::no_donor;
  const bool at_once = epoch == run_.counts.epoch() && !same;  // nothing says that there is a state to wait for
  if (none_shared && (at_once || ++fruitless_ >= kMostTries)) {
    log::warn("train", "others report for run {}, and none of them shares a state: going on with our own of epoch {}",
              run_.options.run_id, run_.counts.epoch());
    if (epoch > run_.counts.epoch()) rounds_.follow_others();
    fruitless_ = 0;
    has_joined();
    co_return false;
  }
  co_await wait_after_failure();
  co_return false;
}

/// From now on this peer has a state of the run.
void CatchingUp::has_joined() {
  not_joined_.reset();
  began_at_ = run_.counts.epoch();
  run_.sharing.set_async_provider([&run = run_] { return run.copy_state(kCopyPatience); });
  run_.sharing.set_priority(static_cast<double>(run_.counts.epoch()));
}

/// Equal epochs do not mean equal states.
Task<std::optional<bool>> CatchingUp::holds_what_others_hold() {
  const auto others = run_.tracker.trainers();
  for (std::size_t i = 0; i < std::min(others.size(), kCompared); ++i)
    if (others[i].epoch == run_.counts.epoch())
      if (const auto same = co_await holds_the_same(others[i].peer)) co_return same;
  co_return std::nullopt;
}

/// Whether a peer has the same parameters; nothing when that cannot be told, or it is in another epoch.
Task<std::optional<bool>> CatchingUp::holds_the_same(PeerId peer) {
  auto ours = co_await run_.copy_state(kCopyPatience);
  if (!ours || run_.options.use_local_updates) co_return std::nullopt;
  const auto epoch = epoch_of(ours->metadata);
  const auto compared = co_await run_.sharing.compare(peer, std::move(*ours), run_.replica.gradient_infos().size());
  if (!compared) {
    log::debug("train", "{} does not tell whether it has the same parameters: {}", peer, compared.error());
    co_return std::nullopt;
  }
  co_return epoch_of(compared->metadata) == epoch ? std::optional(compared->equal) : std::nullopt;
}

/// Tells founders of one run that begin with different parameters. Each of them sees the other one.
Task<void> CatchingUp::compare_with_founders(CatchingUp& self) {
  for (std::size_t tries = 0;
       tries < kCompared && !self.run_.options.use_local_updates && !self.run_.options.auxiliary;) {
    co_await self.run_.tracker.news();
    if (!self.joined()) continue;
    if (!self.founder_ || self.run_.counts.epoch() != self.began_at_) co_return;
    const auto others = self.run_.tracker.trainers();
    const auto other = std::ranges::find(others, self.run_.counts.epoch(), &ProgressTracker::Trainer::epoch);
    if (other == others.end()) continue;
    ++tries;
    const PeerId peer = other->peer;
    const auto same = co_await self.holds_the_same(peer);
    if (!same) continue;
    if (!*same)
      log::warn("train",
                "{} has begun run {} with other parameters than this peer, at the same time: they will be "
                "averaged. Give all trainers the same checkpoint or seed, or start one of them first",
                peer, self.run_.options.run_id);
    co_return;
  }
}

/// Strangers can claim any epoch, and share a state of it. What peers say that this one has averaged with is believed
/// more; their reports may come later than a state.
/// \param by  what one of them claims, or what most of them have reached
Task<bool> CatchingUp::is_borne_out(std::uint64_t epoch, std::uint64_t GlobalProgress::* by) {
  const Deadline end = run_.runtime.after(kBorneOutTime);
  co_await run_.tracker.refresh();
  for (;;) {
    const GlobalProgress global = run_.tracker.snapshot();
    if (!global.in_touch || epoch <= std::max(global.*by, run_.counts.epoch()) + kLead) co_return true;
    if (run_.runtime.now() >= end.at()) co_return false;
    co_await run_.tracker.news(end);
  }
}

/// \param least_epoch  of the donors that are asked
/// \param last         see averaging::DownloadOptions
Task<Result<averaging::DownloadedState>> CatchingUp::download(std::uint64_t least_epoch,
                                                              std::vector<codec::Tensor> last) {
  const GlobalProgress global = run_.tracker.snapshot();
  averaging::DownloadOptions how;
  how.limit = run_.options.load_state_timeout;
  how.on_progress = run_.options.on_download;
  how.max_bytes = most_state_bytes(run_.replica) + run_.kept.elements() * sizeof(float);
  how.without = std::exchange(useless_donors_, {});
  how.asleep = run_.tracker.absent();
  // Whoever holds the key of the declarations in the DHT could keep them from a peer that has fallen behind.
  const std::uint64_t least = std::max(least_epoch, run_.counts.epoch() + (joined() ? 1 : 0));
  if (known_.is_over(run_.runtime.now()))
    for (const auto& trainer : run_.tracker.trainers())
      if (how.known.size() < kKnownDonors && trainer.epoch >= least && run_.dht.host().connected(trainer.peer))
        how.known.emplace_back(trainer.peer, static_cast<double>(trainer.epoch));
  how.last = std::move(last);
  how.alike = are_near;
  if (global.in_touch) how.max_priority = static_cast<double>(std::max(global.claimed, run_.counts.epoch()) + kLead);
  how.min_priority = static_cast<double>(least_epoch);
  const bool asks_known = !how.known.empty();
  auto state = co_await run_.sharing.download(std::move(how));
  if (!state) {
    if (asks_known) known_.begin(run_.runtime.now());
    co_return state.error();
  }
  known_.forget();
  const auto epoch = epoch_of(state->metadata);
  if (!epoch || *epoch > kMostEpochs)
    co_return Error(averaging::Errc::bad_state, state->donor, "no epoch of a run in its metadata");
  if (co_await is_borne_out(*epoch, &GlobalProgress::claimed)) co_return state;
  useless_donors_.push_back(state->donor);
  const std::string what = "its epoch " + std::to_string(*epoch);
  co_return Error(averaging::Errc::bad_state, state->donor,
                  what + " is beyond that of all peers that this one has averaged with");
}

/// Whether this peer was part of the run, and lacks only what the exchanges keep.
bool CatchingUp::lacks_kept_alone() const {
  const auto stats = run_.counts.stats();
  return joined() && !proof_ && stats.state_rounds + stats.state_downloads > 0 &&
         std::ranges::all_of(run_.exchanges, [](const auto& one) { return one->exchange().lacks_kept_alone(); });
}

/// Takes a state as large as the model with its statistics into memory, beside them. Gradients belong to the model that
/// goes: whoever calls it drops the batches afterwards.
Task<Result<>> CatchingUp::load_state() {
  run_.replica.cut_gradients();
  co_await run_.replica.drop_gradients();
  co_await run_.replica.free_next();
  Result<averaging::DownloadedState> downloaded = Error(averaging::Errc::no_donor);
  const TimePoint began = run_.runtime.now();
  const bool renews = lacks_kept_alone();
  std::vector<codec::Tensor> own;
  if (renews) own = co_await run_.kept.copies(run_.runtime);
  if (proving_) std::exchange(proving_, nullptr)->drop();
  if (proof_ && epoch_of(proof_->metadata) >= run_.tracker.snapshot().epoch)
    downloaded = std::move(*proof_);
  else
    downloaded = co_await download(0, std::move(own));
  if (!proof_ && downloaded) downloading_ = run_.runtime.now() - began;
  proof_.reset();
  if (!downloaded) {
    run_.history.download_failed(downloaded.error());
    co_return downloaded.error();
  }
  const PeerId donor = downloaded->donor;
  const std::uint64_t bytes = downloaded->bytes;
  const std::size_t donors = downloaded->contributed.size();
  std::uint64_t epoch = 0;
  {
    auto values = co_await run_.kept.split(run_.runtime, *downloaded);
    Result<std::uint64_t> loaded = Error(averaging::Errc::bad_state);
    if (!values)
      loaded = values.error();
    else if (renews)
      loaded = co_await renew_kept(*downloaded, std::move(*values));
    else
      loaded = co_await replace_model(std::move(*downloaded), std::move(*values), Source::peer);
    if (!loaded) {
      run_.history.download_failed(loaded.error().with_context("downloaded state refused"));
      useless_donors_.push_back(donor);
      co_return loaded.error();
    }
    epoch = *loaded;
  }
  for (const auto& scheduled : run_.exchanges)
    co_await scheduled->exchange().download(run_.runtime.after(run_.options.load_state_timeout));
  run_.tracker.met({donor});
  co_await run_.tracker.refresh();
  const GlobalProgress global = run_.tracker.snapshot();
  if (run_.fit) run_.fit->downloaded(to_seconds(run_.runtime.now() - began), run_.target() / global.samples_per_second);
  // The donor may have been about to enter the epoch that other peers announced. Of outer steps the next round tells
  // whether any were missed: the epochs of a trainer alone have none.
  const bool is_near = epoch + 1 == global.epoch || (run_.options.outer_optimizer && global.epoch > epoch);
  epochs_.enter(is_near ? global.epoch : epoch);
  run_.replica.enter_epoch(run_.counts.epoch());
  run_.sharing.set_priority(static_cast<double>(epoch));
  run_.counts.note([](TrainingStats& stats) { ++stats.state_downloads; });
  run_.metrics.downloads.increment();
  log::info("train", "downloaded the state of epoch {} from {} ({} bytes, {} donors)", epoch, donor, bytes, donors);
  co_await follow_the_run();
  co_return ok();
}

Task<Result<std::uint64_t>> CatchingUp::replace_model(averaging::DownloadedState state,
                                                      std::vector<codec::Tensor> values, Source source) {
  auto change = co_await run_.model.change();
  if (source == Source::peer)
    for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().replacing();
  const std::uint64_t least = source == Source::peer ? run_.model.epoch() : 0;  // a user may wish to go back
  const auto loaded = co_await run_.replica.load(std::move(state), least);
  if (!loaded) co_return loaded;
  (void)rounds_.take_followed();
  for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().reset();
  co_await write_kept(std::move(values));
  if (source == Source::peer)
    for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().loaded();
  run_.model.set_epoch(*loaded);
  co_return loaded;
}

/// What the exchanges keep becomes that of another state, if it has any.
Task<void> CatchingUp::write_kept(std::vector<codec::Tensor> values) {
  if (values.empty()) co_return;
  co_await run_.kept.write(run_.runtime, std::move(values));
  if (run_.fit) run_.fit->restored();
}

/// The model stays, with all that this peer has come to.
Task<Result<std::uint64_t>> CatchingUp::renew_kept(const averaging::DownloadedState& state,
                                                   std::vector<codec::Tensor> values) {
  auto change = co_await run_.model.change();
  const auto epoch = epoch_to_load(state, run_.model.epoch());
  if (!epoch) co_return epoch;
  for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().renewing();
  co_await write_kept(std::move(values));
  for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().loaded();
  run_.model.set_epoch(*epoch);
  co_return epoch;
}

/// A state that was on its way for some epochs is old: the next round of the parameters has the newest ones.
Task<void> CatchingUp::follow_the_run() {
  const std::uint64_t patience = kRoundsToFollow * static_cast<std::uint64_t>(run_.options.average_state_every);
  const std::uint64_t last = run_.tracker.snapshot().epoch + patience;
  const Deadline end = run_.runtime.after(run_.options.load_state_timeout);
  while (!run_.ended && run_.tracker.snapshot().epoch <= last && run_.runtime.now() < end.at())
    if (co_await follow_next_round()) break;
}

/// Who has missed only the group of the last gradients is with the others again after the round of the parameters that
/// follows them. Where a download takes as long as an epoch, it would miss the next group, too, and so on.
Task<bool> CatchingUp::follow_this_round() {
  Scheduled* const parameters = run_.of_parameters();
  const std::uint64_t next = run_.counts.epoch() + 1;
  const GlobalProgress global = run_.tracker.snapshot();
  const std::uint64_t averaged = run_.counts.stats().grad_rounds;
  if (std::exchange(averaged_, averaged) != averaged) followed_ = 0;
  if (!parameters || !run_.of_step() || proof_ || run_.ended || followed_ >= kRoundsToFollow || global.expected < 2 ||
      global.epoch > next || !parameters->exchange().due(next) || !downloads_are_slow(global))
    co_return false;
  ++followed_;
  if (!parameters->round()) rounds_.begin(*parameters, next, global.expected, run_.options.averaging_timeout);
  co_return co_await follow(*parameters, {.epoch = next, .patience = run_.options.matchmaking_time});
}

/// Tells whether a good part of an epoch passed until the last state had come.
bool CatchingUp::downloads_are_slow(const GlobalProgress& global) const {
  const double epoch = run_.target() / std::max(global.samples_per_second, 1e-9);
  return to_seconds(downloading_) > epoch * kSlowShare;
}

/// Takes part in a round of the parameters that has begun with weight 0, which makes ours those of its members.
Task<bool> CatchingUp::follow(Scheduled& parameters, Search search) {
  co_return co_await take_epoch_of(
      co_await rounds_.exchange(parameters, {Occasion::following, run_.counts.epoch()}, search), 1);
}

bool CatchingUp::may_follow(const GlobalProgress& global) const {
  return run_.of_parameters() && global.expected >= 2 && global.epoch > run_.counts.epoch() + 1;
}

Task<bool> CatchingUp::follow_next_round() {
  const GlobalProgress global = run_.tracker.snapshot();
  if (!may_follow(global)) co_return true;
  Scheduled& parameters = *run_.of_parameters();
  rounds_.begin(parameters, run_.counts.epoch(), global.expected, run_.options.averaging_timeout);
  co_return co_await follow(parameters, {.patience = run_.options.averaging_timeout});
}

Task<bool> CatchingUp::go_on_from_followed() {
  const Exchanged followed{.round = rounds_.take_followed()};
  if (!co_await take_epoch_of(followed, 1)) co_return false;
  co_await epochs_.drop_batches();
  founder_ = false;
  run_.tracker.begin_anew(run_.counts.epoch());
  co_return true;
}

/// The parameters are those of a round of the state: this peer takes the epoch of the members that are ahead of it,
/// that of the middle one. A member can say any number; what most peers report that this one has averaged with bounds
/// it.
/// \param least  members that must be ahead
Task<bool> CatchingUp::take_epoch_of(const Exchanged& exchanged, std::size_t least) {
  if (!exchanged.round || exchanged.round->parts_failed > 0) co_return false;
  std::vector<std::uint64_t> ahead;
  for (const auto& member : exchanged.round->group)
    if (const auto theirs = ParameterGreeting::of(member).epoch;
        theirs && *theirs > run_.counts.epoch() && *theirs <= kMostEpochs)
      ahead.push_back(*theirs);
  if (ahead.size() < least) co_return false;
  std::ranges::sort(ahead);
  const std::uint64_t epoch = ahead[(ahead.size() - 1) / 2];
  if (!co_await is_borne_out(epoch, &GlobalProgress::epoch)) co_return false;
  run_.model.set_epoch(epoch);
  epochs_.take(epoch);
  run_.counts.note([](TrainingStats& stats) { ++stats.states_followed; });
  log::info("train", "took the parameters of epoch {} from a round of {} peers", epoch, exchanged.group());
  co_return true;
}

Task<void> CatchingUp::abandon_rounds() {
  const auto* const step = run_.of_step();
  const bool takes_sums = step && step->has_group();
  co_await rounds_.abandon();
  if (!takes_sums) co_return;
  co_await epochs_.drop_batches();
  run_.tracker.report(run_.counts.epoch(), 0);
}

Task<void> CatchingUp::restore(std::uint64_t epoch, std::function<void()> write) {
  const RunRounds::Suspended suspended(rounds_);
  co_await abandon_rounds();
  {
    auto change = co_await run_.model.change();
    co_await run_.runtime.offload(std::move(write));
    (void)rounds_.take_followed();
    for (const auto& scheduled : run_.exchanges) co_await scheduled->exchange().reset();
    run_.model.set_epoch(epoch);
  }
  co_await epochs_.drop_batches();
  epochs_.take(epoch);
  run_.tracker.report(epoch, 0);
}

/// A state of that epoch or later; nothing where this peer has begun to load one anyhow, for a donor sends each peer
/// one at a time, and whoever claims something may be slow.
Task<std::optional<Result<averaging::DownloadedState>>> CatchingUp::prove(std::uint64_t least_epoch) {
  Proving proving(run_.runtime, download(least_epoch), "a state that proves a claim");
  const auto ended = on_exit([this] { proving_ = nullptr; });
  proving_ = &proving;
  co_return co_await proving;
}

/// Downloads the state when others claim to be ahead, beside the training. If it is true, the trainer loads what has
/// come.
Task<void> CatchingUp::prove_claims(CatchingUp& self) {
  GrowingPause doubt(kFirstDoubt, kLongestDoubt);
  for (;;) {
    co_await self.run_.tracker.news();
    const GlobalProgress global = self.run_.tracker.snapshot();
    const std::uint64_t lead = global.in_touch ? 1 : 0;  // of two that have averaged, one may end the epoch first
    if (self.run_.options.auxiliary || self.run_.ended || !self.joined() || self.proof_ || self.rounds_.suspended() ||
        global.claimed <= std::max(global.epoch, self.run_.counts.epoch()) + lead ||
        !doubt.is_over(self.run_.runtime.now()))
      continue;
    log::info("train", "a peer claims epoch {}, and this one is at {}: downloading the state beside the training",
              global.claimed, self.run_.counts.epoch());
    // Most donors are where this peer is, and would be elected.
    auto proven = co_await self.prove(self.run_.counts.epoch() + lead + 1);
    if (!proven) continue;
    auto& state = *proven;
    if (state && *epoch_of(state->metadata) > self.run_.counts.epoch() + lead) {
      doubt.forget();
      self.proof_ = std::move(*state);
      self.run_.counts.demand();
      continue;
    }
    const Duration pause = doubt.begin(self.run_.runtime.now());
    log::info("train", "no state proves epoch {}, which a peer claims: claims are not looked into for {:.0f} s",
              global.claimed, to_seconds(pause));
  }
}

}  // namespace cohive::train
