// Downloads of a state while something goes wrong: they end in time with the bytes of one donor, and no honest donor is
// called a liar.
#include <algorithm>

#include "averaging/states/state_pieces.hpp"
#include "cohive/averaging/errors.hpp"
#include "scenarios/fault_setting.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kDownloadTimeout = 60s;
constexpr double kSlowestVictim = 20'000;  // bytes per second, see FaultSetting::strike

class DownloadFaults final : public FaultSetting {
 public:
  using FaultSetting::FaultSetting;

 private:
  bool is_download() const override { return true; }
  bool has_offender() const override { return liar_.has_value(); }

  /// Of some pieces, of which no two are alike.
  static SharedState make_state(std::size_t which, std::size_t pieces) {
    const std::size_t values = pieces * kPieceBytes / 4 + 1000;
    codec::Tensor tensor{
        codec::DType::float32, {static_cast<std::uint32_t>(values)}, false, Slice::uninitialised(4 * values)};
    std::minstd_rand content(static_cast<std::uint32_t>(which + 1));
    for (std::size_t i = 0; i < values; ++i) {
      const auto four = static_cast<std::uint32_t>(content());
      std::memcpy(tensor.data.mutable_data() + 4 * i, &four, 4);
    }
    codec::Tensor small{codec::DType::int64, {}, false, Slice::copy_of(Bytes(8, static_cast<std::uint8_t>(which)))};
    return {msgpack::Map{{{"state", static_cast<int>(which)}}}, {tensor, small}};
  }

  /// Donors of one state or of two, perhaps one on a slow link and one that lies.
  void arrange_donors() {
    const std::size_t donors = peers_.size() - 1, states = below(3) ? 1 : 2;
    const std::size_t pieces = below(16);
    for (std::size_t i = 0; i < states; ++i) states_.push_back(make_state(i, pieces));
    if (victim_ == donors) victim_ = 0;  // the newcomer itself stays
    for (std::size_t i = 0; i < donors; ++i) {
      peers_[i]->shares = below(states);
      peers_[i]->sharing->set_provider(
          [state = states_[peers_[i]->shares]]() -> std::optional<SharedState> { return state; });
      peers_[i]->sharing->set_priority(static_cast<double>(below(3)));
    }
    if (below(3) == 0) {
      const std::size_t slow = below(donors);
      report_.scenario += log::format(", donor {} slow", slow);
      slow_donor_ = slow;
      slow_rate_ = double(40'000 << below(4));
      swarm_.fabric().set_link(sim::Swarm::ip(slow + 1), sim::Swarm::ip(donors + 1),
                               {.latency = 50ms, .bandwidth = slow_rate_});
    }
    if (donors > 2 && below(2) == 0) make_liar((victim_ + 1 + below(donors - 1)) % donors);
    swarm_.pass(3s);
  }

  /// It has told others honest hashes, and gives other bytes: one of them is wrong, or one of every piece.
  void make_liar(std::size_t number) {
    Participant& liar = *peers_[number];
    liar_ = liar.averager->dht().host().id();
    report_.scenario += log::format(", donor {} lying", number);
    SharedState honest = states_[liar.shares];
    honest.version = 1;
    SharedState spoilt = honest;
    Slice& data = spoilt.tensors[0].data;
    data = Slice::copy_of(data);
    if (below(2)) {
      data.mutable_data()[below(data.size())] ^= 1;
    } else {
      for (std::size_t at = 0; at < data.size(); at += kPieceBytes) data.mutable_data()[at] ^= 1;
    }
    liar.sharing->set_provider([honest, spoilt, calls = std::make_shared<int>(0)]() {
      return std::optional((*calls)++ == 0 ? honest : spoilt);
    });
    auto told = swarm_.run(call_donor(peers_[number == 0]->dht->host(), *liar_,
                                      "faults::DecentralizedAverager.rpc_download_pieces", {}, 15s, 1 << 24));
    if (!told) violated("arranging a liar: {}", told.error().message());
  }

  void act() override {
    arrange_donors();
    armed_ = true;
    Participant& newcomer = *peers_.back();
    const Duration limit = kDownloadTimeout + time_of_slow_donors();
    std::optional<Result<DownloadedState>> state;
    newcomer.step = std::make_unique<TaskGroup>(swarm_.runtime());
    using Outcome = std::optional<Result<DownloadedState>>;
    newcomer.step->spawn([](Participant& self, Duration within, Outcome& out) -> Task<void> {
      Runtime& runtime = self.dht->runtime();
      const Deadline end = runtime.after(within);
      auto downloaded = co_await self.sharing->download({.limit = within});
      // A trainer that is behind looks again, too: it may have been cut off from those that know of a donor.
      while (!downloaded && downloaded.error() == Errc::no_donor && !end.passed(runtime.now())) {
        co_await runtime.sleep_for(1s);
        downloaded = co_await self.sharing->download({.limit = end.remaining(runtime.now())});
      }
      out.emplace(std::move(downloaded));
      self.ended = runtime.now();
    }(newcomer, limit, state));
    swarm_.pass(limit + kSlack);
    armed_ = false;
    observe(static_cast<std::uint64_t>(newcomer.ended.time_since_epoch().count()));
    if (!state) return violated("the download has not ended in time");
    ++(*state ? report_.rounds : report_.failed);
    // One donor at most is lost and another one lies, and links heal.
    if (!*state) return violated("no state although there are donors: {}", state->error().message());
    check_state(**state);
  }

  /// Whether more donors share another state, so that this one's may not be asked for (donor_vote.hpp).
  bool may_be_outvoted(std::size_t donor) const {
    std::vector<std::size_t> sharing(states_.size());
    for (std::size_t i = 0; i + 1 < peers_.size(); ++i) ++sharing[peers_[i]->shares];
    return sharing[peers_[donor]->shares] < std::ranges::max(sharing);
  }

  /// More time where only donors on slow links may be left: those that lie, are lost or outvoted do not count.
  Duration time_of_slow_donors() const {
    double slowest = 0;
    for (std::size_t i = 0; i + 1 < peers_.size(); ++i) {
      const bool is_victim = i == victim_ && fault_ != Fault::none && fault_ != Fault::resets;
      if (is_victim || ids_[i] == liar_ || may_be_outvoted(i)) continue;
      if (i != slow_donor_) return 0s;
      slowest = slow_rate_;
    }
    if (fault_ == Fault::slow || slowest == 0) slowest = kSlowestVictim;
    return from_seconds(2 * static_cast<double>(state_bytes()) / slowest);
  }
  std::size_t state_bytes() const {
    std::size_t most = 0;
    for (const SharedState& state : states_) most = std::max(most, state.tensors[0].data.size());
    return most;
  }

  void check_state(const DownloadedState& state) {
    const auto* metadata = state.metadata.get_if<msgpack::Map>();
    const auto which = metadata && metadata->find("state") ? metadata->find("state")->as_uint() : std::nullopt;
    if (!which || *which >= states_.size() || state.tensors.size() != 2) return violated("a state that nobody shared");
    const SharedState& expected = states_[*which];
    for (std::size_t i = 0; i < 2; ++i)
      if (!std::ranges::equal(state.tensors[i].data.view(), expected.tensors[i].data.view()))
        return violated("the state is damaged");
    for (const auto& peer : state.liars)
      if (peer != liar_) violated("an honest donor is called a liar: {}", peer.text());
    for (std::size_t i = 0; i + 1 < peers_.size(); ++i) {
      const auto sent = state.contributed.find(ids_[i]);
      if (sent == state.contributed.end()) continue;
      observe(sent->second);
      if (peers_[i]->shares != *which)
        violated("donor {} has another state, and {} bytes of it were taken", i, sent->second);
    }
    report_.several_donors += state.contributed.size() > 1;
    report_.liars += state.liars.size();
  }

  std::vector<SharedState> states_;
  std::optional<PeerId> liar_;
  std::optional<std::size_t> slow_donor_;
  double slow_rate_ = 0;  // bytes per second
};

}  // namespace

std::unique_ptr<FaultSetting> make_download_faults(std::uint64_t seed) {
  return std::make_unique<DownloadFaults>(seed);
}

}  // namespace cohive::averaging
