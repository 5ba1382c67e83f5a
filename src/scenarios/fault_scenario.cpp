#include "scenarios/fault_scenario.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "averaging/leadership.hpp"
#include "averaging/partition.hpp"
#include "averaging/state_pieces.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/log.hpp"
#include "cohive/testing/swarm.hpp"
#include "scenarios/handed_tensors.hpp"
#include "scenarios/held_values.hpp"
#include "scenarios/hostile_peer.hpp"

namespace cohive::averaging {
namespace {

enum class Fault { none, crash, death, stall, partition, resets, slow, leave, not_a_number, other_parts, hostile };
constexpr std::array kFaults = {"nothing",    "crash", "death", "stall",       "partition",   "resets",
                                "slow links", "leave", "NaN",   "other parts", "hostile peer"};

constexpr Duration kStepTimeout = 20s, kRoundTimeout = 15s, kSlack = 3s;
constexpr Duration kDownloadTimeout = 60s;
constexpr float kTolerance = 4e-3f;  // of halves that stand for differences up to 2
constexpr double kSaid = 1e6;        // bandwidth of a peer that says one

struct Participant {
  std::vector<std::vector<float>> values, inputs;
  AveragerOptions options;
  double weight = 1;
  ResidualsPtr residuals;                 // of tensors that are handed over
  std::unique_ptr<HandedTensors> handed;  // in this round; none: the averager's own
  std::unique_ptr<Dht> dht;
  std::unique_ptr<Averager> averager;
  std::unique_ptr<StateSharing> sharing;
  std::unique_ptr<HostilePeer> hostile;
  std::unique_ptr<TaskGroup> step;
  std::optional<Result<RoundResult>> result;
  TimePoint ended{};
  std::size_t shares = 0;  // a donor: which of the states
  bool lost = false;       // crashed, dead or hostile: nothing is asked of it
};

class Scenario {
 public:
  explicit Scenario(std::uint64_t seed)
      : random_(seed * 7919 + 1),
        latency_(from_seconds(0.001 * double(1 + below(40)))),
        swarm_({.seed = seed, .latency = latency_}) {
    report_.seed = seed;
  }

  FaultReport run() {
    const bool download = below(4) == 0;
    arrange(download);
    fault_ = static_cast<Fault>(below(download ? static_cast<std::size_t>(Fault::slow) + 1 : kFaults.size()));
    at_message_ = 1 + below(below(2) ? 300 : 60);
    victim_ = below(peers_.size());
    heals_after_ = from_seconds(double(1 + below(20)));
    repeats_ = 1 + below(4);
    report_.scenario +=
        log::format(", {} at message {}, victim {}", kFaults[static_cast<std::size_t>(fault_)], at_message_, victim_);
    swarm_.fabric().set_tap([this](const std::string&, const std::string&, ByteView) { return on_message(); });
    download ? run_download() : run_rounds();
    swarm_.fabric().set_tap(nullptr);
    report_.struck = fault_ >= Fault::not_a_number || (fault_ != Fault::none && messages_ >= at_message_);
    clean_up();
    return std::move(report_);
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  template <class... Args>
  void violated(log::MessageFor<Args...> what, const Args&... args) {
    report_.violated.push_back(log::format(what, args...));
  }
  void observe(std::uint64_t value) { report_.digest = (report_.digest ^ value) * 0x9e3779b97f4a7c15ull + 1; }

  // ---- Arranging

  void arrange(bool download) {
    const std::size_t count = download ? 3 + below(4) : 2 + below(4);
    AveragerOptions options;
    options.prefix = "faults";
    options.min_matchmaking_time = 2s;
    options.request_timeout = 1s;
    options.sender_timeout = 3s;
    options.reducer_timeout = 6s;
    options.allreduce_timeout = kRoundTimeout;
    const codec::Codec codecs[] = {codec::Codec::none, codec::Codec::none, codec::Codec::float16,
                                   codec::Codec::uniform8};
    options.codec = codecs[below(4)];
    options.target_group_size = below(2) ? count : 0;
    const bool measured = !download && below(5) == 0;
    shapes_ = {static_cast<std::uint32_t>(1 + below(3000)), static_cast<std::uint32_t>(below(40))};
    options.part_size_bytes = 128 << below(5);
    if (measured) {  // a link shows what it carries when it has enough to carry
      shapes_[0] += 40'000;
      options.part_size_bytes <<= 5;
      options.min_vector_size = below(3) ? 0 : 10'000;
    }
    if (!download) choose_agreed_codec(options);
    const bool remembers = measured || options.agreed_codec;  // what rounds before have left
    rounds_before_ = remembers ? 1 + below(2) : 0;
    round_after_ = below(remembers ? 2 : 6) == 0;
    report_.scenario = log::format(
        "{} of {} peers{}{}", download ? "download" : "round", count, measured ? ", measured links" : "",
        options.agreed_codec ? log::format(", {}", codec::name_of(options.agreed_codec->fixed()->codec)) : "");
    for (std::size_t i = 0; i < count; ++i) {
      const Aggregation aggregations[] = {Mean(), Mean(), TrimmedMean{0.3}, CenteredClip{0.5, 3}};
      options.aggregation = aggregations[below(4)];  // each peer's own choice
      options.mode = PeerMode::node;
      if (!download && i > 1 && below(5) == 0) options.mode = below(2) ? PeerMode::client : PeerMode::auxiliary;
      if (measured) {
        const Bandwidth said[] = {Bandwidth::measured(), Bandwidth::measured(), Bandwidth(kSaid), Bandwidth()};
        options.bandwidth = said[below(4)];
      }
      add_peer(options);
      const double rate = measured ? 2.5e5 * static_cast<double>(1 << below(6)) : 0;
      swarm_.fabric().set_line(sim::Swarm::ip(i + 1), {rate, rate});
    }
  }

  void choose_agreed_codec(AveragerOptions& options) {
    const std::size_t drawn = below(8);
    if (drawn < 2) options.agreed_codec = codec::CodecSpec(codec::Codec::top_k, drawn ? 0.02 : 0.3);
    if (drawn == 2) options.agreed_codec = codec::Codec::block4;
  }

  void add_peer(AveragerOptions options) {
    const bool client = options.mode == PeerMode::client;
    p2p::HostOptions host_options;
    host_options.routing_server = !client;
    auto& host = swarm_.add_host(host_options, !client);
    ids_.push_back(host.id());
    if (wants_caps(options)) want_caps_.insert(host.id());
    auto peer = std::make_unique<Participant>();
    peer->options = options;
    peer->weight = options.mode == PeerMode::auxiliary ? 0 : double(1 + below(3));
    DhtOptions dht_options;
    dht_options.client_mode = client;
    peer->dht = std::make_unique<Dht>(host, dht_options);
    std::vector<Multiaddr> initial;
    for (std::size_t i = 0; i < std::min<std::size_t>(2, peers_.size()); ++i)
      initial.push_back(swarm_.host(i).visible_addresses().front());
    if (auto started = swarm_.run(peer->dht->start(initial)); !started)
      violated("arranging: {}", started.error().message());
    for (std::uint32_t size : shapes_) peer->values.emplace_back(size);
    draw_values(*peer);
    peers_.push_back(std::move(peer));
    make_averager(*peers_.back());
  }

  void draw_values(Participant& peer) {
    for (auto& values : peer.values)
      for (float& value : values) value = static_cast<float>(below(2001)) / 1000 - 1;
    peer.inputs = peer.values;
  }

  void make_averager(Participant& peer) {
    std::vector<AveragedTensor> tensors;
    for (auto& values : peer.values) tensors.push_back({values, {static_cast<std::uint32_t>(values.size())}});
    peer.averager = std::make_unique<Averager>(*peer.dht, std::move(tensors), peer.options);
    peer.averager->start();
    peer.sharing = std::make_unique<StateSharing>(*peer.dht, StateSharingOptions{.prefix = peer.options.prefix});
    peer.sharing->start();
  }

  /// The last peer is made to misbehave.
  void prepare_bad_peer() {
    Participant& bad = *peers_.back();
    bad.lost = true;
    bad.averager.reset();
    bad.sharing.reset();
    if (fault_ == Fault::not_a_number) {
      auto& values = bad.values[0];
      values[below(values.size())] = below(2) ? NAN : INFINITY;
    } else if (fault_ == Fault::other_parts) {
      bad.options.part_size_bytes = bad.options.part_size_bytes * 3 / 2;
    } else {
      bad.options.mode = PeerMode::node;
      want_caps_.erase(bad.dht->host().id());
      bad.hostile = std::make_unique<HostilePeer>(*bad.dht, bad.options, shapes_, random_());
      return;
    }
    make_averager(bad);
  }

  // ---- Faults

  bool on_message() {
    if (!armed_ || ++messages_ < at_message_) return true;
    switch (fault_) {
      case Fault::resets:
        if (messages_ == at_message_ + 17 * broken_ && broken_ < repeats_) {
          ++broken_;
          return false;
        }
        return true;
      default:
        break;
    }
    if (messages_ == at_message_) swarm_.runtime().post([this] { strike(); });
    return true;
  }

  void strike() {
    const std::string ip = sim::Swarm::ip(victim_ + 1);
    std::set<std::string> here{ip}, there;
    for (std::size_t i = 0; i < peers_.size(); ++i)
      if (i != victim_) (fault_ == Fault::partition && below(2) ? here : there).insert(sim::Swarm::ip(i + 1));
    switch (fault_) {
      case Fault::crash:
        peers_[victim_]->lost = true;
        swarm_.fabric().crash(ip);
        break;
      case Fault::death: {
        Participant& victim = *peers_[victim_];
        victim.lost = true;
        victim.step.reset();
        victim.averager.reset();
        victim.sharing.reset();
        victim.dht.reset();
        swarm_.remove_host(victim_);
        break;
      }
      case Fault::leave:
        peers_[victim_]->lost = true;
        leaving_ = std::make_unique<TaskGroup>(swarm_.runtime());
        leaving_->spawn([](Averager& averager) -> Task<void> {
          co_await averager.leave(averager.dht().runtime().after(5s));
        }(*peers_[victim_]->averager));
        break;
      case Fault::stall:
      case Fault::partition:
        swarm_.fabric().partition(here, there);
        healing_ = std::make_unique<TaskGroup>(swarm_.runtime());
        healing_->spawn([](sim::Swarm& swarm, Duration after) -> Task<void> {
          co_await swarm.runtime().sleep_for(after);
          swarm.fabric().heal();
        }(swarm_, heals_after_));
        break;
      case Fault::slow: {
        set_links_of_victim(
            {.latency = from_seconds(0.05 * double(1 + below(10))), .bandwidth = double(20'000 << below(6))});
        break;
      }
      default:
        break;
    }
  }

  void set_links_of_victim(transport::SimLink link) {
    for (std::size_t i = 0; i < peers_.size(); ++i)
      if (i != victim_) swarm_.fabric().set_link(sim::Swarm::ip(victim_ + 1), sim::Swarm::ip(i + 1), link);
  }

  // ---- A round

  void run_rounds() {
    for (std::size_t i = 0; i < rounds_before_; ++i) {
      run_round();
      if (report_.failed > 0) violated("nothing was wrong, and a step failed");
    }
    if (fault_ == Fault::hostile || fault_ == Fault::other_parts || fault_ == Fault::not_a_number) prepare_bad_peer();
    armed_ = true;
    run_round();
    armed_ = false;
    if (!round_after_ || !report_.violated.empty()) return;
    healing_.reset();
    swarm_.fabric().heal();
    if (fault_ == Fault::slow) set_links_of_victim({.latency = latency_});
    std::erase_if(peers_, [](const auto& peer) { return peer->lost; });
    if (peers_.size() < 2) return;
    run_round();
    if (std::ranges::none_of(peers_, [](const auto& peer) { return peer->result && *peer->result; }))
      violated("the fault is over, and still nobody averages: {}", (*peers_[0]->result).error().message());
  }

  /// All average new values once. Ends early when nothing can strike any more.
  void run_round() {
    const TimePoint start = swarm_.runtime().now();
    for (auto& peer : peers_) {
      if (rounds_ > 0 && !peer->lost) draw_values(*peer);
      peer->result.reset();
      peer->step = std::make_unique<TaskGroup>(swarm_.runtime());
      if (peer->hostile) {
        peer->step->spawn(peer->hostile->misbehave());
        continue;
      }
      RoundOptions options;
      options.timeout = kStepTimeout;
      options.allow_retries = below(2) == 0;
      peer->handed.reset();
      if (below(2) == 0) hand_over(*peer);
      peer->step->spawn(average(*peer, options));
    }
    ++rounds_;
    const auto all_ended = [&] {
      return std::ranges::all_of(peers_, [](const auto& p) { return p->result.has_value(); });
    };
    const TimePoint end = start + kStepTimeout + kRoundTimeout + kSlack;
    while (swarm_.runtime().now() < end && (armed_ || !all_ended())) swarm_.pass(1s);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Participant& peer = *peers_[i];
      if (peer.lost) continue;
      if (!peer.result) {
        violated("peer {} has not ended in time", i);
        continue;
      }
      note(peer, start);
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) take_back(i);
    check_values();
  }

  void hand_over(Participant& peer) {
    if (!peer.residuals) peer.residuals = make_residuals(HandedTensors::infos_of(peer.values));
    const auto way = static_cast<HandedTensors::Way>(below(3));
    peer.handed = std::make_unique<HandedTensors>(swarm_.runtime(), way, peer.values, peer.residuals);
    ++report_.handed_over;
  }

  static Task<void> average(Participant& self, RoundOptions options) {
    Round round = self.averager->begin(options);
    self.handed ? round.trigger(self.weight, self.handed->parts()) : round.trigger(self.weight);
    self.result.emplace(co_await round.result());
    self.ended = self.averager->dht().runtime().now();
  }

  void take_back(std::size_t i) {
    Participant& peer = *peers_[i];
    if (!peer.handed || peer.lost || !peer.result) return;
    swarm_.run(peer.handed->parts()->finish());
    if (const auto wrong = peer.handed->take_results()) violated("peer {}: {}", i, *wrong);
  }

  void note(const Participant& peer, TimePoint start) {
    observe(static_cast<std::uint64_t>((peer.ended - start).count()));
    ++(*peer.result ? report_.rounds : report_.failed);
    if (!*peer.result) return;
    const RoundResult& result = **peer.result;
    for (const auto& member : result.group) observe(std::bit_cast<std::uint64_t>(member.bandwidth.value_or(0)));
    report_.measured += rounds_ > 1 && std::ranges::any_of(result.group, [](const auto& member) {
                          return member.bandwidth && *member.bandwidth != kSaid;
                        });
    report_.top_k += result.agreed_codecs.contains(codec::Codec::top_k);
  }

  /// No peer's values leave the range of the inputs, and all peers that finished a part hold the same.
  void check_values() {
    float least = 0, most = 0;
    float rounding = kTolerance + (peers_[0]->options.agreed_codec ? 0.02f : 0);  // scales are rounded up
    if (codec() == codec::Codec::uniform8) rounding = 0.5;                        // see aggregation.hpp
    for (const auto& peer : peers_)
      for (const auto& tensor : peer->inputs)
        for (float value : tensor)
          if (std::isfinite(value)) least = std::min(least, value), most = std::max(most, value);
    if (peers_[0]->options.agreed_codec) {  // each round before may owe something, of inputs between -1 and 1
      const auto rounds = static_cast<float>(rounds_);
      least = -rounds, most = rounds, rounding *= rounds;
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i]->lost) continue;
      for (const auto& tensor : peers_[i]->values) {
        for (float value : tensor) {
          observe(std::bit_cast<std::uint32_t>(value));
          if (value >= least - rounding && value <= most + rounding) continue;
          violated("peer {} holds {}", i, value);
          return;
        }
      }
    }
    std::map<std::string, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < peers_.size(); ++i)
      if (!peers_[i]->lost && peers_[i]->result && *peers_[i]->result)
        groups[(*peers_[i]->result)->group_id].push_back(i);
    for (const auto& [id, members] : groups) check_group(members);
  }

  void check_group(const std::vector<std::size_t>& members) {
    const Participant& any = *peers_[members.front()];
    const auto& group = (*any.result)->group;
    std::vector<PartedTensor> tensors;
    std::uint64_t total = 0;
    for (std::uint32_t size : shapes_) {
      tensors.push_back({size, 4 * any.options.codec.ratio({tensors.size(), {size}}).value()});
      total += size;
    }
    const bool capped = std::ranges::all_of(group, [&](const auto& m) { return want_caps_.contains(m.peer); });
    const auto fractions = (capped ? capped_fractions : peer_fractions)(total, group, any.options.min_vector_size, {});
    for (const Part& part : cut_into_parts(tensors, any.options.part_size_bytes, fractions.value())) {
      const PeerId& owner = group[part.owner].peer;
      const bool lying = std::any_of(peers_.begin(), peers_.end(),
                                     [&](const auto& p) { return p->hostile && p->hostile->id() == owner; });
      if (lying) continue;
      std::vector<std::size_t> finished;
      for (std::size_t i : members) {
        const auto& failed = (*peers_[i]->result)->failed_reducers;
        if (std::find(failed.begin(), failed.end(), owner) == failed.end()) finished.push_back(i);
      }
      // Without any weight there is no average, and the values of all peers stay.
      if (std::none_of(finished.begin(), finished.end(), [&](std::size_t i) { return peers_[i]->weight > 0; }))
        continue;
      const auto reducer =
          std::ranges::find_if(members, [&](std::size_t i) { return peers_[i]->averager->dht().host().id() == owner; });
      reducer == members.end() ? check_alike(finished, part) : check_against(*reducer, finished, part);
      if (!report_.violated.empty()) return;
    }
  }

  /// Without the owner to say what the average was.
  void check_alike(const std::vector<std::size_t>& finished, const Part& part) {
    if (codec() == codec::Codec::uniform8) return;  // these may differ by far: see aggregation.hpp
    const auto reference = of(peers_[finished.front()]->values, part);
    for (std::size_t i : finished) {
      const auto held = of(peers_[i]->values, part);
      for (std::size_t k = 0; k < part.length; ++k)
        if (std::abs(held[k] - reference[k]) > kTolerance)
          return violated("peers {} and {} differ by {} in a part that both finished", finished.front(), i,
                          held[k] - reference[k]);
    }
  }

  /// Each holds exactly what the owner's average makes of its own values through the codec; the average itself is known
  /// up to rounding, which may move a value into the bin beside.
  void check_against(std::size_t owner, const std::vector<std::size_t>& finished, const Part& part) {
    const auto average = of(peers_[owner]->values, part);
    const bool extended = !(*peers_[owner]->result)->agreed_codecs.empty();
    for (std::size_t i : finished) {
      if (i == owner) continue;
      const auto own = of(peers_[i]->inputs, part), held = of(peers_[i]->values, part);
      const auto expected = extended ? through(codec(), average) : held_after(codec(), own, average);
      double tolerance = 1e-5;
      if (codec() == codec::Codec::float16) tolerance = 2e-3;
      if (codec() == codec::Codec::uniform8)
        tolerance += 1.1 * UniformError(extended ? std::vector(average.begin(), average.end())
                                                 : difference(average, through(codec(), own)))
                               .step;
      for (std::size_t k = 0; k < part.length; ++k)
        if (std::abs(static_cast<double>(held[k] - expected[k])) > tolerance)
          return violated("peer {} holds {} where {}, with the average {} of owner {}, makes it {}", i, held[k], own[k],
                          average[k], owner, expected[k]);
    }
  }

  codec::Codec codec() const { return peers_[0]->options.codec.fixed()->codec; }
  static std::span<const float> of(const std::vector<std::vector<float>>& tensors, const Part& part) {
    return std::span<const float>(tensors[part.tensor]).subspan(part.offset, part.length);
  }

  // ---- A download

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
      swarm_.fabric().set_link(sim::Swarm::ip(slow + 1), sim::Swarm::ip(donors + 1),
                               {.latency = 50ms, .bandwidth = double(40'000 << below(4))});
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

  void run_download() {
    arrange_donors();
    armed_ = true;
    Participant& newcomer = *peers_.back();
    std::optional<Result<DownloadedState>> state;
    newcomer.step = std::make_unique<TaskGroup>(swarm_.runtime());
    newcomer.step->spawn([](Participant& self, std::optional<Result<DownloadedState>>& out) -> Task<void> {
      out.emplace(co_await self.sharing->download({.limit = kDownloadTimeout}));
      self.ended = self.averager->dht().runtime().now();
    }(newcomer, state));
    swarm_.pass(kDownloadTimeout + kSlack);
    armed_ = false;
    observe(static_cast<std::uint64_t>(newcomer.ended.time_since_epoch().count()));
    if (!state) return violated("the download has not ended in time");
    ++(*state ? report_.rounds : report_.failed);
    // One donor at most is lost and another one lies, and links heal.
    if (!*state) return violated("no state although there are donors: {}", state->error().message());
    check_state(**state);
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

  // ---- Afterwards

  void clean_up() {
    swarm_.fabric().heal();
    swarm_.pass(30s);
    for (const auto& task : swarm_.runtime().tasks())
      for (const char* group :
           {"all-reduce", "reducer", "replies to a sender", "search for a group", "encoder", "parts to a reducer"})
        if (task.group == group) violated("task left: {}/{} waits for {}", task.group, task.name, task.waiting_for);
    healing_.reset();
    leaving_.reset();
    for (auto& peer : peers_) {
      peer->step.reset();
      peer->hostile.reset();
      peer->averager.reset();
      peer->sharing.reset();
      peer->dht.reset();
    }
    if (const std::string left = swarm_.left_behind(); !left.empty()) violated("left behind: {}", left);
  }

  std::mt19937_64 random_;
  const Duration latency_;
  FaultReport report_;
  sim::Swarm swarm_;
  std::vector<std::uint32_t> shapes_;
  std::vector<std::unique_ptr<Participant>> peers_;
  std::vector<PeerId> ids_;     // of the peers, also of those that are gone
  std::set<PeerId> want_caps_;  // see capped_fractions
  std::unique_ptr<TaskGroup> healing_, leaving_;
  Fault fault_ = Fault::none;
  std::size_t at_message_ = 0, messages_ = 0, victim_ = 0, repeats_ = 0, broken_ = 0;
  Duration heals_after_{};
  std::size_t rounds_before_ = 0, rounds_ = 0;
  std::vector<SharedState> states_;
  std::optional<PeerId> liar_;
  bool armed_ = false, round_after_ = false;
};

}  // namespace

FaultReport run_faults(std::uint64_t seed) {
  return Scenario(seed).run();
}

}  // namespace cohive::averaging
