// Peers that are new, or behind: they download the state of a peer that is not.
//
// A newcomer takes the state of a run that others have begun, also where it is in the same epoch: until it has, it is
// in no round, and shares no state. Of two trainers one is the first (ProgressTracker::others_began).
// Where epochs are shorter than a download, a downloaded state is old when it comes, and so would be the next one. So
// the peer joins the next round of the state with weight 0, and takes what its members have averaged.
// Claims of strangers are proven by a state that can be downloaded, while training goes on. There is one pause for all
// claims together, and it grows until one has been proven: claims cost nothing, downloads do.
#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "run_impl.hpp"
#include "train/detail/loaded_state.hpp"

namespace cohive::train {
namespace {

constexpr Duration kLastRetry = 8s;           // of a failed download
constexpr std::uint64_t kRoundsToFollow = 3;  // of the state, before another download is tried
constexpr int kMostTries = 3;                 // to join a run whose state nobody shares; it may have ended a moment ago
constexpr int kMostFruitless = 5;     // downloads in a row that do not bring this peer to where others claim to be
constexpr std::size_t kCompared = 3;  // peers that are asked whether they hold the same parameters
constexpr Duration kFirstDoubt = 30s, kLongestDoubt = 15min;  // pauses between downloads that are to prove claims
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

/// Whether the swarm's parameters are newer than ours. When the other peers are one epoch ahead, that is the epoch
/// whose end we are about to reach together, if we have a group with them; else they averaged without us. Peers that
/// delay the averaging of gradients announce the epoch before there is a group: then it is enough to look for one now.
bool Run::Impl::out_of_sync(const GlobalProgress& global) const {
  if (options.auxiliary || global.epoch <= local_epoch) return false;
  if (global.epoch > local_epoch + 1) return true;
  const auto* const step = of_step();
  return step && !step->has_group() && !step->may_be_apart() && !options.delay_grad_averaging;
}

Task<bool> Run::Impl::catch_up_if_behind() {
  const WaitClock::Waiting waiting(wait_clock, Wait::progress);
  StepReport ignored;
  (void)co_await finish_update(ignored);
  co_await tracker.refresh();
  if (options.auxiliary) co_return false;
  if (!joined) co_return co_await join();
  if (!proof && tracker.snapshot().epoch <= local_epoch) co_return false;
  co_return co_await catch_up();
}

/// Loads the swarm's state; after a failure it makes the trainer wait, for its gradients would be of no use.
Task<bool> Run::Impl::catch_up() {
  wait_clock.turn_to(Wait::download);
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  const bool loaded = (co_await load_state()).has_value();
  co_await drop_batches();
  if (!ended) loaded ? tracker.begin_anew(local_epoch) : tracker.report(local_epoch, 0);
  if (loaded && !out_of_sync(tracker.snapshot())) {
    fruitless = 0;
  } else if (++fruitless >= kMostFruitless) {
    log::warn("train", "no state brings this peer to epoch {}, where others claim to be: training on at epoch {}",
              tracker.snapshot().epoch, local_epoch);
    fruitless = 0;
    tracker.doubt_claims_above(local_epoch + 1);
  }
  if (loaded)
    retry = kFirstRetry;
  else
    co_await wait_after_failure();
  co_return loaded;
}

Task<void> Run::Impl::wait_after_failure() {
  wait_clock.turn_to(Wait::retry);
  co_await runtime.sleep_for(retry);
  retry = std::min(retry * 2, kLastRetry);
}

// ---- Joining

/// Takes the state of the run at the start of this peer, if others have begun it. One try, and a pause after a failure.
Task<bool> Run::Impl::join() {
  if (!tracker.looked()) co_return false;  // the DHT does not answer yet
  wait_clock.turn_to(Wait::download);
  std::uint64_t epoch = 0;
  const auto others = tracker.trainers();
  for (const auto& other : others) epoch = std::max(epoch, other.epoch);
  const bool newcomer = tracker.others_began() && !others.empty() && epoch >= local_epoch;
  std::optional<bool> same;
  if (newcomer && epoch == local_epoch) same = co_await holds_what_others_hold();
  if (!newcomer || same == true) {
    has_joined();
    co_return false;
  }
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  const auto loaded = co_await load_state();
  if (loaded) {
    log::info("train", "joined run {}, which others have begun: their state of epoch {} has taken the place of ours",
              options.run_id, local_epoch);
    co_await drop_batches();
    has_joined();
    founder = false;
    tracker.begin_anew(local_epoch);
    retry = kFirstRetry;
    co_return true;
  }
  // Trainers that were killed a moment ago still report, and so may some that never were.
  const bool none_shared = loaded.error() == averaging::Errc::no_donor;
  const bool at_once = epoch == local_epoch && !same;  // nothing says that there is a state to wait for
  if (none_shared && (at_once || ++fruitless >= kMostTries)) {
    log::warn("train", "others report for run {}, and none of them shares a state: going on with our own of epoch {}",
              options.run_id, local_epoch);
    fruitless = 0;
    has_joined();
    co_return false;
  }
  co_await drop_batches();
  co_await wait_after_failure();
  co_return false;
}

/// From now on this peer has a state of the run.
void Run::Impl::has_joined() {
  joined = true;
  began_at = local_epoch;
  sharing.set_async_provider([this] { return copy_state(kCopyPatience); });
  sharing.set_priority(static_cast<double>(local_epoch));
}

/// Equal epochs do not mean equal states.
Task<std::optional<bool>> Run::Impl::holds_what_others_hold() {
  const auto others = tracker.trainers();
  for (std::size_t i = 0; i < std::min(others.size(), kCompared); ++i)
    if (others[i].epoch == local_epoch)
      if (const auto same = co_await holds_the_same(others[i].peer)) co_return same;
  co_return std::nullopt;
}

/// Whether a peer has the same parameters; nothing when that cannot be told, or it is in another epoch.
Task<std::optional<bool>> Run::Impl::holds_the_same(PeerId peer) {
  auto ours = co_await copy_state(kCopyPatience);
  if (!ours || options.use_local_updates) co_return std::nullopt;
  const auto epoch = epoch_of(ours->metadata);
  const auto compared = co_await sharing.compare(peer, std::move(*ours), replica.gradient_infos().size());
  if (!compared) {
    log::debug("train", "{} does not tell whether it has the same parameters: {}", peer, compared.error());
    co_return std::nullopt;
  }
  co_return epoch_of(compared->metadata) == epoch ? std::optional(compared->equal) : std::nullopt;
}

/// Tells founders of one run that begin with different parameters. Each of them sees the other one.
Task<void> Run::Impl::compare_with_founders(Impl& self) {
  for (std::size_t tries = 0; tries < kCompared && !self.options.use_local_updates && !self.options.auxiliary;) {
    co_await self.tracker.news();
    if (!self.joined) continue;
    if (!self.founder || self.local_epoch != self.began_at) co_return;
    const auto others = self.tracker.trainers();
    const auto other = std::ranges::find(others, self.local_epoch, &ProgressTracker::Trainer::epoch);
    if (other == others.end()) continue;
    ++tries;
    const PeerId peer = other->peer;
    const auto same = co_await self.holds_the_same(peer);
    if (!same) continue;
    if (!*same)
      log::warn("train",
                "{} has begun run {} with other parameters than this peer, at the same time: they will be "
                "averaged. Give all trainers the same checkpoint or seed, or start one of them first",
                peer, self.options.run_id);
    co_return;
  }
}

/// The batches of this epoch began from parameters that are not ours any more.
Task<void> Run::Impl::drop_batches() {
  replica.cut_gradients();
  co_await replica.drop_gradients();
  (void)take_batches();
}

/// The parameters are those of `epoch`, whatever came before.
void Run::Impl::take_epoch(std::uint64_t epoch) {
  enter_epoch(epoch);
  replica.enter_epoch(epoch);
  sharing.set_priority(static_cast<double>(epoch));
}

/// Strangers can claim any epoch, and share a state of it. What peers say that this one has averaged with is believed
/// more; their reports may come later than a state.
/// \param by  what one of them claims, or what most of them have reached
Task<bool> Run::Impl::is_borne_out(std::uint64_t epoch, std::uint64_t GlobalProgress::* by) {
  const Deadline end = runtime.after(kBorneOutTime);
  co_await tracker.refresh();
  for (;;) {
    const GlobalProgress global = tracker.snapshot();
    if (global.met == 0 || epoch <= std::max(global.*by, local_epoch) + kLead) co_return true;
    if (runtime.now() >= end.at()) co_return false;
    co_await tracker.news(end);
  }
}

/// \param least_epoch  of the donors that are asked
Task<Result<averaging::DownloadedState>> Run::Impl::download(std::uint64_t least_epoch) {
  const GlobalProgress global = tracker.snapshot();
  averaging::DownloadOptions how;
  how.limit = options.load_state_timeout;
  how.on_progress = options.on_download;
  how.max_bytes = most_state_bytes(replica) + kept.elements() * sizeof(float);
  how.without = std::exchange(useless_donors, {});
  how.alike = are_near;
  if (global.met > 0) how.max_priority = static_cast<double>(std::max(global.claimed, local_epoch) + kLead);
  how.min_priority = static_cast<double>(least_epoch);
  auto state = co_await sharing.download(std::move(how));
  if (!state) co_return state.error();
  const auto epoch = epoch_of(state->metadata);
  if (!epoch || *epoch > kMostEpochs)
    co_return Error(averaging::Errc::bad_state, state->donor, "no epoch of a run in its metadata");
  if (co_await is_borne_out(*epoch, &GlobalProgress::claimed)) co_return state;
  useless_donors.push_back(state->donor);
  const std::string what = "its epoch " + std::to_string(*epoch);
  co_return Error(averaging::Errc::bad_state, state->donor,
                  what + " is beyond that of all peers that this one has averaged with");
}

Task<Result<>> Run::Impl::load_state() {
  Result<averaging::DownloadedState> downloaded = Error(averaging::Errc::no_donor);
  if (proof && epoch_of(proof->metadata) >= tracker.snapshot().epoch)
    downloaded = std::move(*proof);
  else
    downloaded = co_await download();
  proof.reset();
  if (!downloaded) {
    history.download_failed(downloaded.error());
    co_return downloaded.error();
  }
  const PeerId donor = downloaded->donor;
  const std::uint64_t bytes = downloaded->bytes;
  const std::size_t donors = downloaded->contributed.size();
  std::uint64_t epoch = 0;
  {
    auto values = co_await kept.split(runtime, *downloaded);
    const auto loaded = values ? co_await replace_model(std::move(*downloaded), std::move(*values), Source::peer)
                               : Result<std::uint64_t>(values.error());
    if (!loaded) {
      history.download_failed(loaded.error().with_context("downloaded state refused"));
      useless_donors.push_back(donor);
      co_return loaded.error();
    }
    epoch = *loaded;
  }
  for (const auto& scheduled : exchanges)
    co_await scheduled->exchange().download(runtime.after(options.load_state_timeout));
  tracker.met({donor});
  co_await tracker.refresh();
  const GlobalProgress global = tracker.snapshot();
  // The donor may have been about to enter the epoch that other peers announced.
  enter_epoch(epoch + 1 == global.epoch ? global.epoch : epoch);
  replica.enter_epoch(local_epoch);
  sharing.set_priority(static_cast<double>(epoch));
  {
    const std::lock_guard lock(mutex);
    ++counters.state_downloads;
  }
  metrics.downloads.increment();
  log::info("train", "downloaded the state of epoch {} from {} ({} bytes, {} donors)", epoch, donor, bytes, donors);
  co_await follow_the_run();
  co_return ok();
}

/// Exchanges begin anew, or go on with the values that they keep. Nothing is changed on an error.
Task<Result<std::uint64_t>> Run::Impl::replace_model(averaging::DownloadedState state,
                                                     std::vector<codec::Tensor> values, Source source) {
  auto change = co_await model.change();
  if (source == Source::peer)
    for (const auto& scheduled : exchanges) co_await scheduled->exchange().replacing();
  const auto loaded = co_await replica.load(std::move(state), model.epoch());
  if (!loaded) co_return loaded;
  for (const auto& scheduled : exchanges) co_await scheduled->exchange().reset();
  co_await kept.write(runtime, std::move(values));
  if (source == Source::peer)
    for (const auto& scheduled : exchanges) co_await scheduled->exchange().loaded();
  model.set_epoch(*loaded);
  co_return loaded;
}

/// A state that was on its way for some epochs is old: the next round of the parameters has the newest ones.
Task<void> Run::Impl::follow_the_run() {
  const std::uint64_t patience = kRoundsToFollow * static_cast<std::uint64_t>(options.average_state_every);
  const std::uint64_t last = tracker.snapshot().epoch + patience;
  const Deadline end = runtime.after(options.load_state_timeout);
  while (!ended && tracker.snapshot().epoch <= last && runtime.now() < end.at())
    if (co_await follow_round()) break;
}

/// Takes part in the next round of the parameters with weight 0, which makes ours those of its members.
Task<bool> Run::Impl::follow_round() {
  Scheduled* const parameters = of_parameters();
  if (!parameters) co_return true;
  const GlobalProgress global = tracker.snapshot();
  if (global.expected < 2 || global.epoch <= local_epoch + 1) co_return true;
  begin_round(*parameters, local_epoch, global.expected, options.averaging_timeout);
  co_return co_await take_epoch_of(
      co_await exchange(*parameters, {Occasion::following, local_epoch}, {.patience = options.averaging_timeout}), 1);
}

/// The parameters are those of a round of the state: this peer takes the epoch of the members that are ahead of it,
/// that of the middle one. A member can say any number; what most peers report that this one has averaged with bounds
/// it.
/// \param least  members that must be ahead
Task<bool> Run::Impl::take_epoch_of(const Exchanged& exchanged, std::size_t least) {
  if (!exchanged.round || exchanged.round->parts_failed > 0) co_return false;
  std::vector<std::uint64_t> ahead;
  for (const auto& member : exchanged.round->group)
    if (const auto theirs = member.data.as_uint(); theirs && *theirs > local_epoch && *theirs <= kMostEpochs)
      ahead.push_back(*theirs);
  if (ahead.size() < least) co_return false;
  std::ranges::sort(ahead);
  const std::uint64_t epoch = ahead[(ahead.size() - 1) / 2];
  if (!co_await is_borne_out(epoch, &GlobalProgress::epoch)) co_return false;
  model.set_epoch(epoch);
  take_epoch(epoch);
  {
    const std::lock_guard lock(mutex);
    ++counters.states_followed;
  }
  log::info("train", "took the parameters of epoch {} from a round of {} peers", epoch, exchanged.group());
  co_return true;
}

Task<void> Run::Impl::restore(std::uint64_t epoch, std::function<void()> write) {
  const RoundsSuspended barred(*this);
  co_await abandon_rounds();
  {
    auto change = co_await model.change();
    co_await runtime.offload(std::move(write));
    for (const auto& scheduled : exchanges) co_await scheduled->exchange().reset();
    model.set_epoch(epoch);
  }
  co_await drop_batches();
  take_epoch(epoch);
  tracker.report(epoch, 0);
}

/// Downloads the state when others claim to be ahead, beside the training. If it is true, the trainer loads what has
/// come.
Task<void> Run::Impl::prove_claims(Impl& self) {
  TimePoint next{};
  Duration doubt = kFirstDoubt;
  for (;;) {
    co_await self.tracker.news();
    const GlobalProgress global = self.tracker.snapshot();
    const std::uint64_t lead = global.met > 0 ? 1 : 0;  // of two that have averaged, one may end the epoch first
    if (self.options.auxiliary || self.ended || !self.joined || self.proof || self.rounds_barred > 0 ||
        global.claimed <= std::max(global.epoch, self.local_epoch) + lead || self.runtime.now() < next)
      continue;
    log::info("train", "a peer claims epoch {}, and this one is at {}: downloading the state beside the training",
              global.claimed, self.local_epoch);
    // Most donors are where this peer is, and would be elected.
    auto state = co_await self.download(self.local_epoch + lead + 1);
    if (state && *epoch_of(state->metadata) > self.local_epoch + lead) {
      doubt = kFirstDoubt;
      self.proof = std::move(*state);
      const std::lock_guard lock(self.mutex);
      self.demanded = true;
      continue;
    }
    log::info("train", "no state proves epoch {}, which a peer claims: claims are not looked into for {:.0f} s",
              global.claimed, to_seconds(doubt));
    next = self.runtime.now() + doubt;
    doubt = std::min(doubt * 2, kLongestDoubt);
  }
}

}  // namespace cohive::train
