#include "donors.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"
#include "donor_vote.hpp"
#include "faster_donor.hpp"

namespace cohive::averaging {
namespace {

constexpr int kPasses = 3;           // over the donors declared at the time
constexpr Duration kPassPause = 2s;  // then twice as long: a donor that lost its connection may be back, and be dialled
constexpr std::uint64_t kLarge = 16 << 20;  // bytes; less comes before more connections would
constexpr std::size_t kMaxDonors = 64, kReplicasRead = 3;
constexpr std::ptrdiff_t kEnoughMet = 2;  // known donors
constexpr Duration kShortLook = 1s;
constexpr std::size_t kMaxHelpers = 8;  // asked whether they hold the same bytes, for which they copy and hash theirs

struct Donor {
  double priority;
  double tie;
  PeerId peer;
  bool declared;
};

/// Returns the declared donors, and the known ones beside them.
Task<std::vector<Donor>> find_donors(Dht& dht, const DownloadSetup& setup, bool with_known) {
  std::vector<Donor> donors;
  const auto add = [&](const PeerId& peer, double priority, bool declared) {
    if (std::isfinite(priority) && peer != dht.host().id())
      donors.push_back({priority, dht.runtime().random_unit(), peer, declared});
  };
  // Beside those that it has averaged with a peer waits for no node of the DHT that is asleep.
  const auto met = std::ranges::count_if(
      setup.known, [&](const auto& one) { return dht.host().reputation().has_history(one.first); });
  const Deadline end = with_known && met >= kEnoughMet ? dht.runtime().after(kShortLook) : Deadline::never();
  // In a large run there are far more donors than can be asked, and many newcomers read their names.
  if (const auto declared =
          co_await dht.get_sampled(setup.declared_under, kReplicasRead, {.most_entries = kMaxDonors}, end))
    for (const auto& [subkey, entry] : declared->entries()) {
      const auto* bytes = subkey.get_if<msgpack::Bin>();
      const auto peer = bytes ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
      const auto priority = entry.value.as_number();
      if (peer && priority) add(*peer, *priority, true);
    }
  for (const auto& [peer, priority] : setup.known)
    if (with_known && std::ranges::find(donors, peer, &Donor::peer) == donors.end()) add(peer, priority, false);
  // A priority above the highest that is believed is a lie, or a mistake: its donor comes last.
  const auto rank = [most = setup.max_priority](const Donor& donor) {
    const bool believed = donor.priority <= most;
    return std::tuple(believed, believed ? donor.priority : 0, donor.tie);
  };
  const auto by_rank = [&](const Donor& a, const Donor& b) { return rank(a) > rank(b); };
  if (donors.size() > kMaxDonors) {
    // Anybody can declare any number of names: those that this peer has averaged with, or was told to try, stay. Of the
    // others, those that claim much push nobody out: half of the room is drawn for.
    const auto strangers = std::partition(donors.begin(), donors.end(), [&](const Donor& donor) {
      return dht.host().reputation().has_history(donor.peer) ||
             std::ranges::find(setup.known, donor.peer, [](const auto& one) { return one.first; }) != setup.known.end();
    });
    std::vector<Donor> stay(donors.begin(), strangers);
    donors.erase(donors.begin(), strangers);
    std::sort(stay.begin(), stay.end(), by_rank);
    if (stay.size() > kMaxDonors / 2) stay.resize(kMaxDonors / 2);
    std::sort(donors.begin(), donors.end(), by_rank);
    if (const std::size_t room = kMaxDonors - stay.size(); donors.size() > room) {
      std::shuffle(donors.begin() + static_cast<std::ptrdiff_t>(room / 2), donors.end(), dht.runtime().random());
      donors.resize(room);
    }
    donors.insert(donors.end(), stay.begin(), stay.end());
  }
  std::sort(donors.begin(), donors.end(), by_rank);
  co_return donors;
}

/// The whole state from a donor that knows only hivemind's exchange.
Task<Result<DownloadedState>> download_whole(Dht& dht, PeerId donor, const DownloadSetup& setup,
                                             DownloadReport& report) {
  report.contributed.clear();
  report.progress = {.donors = 1};
  report.changed();
  co_return co_await receive_state(dht.host(), donor, setup.protocol, setup.pieces.chunk_timeout,
                                   setup.pieces.max_bytes, report);
}

/// A call to the donor whose manifest is there, on a path that carries what we do not have of its state. A new one
/// where a relay carries less, or where that is so much that more connections may help.
Task<Result<DonorCall>> call_with_room(Dht& dht, DonorCall call, const PieceSource& pieces,
                                       const PartialState& partial) {
  const std::uint64_t missing = partial.wanted_of(call.manifest) - (call.root == partial.root() ? partial.bytes() : 0);
  const bool fits = call.call->receive_quota() >= missing;
  const PeerId donor = call.call->peer();
  if (fits && (missing < kLarge || !co_await dht.host().spread_streams(donor))) co_return call;
  call.call.reset();
  if (auto room = co_await find_room(dht.host(), donor, missing); !room) co_return room.error();
  co_return co_await call_donor(dht.host(), donor, pieces.protocol, {}, pieces.chunk_timeout, pieces.max_bytes);
}

/// The state of `donor`, with the help of `others`.
/// \param open  a call to the donor, if there is one already
Task<Result<DownloadedState>> download_state_of(Dht& dht, PeerId donor, std::vector<PeerId> others,
                                                std::optional<DonorCall> open, const DownloadSetup& setup,
                                                PartialState& partial, DownloadReport& report) {
  co_await partial.verify(dht.runtime());
  Result<DonorCall> call = Error(Errc::no_donor);
  if (open)
    call = std::move(*open);
  else
    call = co_await call_donor(dht.host(), donor, setup.pieces.protocol, {}, setup.pieces.chunk_timeout,
                               setup.pieces.max_bytes);
  if (!call && call.error() == transport::Errc::protocol_not_supported && setup.last.empty()) {
    partial = PartialState();  // there is memory for one state
    co_return co_await download_whole(dht, donor, setup, report);
  }
  if (call) call = co_await call_with_room(dht, std::move(*call), setup.pieces, partial);
  if (!call) co_return call.error();
  auto metadata =
      co_await dht.runtime().offload([text = call->manifest.metadata] { return msgpack::decode(as_bytes(text)); });
  if (!metadata) co_return metadata.error().with_peer(donor);
  if (!metadata->truthy()) co_return Error(Errc::no_donor, donor, "it did not send its state");
  if (call->root != partial.root()) report.contributed.clear();
  if (!partial.fits(call->manifest)) co_return Error(Errc::no_donor, donor, "it has other tensors than ours");
  co_await partial.adopt(dht.runtime(), call->root, std::move(call->manifest));
  co_await partial.verify(dht.runtime());
  report.progress = {partial.bytes(), partial.wanted_of(partial.manifest()), 0};
  const std::uint64_t resumed = partial.bytes();
  auto fetched = co_await fetch_pieces(dht.host(), std::move(*call), std::move(others), setup.pieces, partial, report);
  if (!fetched) co_return fetched.error();
  DownloadedState state;
  state.metadata = std::move(*metadata);
  state.tensors = partial.take();
  state.resumed = resumed;
  co_return state;
}

/// The same, until another donor turns out to be much faster: then `faster` is that one, and what has come stays in
/// `partial`.
Task<Result<DownloadedState>> download_unless_slow(Runtime& runtime, Task<Result<DownloadedState>> transfer,
                                                   Task<FasterDonor> looking, std::optional<FasterDonor>& faster) {
  auto ended = co_await race(runtime, std::move(transfer), std::move(looking));
  if (ended.index() == 0) co_return std::get<0>(std::move(ended));
  faster = std::get<1>(std::move(ended));
  co_return Error(cohive::Errc::timeout, "another donor is faster");
}

constexpr std::size_t kMostPreferred = 2;  // times that one donor takes the place of a slow one

/// The donors of one look at the DHT, in the order in which they are asked.
class DonorQueue {
 public:
  /// \param believed  so many of the first: where one of these is slow, none of the others takes its place
  DonorQueue(std::vector<PeerId> donors, std::size_t believed)
      : all_(std::move(donors)),
        believed_(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(believed)),
        waiting_(all_.begin(), all_.end()) {}

  bool empty() const { return waiting_.empty(); }
  PeerId take() {
    const PeerId next = waiting_.front();
    waiting_.pop_front();
    return next;
  }
  /// This one is asked next, and `slow` once more when all others have failed.
  void prefer(const PeerId& faster, const PeerId& slow) {
    std::erase(waiting_, faster);
    std::erase(lost_, faster);
    waiting_.push_front(faster);
    waiting_.push_back(slow);
    ++preferred_[faster];
  }
  /// The connection to this one ended: it is not asked again by itself, but may have come back meanwhile. One that is
  /// preferred for being faster, for which what has come of another state is given up, may be lost twice.
  void lose(const PeerId& donor) {
    if (const auto found = preferred_.find(donor); found == preferred_.end() || found->second < kMostPreferred)
      lost_.push_back(donor);
  }
  /// Those that may be faster than `donor`, which is asked.
  std::deque<PeerId> others(const PeerId& donor) const {
    std::deque<PeerId> others = waiting_;
    others.insert(others.end(), lost_.begin(), lost_.end());
    if (believed_.contains(donor))
      std::erase_if(others, [this](const PeerId& other) { return !believed_.contains(other); });
    return others;
  }
  /// Those that may hold the same bytes as `donor`.
  std::vector<PeerId> helpers_of(const PeerId& donor, const std::function<bool(const PeerId&)>& is_out) const {
    std::vector<PeerId> helpers;
    for (const PeerId& other : all_)
      if (helpers.size() < kMaxHelpers && other != donor && !is_out(other)) helpers.push_back(other);
    return helpers;
  }

 private:
  const std::vector<PeerId> all_;
  const std::set<PeerId> believed_;
  std::deque<PeerId> waiting_, lost_;
  std::map<PeerId, std::size_t> preferred_;  // how often
};

/// The donors of one pass.
struct KnownDonors {
  std::vector<PeerId> voters, others;
  std::set<PeerId> undeclared;  // may share nothing: their failures say nothing of the donors
};

using IsSuch = std::function<bool(const PeerId&)>;
KnownDonors divide_donors(const std::vector<Donor>& found, const DownloadSetup& setup, const IsSuch& is_liar,
                          const IsSuch& is_no_help) {
  KnownDonors known;
  for (const Donor& donor : found) {
    if (is_liar(donor.peer) || donor.priority < setup.min_priority) continue;
    // Who sleeps, or whose process has ended, which may be back, holds no vote up.
    const bool votes = donor.priority <= setup.max_priority && !is_no_help(donor.peer);
    (votes ? known.voters : known.others).push_back(donor.peer);
    if (!donor.declared) known.undeclared.insert(donor.peer);
  }
  return known;
}

/// Writes down who a state has come from.
void note_sources(DownloadedState& state, const PeerId& donor, const DownloadReport& report) {
  state.donor = donor;
  for (const auto& [peer, bytes] : report.contributed) state.bytes += bytes;
  state.contributed = report.contributed;
  state.liars = report.liars;
}

}  // namespace

Task<Result<DownloadedState>> download_from_donors(Dht& dht, DownloadSetup setup, DownloadReport& report,
                                                   Deadline deadline) {
  Runtime& runtime = dht.runtime();
  Error last(Errc::no_donor);
  PartialState partial(setup.last);
  const auto is_liar = [&](const PeerId& peer) {
    return report.names(peer) || dht.host().reputation().is_banned(peer) ||
           std::ranges::find(setup.without, peer) != setup.without.end();
  };
  const auto is_no_help = [&](const PeerId& peer) {
    return is_liar(peer) || std::ranges::find(setup.asleep, peer) != setup.asleep.end() || dht.host().refuses(peer);
  };
  for (int pass = 0; pass < kPasses; ++pass) {
    if (pass > 0) co_await runtime.sleep_for(std::min<Duration>(pass * kPassPause, deadline.remaining(runtime.now())));
    if (deadline.passed(runtime.now())) break;
    const auto found = co_await find_donors(dht, setup, pass == 0);
    auto known = divide_donors(found, setup, is_liar, is_no_help);
    auto election = co_await elect_donor(dht, std::move(known.voters), setup.pieces, deadline);
    std::vector<PeerId> order = std::move(election.order);
    const bool some_agree = election.believed > 0;
    setup.pieces.vouched = setup.pieces.vouched || some_agree;
    const std::size_t most_believed = some_agree ? election.believed : order.size();
    order.insert(order.end(), known.others.begin(), known.others.end());
    DonorQueue queue(std::move(order), most_believed);
    DonorPaces paces;
    if (queue.empty() && election.outvoted.empty()) break;
    std::optional<DonorCall> open = std::move(election.call);
    while (!queue.empty()) {
      if (runtime.now() >= deadline.at()) co_return last;
      const PeerId donor = queue.take();
      auto call = std::exchange(open, std::nullopt);
      if (is_liar(donor)) continue;
      report.progress = {};  // of the last one
      auto transfer =
          download_state_of(dht, donor, queue.helpers_of(donor, is_no_help), std::move(call), setup, partial, report);
      auto looking = await_faster_donor(dht, donor, queue.others(donor), setup.pieces, report, deadline, paces);
      std::optional<FasterDonor> faster;
      auto state = co_await within(runtime, deadline,
                                   download_unless_slow(runtime, std::move(transfer), std::move(looking), faster),
                                   "state download");
      if (state) {
        note_sources(*state, donor, report);
        co_return state;
      }
      if (faster) {
        queue.prefer(faster->peer, donor);
        open = std::move(faster->call);
        continue;
      }
      const Error why = state.error();
      if (!known.undeclared.contains(donor)) last = why;
      const bool lied = shows_a_liar(why) && (!why.peer() || *why.peer() == donor);
      if (lied && !is_liar(donor)) {
        log::warn("averaging", "a donor of the state is left out: {}", why.with_peer(donor));
        report.liars.push_back(donor);
      } else {
        log::write(known.undeclared.contains(donor) ? log::Level::debug : log::Level::info, "averaging",
                   log::format("no state from {}: {}", donor, why));
        queue.lose(donor);
      }
    }
  }
  co_return last;
}

}  // namespace cohive::averaging
