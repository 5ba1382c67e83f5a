// Peers that are new, or behind: they download the state of a peer that is not.
//
// Where epochs are shorter than a download, a downloaded state is old when it comes, and so would be the next one. So
// the peer joins the next round of the state with weight 0, and takes what its members have averaged.
// An epoch that a single peer claims is proven by a state that can be downloaded, while training goes on.
#include "checkpoint_content.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "run_impl.hpp"

namespace cohive::train {
namespace {

constexpr Duration kLastRetry = 8s;  // of a failed download
constexpr int kRoundsToFollow = 3;   // before another download is tried
constexpr std::uint64_t kStateBytesPerValue = 32, kStateSlack = 64 << 20;

/// A state beyond this is not of our model: parameters, and what an optimizer keeps for each of them.
std::uint64_t most_state_bytes(const Replica& replica) {
  std::uint64_t values = 0;
  for (const auto* infos : {&replica.gradient_infos(), &replica.state_infos()})
    for (const auto& tensor : *infos) values += tensor.elements();
  return kStateBytesPerValue * values + kStateSlack;
}

}  // namespace

/// Whether the swarm's parameters are newer than ours. When the other peers are one epoch ahead, that is the epoch
/// whose end we are about to reach together, if we have a group with them; else they averaged without us. Peers that
/// delay the averaging of gradients announce the epoch before there is a group: then it is enough to look for one now.
bool Run::Impl::out_of_sync(const GlobalProgress& global) const {
  if (options.auxiliary || global.epoch <= local_epoch) return false;
  if (!checked_start || global.epoch > local_epoch + 1) return true;
  const bool together = gradients.has_group() || gradients.may_be_apart() || options.delay_grad_averaging;
  return !options.use_local_updates && !together;
}

Task<bool> Run::Impl::catch_up_if_behind() {
  const WaitClock::Waiting waiting(wait_clock, Wait::progress);
  StepReport ignored;
  (void)co_await finish_update(ignored);
  co_await tracker.refresh();
  const GlobalProgress global = tracker.snapshot();
  if (!options.auxiliary && std::max(global.epoch, global.claimed) > local_epoch) co_return co_await catch_up();
  checked_start = true;
  co_return false;
}

/// Loads the swarm's state; after a failure it makes the trainer wait, for its gradients would be of no use.
Task<bool> Run::Impl::catch_up() {
  wait_clock.turn_to(Wait::download);
  const RoundsBarred barred(*this);
  co_await abandon_rounds();
  const bool loaded = co_await load_state();
  co_await drop_batches();
  if (!ended) tracker.report(local_epoch, 0);
  if (loaded) {
    checked_start = true;
    retry = kFirstRetry;
  } else {
    wait_clock.turn_to(Wait::retry);
    co_await runtime.sleep_for(retry);
    retry = std::min(retry * 2, kLastRetry);
  }
  co_return loaded;
}

/// The batches of this epoch began from parameters that are not ours any more.
Task<void> Run::Impl::drop_batches() {
  replica.cut_gradients();
  co_await replica.drop_gradients();
  (void)take_samples();
}

/// The parameters are those of `epoch`, whatever came before.
void Run::Impl::take_epoch(std::uint64_t epoch) {
  enter_epoch(epoch);
  replica.enter_epoch(epoch);
  sharing.set_priority(static_cast<double>(epoch));
}

/// A donor may be ahead of its report, by the epoch that it is about to end.
std::uint64_t Run::Impl::plausible_epoch() const {
  return std::max(tracker.snapshot().claimed, local_epoch) + 2;
}

Task<Result<averaging::DownloadedState>> Run::Impl::download() {
  averaging::DownloadOptions how;
  how.limit = options.load_state_timeout;
  how.on_progress = options.on_download;
  how.max_bytes = most_state_bytes(replica);
  how.max_priority = static_cast<double>(plausible_epoch());
  auto state = co_await sharing.download(std::move(how));
  if (!state) co_return state.error();
  const auto epoch = epoch_of(state->metadata);
  if (epoch && *epoch <= plausible_epoch()) co_return state;
  dht.host().reputation().report(state->donor, p2p::Offence::lied);
  const std::string what =
      epoch ? "its epoch " + std::to_string(*epoch) + " is one that no trainer reports" : "no epoch in its metadata";
  co_return Error(averaging::Errc::bad_state, state->donor, what);
}

Task<bool> Run::Impl::load_state() {
  Result<averaging::DownloadedState> downloaded = Error(averaging::Errc::no_donor);
  const std::uint64_t wanted = tracker.snapshot().epoch;
  if (proof && epoch_of(proof->metadata) >= wanted)
    downloaded = std::move(*proof);
  else
    downloaded = co_await download();
  proof.reset();
  if (!downloaded) {
    history.download_failed(downloaded.error());
    co_return false;
  }
  const PeerId donor = downloaded->donor;
  const std::uint64_t bytes = downloaded->bytes;
  const std::size_t donors = downloaded->contributed.size();
  std::uint64_t epoch = 0;
  {
    auto change = co_await model.change();
    const auto loaded = co_await replica.load(std::move(*downloaded), model.epoch());
    if (!loaded) {
      history.download_failed(loaded.error().with_context("downloaded state refused"));
      dht.host().reputation().report(donor, p2p::Offence::wasted);
      co_return false;
    }
    epoch = *loaded;
    model.set_epoch(epoch);
  }
  gradient_averager->reset();
  co_await gradient_averager->load_state(runtime.after(options.load_state_timeout));
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
  if (global.epoch <= local_epoch + 1) co_return true;
  if (epoch + 1 < wanted) tracker.distrust_claims_above(epoch + 1);  // the best donor cannot show earlier claims
  for (int round = 0; round < kRoundsToFollow; ++round)
    if (co_await follow_state_round()) break;
  co_return true;
}

/// Takes part in the next round of the state with weight 0, which makes our parameters those of its members.
Task<bool> Run::Impl::follow_state_round() {
  const GlobalProgress global = tracker.snapshot();
  if (global.peers < 2 || global.epoch <= local_epoch + 1) co_return true;
  begin_round(state, msgpack::Value(local_epoch), global.expected, options.averaging_timeout);
  const Outcome outcome = co_await finish_state_round({.weight = 0, .patience = options.averaging_timeout});
  if (!outcome.result || outcome.result->parts_failed > 0) co_return false;
  std::uint64_t epoch = local_epoch;
  for (const auto& member : outcome.result->group)
    if (const auto theirs = member.data.as_uint(); theirs && *theirs <= tracker.snapshot().claimed + 1)
      epoch = std::max(epoch, *theirs);
  if (epoch == local_epoch) co_return false;  // peers that were behind, as this one
  model.set_epoch(epoch);
  take_epoch(epoch);
  {
    const std::lock_guard lock(mutex);
    ++counters.states_followed;
  }
  log::info("train", "took the parameters of epoch {} from a round of {} peers", epoch, outcome.group());
  co_return true;
}

Task<void> Run::Impl::restore(std::uint64_t epoch, std::function<void()> write) {
  const RoundsBarred barred(*this);
  co_await abandon_rounds();
  {
    auto change = co_await model.change();
    co_await runtime.offload(std::move(write));
    model.set_epoch(epoch);
  }
  co_await drop_batches();
  gradient_averager->reset();
  take_epoch(epoch);
  tracker.report(epoch, 0);
}

/// Downloads the state when a single peer claims to be ahead: if it is true, the trainer loads what has come.
Task<void> Run::Impl::prove_claims(Impl& self) {
  for (;;) {
    co_await self.tracker.news();
    const GlobalProgress global = self.tracker.snapshot();
    if (self.options.auxiliary || self.ended || self.proof || global.claimed <= global.epoch ||
        global.claimed <= self.local_epoch + 1)
      continue;
    log::info("train", "one peer claims epoch {}, others are at {}: downloading its state beside the training",
              global.claimed, global.epoch);
    auto state = co_await self.download();
    if (!state) self.history.download_failed(state.error());
    const std::uint64_t proven = state ? *epoch_of(state->metadata) : 0;
    if (proven <= self.local_epoch + 1) {
      self.tracker.distrust_claims_above(std::max(self.local_epoch, proven) + 1);
      continue;
    }
    self.proof = std::move(*state);
    const std::lock_guard lock(self.mutex);
    self.demanded = true;
  }
}

}  // namespace cohive::train
