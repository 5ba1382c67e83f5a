#include "averaging/fault_scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "averaging/held_values.hpp"
#include "averaging/hostile_peer.hpp"
#include "averaging/partition.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/core/log.hpp"
#include "support/swarm.hpp"

namespace cohive::averaging {
namespace {

enum class Fault { none, crash, death, stall, partition, resets, slow, not_a_number, other_parts, hostile };
constexpr std::array kFaults = {"nothing", "crash",      "death", "stall",       "partition",
                                "resets",  "slow links", "NaN",   "other parts", "hostile peer"};

constexpr Duration kStepTimeout = 20s, kRoundTimeout = 15s, kSlack = 3s;
constexpr Duration kDownloadTimeout = 60s;
constexpr float kTolerance = 4e-3f;  // of halves that stand for differences up to 2

struct Peer {
  std::vector<std::vector<float>> values, inputs;
  AveragerOptions options;
  double weight = 1;
  std::unique_ptr<Dht> dht;
  std::unique_ptr<Averager> averager;
  std::unique_ptr<HostilePeer> hostile;
  std::unique_ptr<TaskGroup> step;
  std::optional<Result<RoundResult>> result;
  TimePoint ended{};
  bool lost = false;  // crashed, dead or hostile: nothing is asked of it
};

class Scenario {
 public:
  explicit Scenario(std::uint64_t seed)
      : random_(seed * 7919 + 1), swarm_({.seed = seed, .latency = from_seconds(0.001 * double(1 + below(40)))}) {
    report_.seed = seed;
  }

  FaultReport run() {
    const bool download = below(4) == 0;
    arrange(download);
    fault_ = static_cast<Fault>(below(download ? static_cast<std::size_t>(Fault::slow) + 1 : kFaults.size()));
    if (fault_ == Fault::hostile || fault_ == Fault::other_parts || fault_ == Fault::not_a_number) prepare_bad_peer();
    at_message_ = 1 + below(below(2) ? 300 : 60);
    victim_ = below(peers_.size());
    heals_after_ = from_seconds(double(1 + below(20)));
    repeats_ = 1 + below(4);
    report_.scenario = fmt::format("{}, {} peers, {} at message {}, victim {}", download ? "download" : "round",
                                   peers_.size(), kFaults[static_cast<std::size_t>(fault_)], at_message_, victim_);
    swarm_.fabric().set_tap([this](const std::string&, const std::string&, ByteView) { return on_message(); });
    download ? run_download() : run_round();
    swarm_.fabric().set_tap(nullptr);
    report_.struck = fault_ >= Fault::not_a_number || (fault_ != Fault::none && messages_ >= at_message_);
    clean_up();
    return std::move(report_);
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  template <class... Args>
  void violated(fmt::format_string<Args...> format, Args&&... args) {
    report_.violated.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void observe(std::uint64_t value) { report_.digest = (report_.digest ^ value) * 0x9e3779b97f4a7c15ull + 1; }

  // ---- Arranging

  void arrange(bool download) {
    const std::size_t count = download ? 3 + below(2) : 2 + below(4);
    shapes_ = {static_cast<std::uint32_t>(1 + below(3000)), static_cast<std::uint32_t>(below(40))};
    const std::size_t part = 128 << below(5);
    const codec::Codec codecs[] = {codec::Codec::none, codec::Codec::none, codec::Codec::float16,
                                   codec::Codec::uniform8};
    const auto codec = codecs[below(4)];
    const std::size_t target = below(2) ? count : 0;
    const bool extended = below(4) == 0;
    for (std::size_t i = 0; i < count; ++i) {
      AveragerOptions options;
      options.prefix = "faults";
      options.min_matchmaking_time = 2s;
      options.request_timeout = 1s;
      options.sender_timeout = 3s;
      options.reducer_timeout = 6s;
      options.allreduce_timeout = kRoundTimeout;
      options.part_size_bytes = part;
      options.codec = codec;
      options.target_group_size = target;
      const Aggregation aggregations[] = {Mean(), Mean(), TrimmedMean{0.3}, CenteredClip{0.5, 3}};
      if (extended) options.extension = codec::ExtensionOptions{codec::Extension::block4};
      options.aggregation = aggregations[below(4)];  // everybody's own choice
      if (!download && i > 1 && below(5) == 0) options.mode = below(2) ? PeerMode::client : PeerMode::auxiliary;
      add_peer(options);
    }
  }

  void add_peer(AveragerOptions options) {
    const bool client = options.mode == PeerMode::client;
    p2p::HostOptions host_options;
    host_options.routing_server = !client;
    auto& host = swarm_.add_host(host_options, !client);
    auto peer = std::make_unique<Peer>();
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
    for (std::uint32_t size : shapes_) {
      std::vector<float> values(size);
      for (float& value : values) value = static_cast<float>(below(2001)) / 1000 - 1;
      peer->values.push_back(std::move(values));
    }
    peer->inputs = peer->values;
    peers_.push_back(std::move(peer));
    make_averager(*peers_.back());
  }

  void make_averager(Peer& peer) {
    std::vector<AveragedTensor> tensors;
    for (auto& values : peer.values) tensors.push_back({values, {static_cast<std::uint32_t>(values.size())}});
    peer.averager = std::make_unique<Averager>(*peer.dht, std::move(tensors), peer.options);
    peer.averager->start();
  }

  /// The last peer is made to misbehave.
  void prepare_bad_peer() {
    Peer& bad = *peers_.back();
    bad.lost = true;
    bad.averager.reset();
    if (fault_ == Fault::not_a_number) {
      auto& values = bad.values[0];
      values[below(values.size())] = below(2) ? NAN : INFINITY;
    } else if (fault_ == Fault::other_parts) {
      bad.options.part_size_bytes = bad.options.part_size_bytes * 3 / 2;
    } else {
      bad.options.mode = PeerMode::node;
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
        Peer& victim = *peers_[victim_];
        victim.lost = true;
        victim.step.reset();
        victim.averager.reset();
        victim.dht.reset();
        swarm_.remove_host(victim_);
        break;
      }
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
        const transport::SimLink slow{.latency = from_seconds(0.05 * double(1 + below(10))),
                                      .bandwidth = double(20'000 << below(6))};
        for (std::size_t i = 0; i < peers_.size(); ++i)
          if (i != victim_) swarm_.fabric().set_link(ip, sim::Swarm::ip(i + 1), slow);
        break;
      }
      default:
        break;
    }
  }

  // ---- A round

  void run_round() {
    armed_ = true;
    const TimePoint start = swarm_.runtime().now();
    for (auto& peer : peers_) {
      peer->step = std::make_unique<TaskGroup>(swarm_.runtime());
      if (peer->hostile) {
        peer->step->spawn(peer->hostile->misbehave());
        continue;
      }
      StepOptions options;
      options.weight = peer->weight;
      options.timeout = kStepTimeout;
      options.allow_retries = below(2) == 0;
      peer->step->spawn([](Peer& self, StepOptions step) -> Task<void> {
        self.result.emplace(co_await self.averager->step(step));
        self.ended = self.averager->dht().runtime().now();
      }(*peer, options));
    }
    swarm_.pass(kStepTimeout + kRoundTimeout + kSlack);
    armed_ = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = *peers_[i];
      if (peer.lost) continue;
      if (!peer.result) {
        violated("peer {} has not ended in time", i);
        continue;
      }
      ++(*peer.result ? report_.rounds : report_.failed);
      observe(static_cast<std::uint64_t>((peer.ended - start).count()));
    }
    check_values();
  }

  /// Nobody's values leave the range of the inputs, and who finished a part holds the same as the others.
  void check_values() {
    float least = 0, most = 0;
    float rounding = kTolerance + (peers_[0]->options.extension ? 0.02f : 0);  // scales are rounded up
    if (codec() == codec::Codec::uniform8) rounding = 0.5;                     // see aggregation.hpp
    for (const auto& peer : peers_)
      for (const auto& tensor : peer->inputs)
        for (float value : tensor)
          if (std::isfinite(value)) least = std::min(least, value), most = std::max(most, value);
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
    const Peer& any = *peers_[members.front()];
    const auto& group = (*any.result)->group;
    std::vector<PartedTensor> tensors;
    std::uint64_t total = 0;
    for (std::uint32_t size : shapes_) {
      tensors.push_back({size, 4 * any.options.codec.ratio({tensors.size(), {size}}).value()});
      total += size;
    }
    for (const Part& part :
         cut_into_parts(tensors, any.options.part_size_bytes, peer_fractions(total, group).value())) {
      const PeerId& owner = group[part.owner].peer;
      const bool lying = std::any_of(peers_.begin(), peers_.end(),
                                     [&](const auto& p) { return p->hostile && p->hostile->id() == owner; });
      if (lying) continue;
      std::vector<std::size_t> finished;
      for (std::size_t i : members) {
        const auto& failed = (*peers_[i]->result)->failed_reducers;
        if (std::find(failed.begin(), failed.end(), owner) == failed.end()) finished.push_back(i);
      }
      // Without any weight there is no average, and everybody's values stay.
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
    const bool extended = (*peers_[owner]->result)->extension.has_value();
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

  codec::Codec codec() const { return *peers_[0]->options.codec.fixed(); }
  static std::span<const float> of(const std::vector<std::vector<float>>& tensors, const Part& part) {
    return std::span<const float>(tensors[part.tensor]).subspan(part.offset, part.length);
  }

  // ---- A download

  static SharedState state_of(std::size_t donor) {
    codec::Tensor tensor{codec::DType::float32, {60'000}, false, Slice::uninitialised(240'000)};
    std::fill_n(tensor.data.mutable_data(), tensor.data.size(), static_cast<std::uint8_t>(donor));
    codec::Tensor small{codec::DType::int64, {}, false, Slice::copy_of(Bytes(8, static_cast<std::uint8_t>(donor)))};
    return {msgpack::Map{{{"donor", static_cast<int>(donor)}}}, {tensor, small}};
  }

  void run_download() {
    for (std::size_t i = 0; i + 1 < peers_.size(); ++i) {
      peers_[i]->averager->set_state_provider([i]() -> std::optional<SharedState> { return state_of(i); });
      peers_[i]->averager->set_state_priority(static_cast<double>(below(3)));
    }
    swarm_.pass(3s);
    if (victim_ + 1 == peers_.size()) victim_ = 0;  // the newcomer itself stays
    armed_ = true;
    Peer& newcomer = *peers_.back();
    std::optional<Result<DownloadedState>> state;
    newcomer.step = std::make_unique<TaskGroup>(swarm_.runtime());
    newcomer.step->spawn([](Peer& self, std::optional<Result<DownloadedState>>& out) -> Task<void> {
      out.emplace(co_await self.averager->download_state({.limit = kDownloadTimeout}));
      self.ended = self.averager->dht().runtime().now();
    }(newcomer, state));
    swarm_.pass(kDownloadTimeout + kSlack);
    armed_ = false;
    observe(static_cast<std::uint64_t>(newcomer.ended.time_since_epoch().count()));
    if (!state) return violated("the download has not ended in time");
    ++(*state ? report_.rounds : report_.failed);
    if (!*state) {
      // One donor at most is lost, and links heal.
      violated("no state although there are donors: {}", state->error().message());
      return;
    }
    const auto* donor = (*state)->metadata.get_if<msgpack::Map>();
    const auto number = donor && donor->find("donor") ? donor->find("donor")->as_uint() : std::nullopt;
    if (!number || *number + 1 >= peers_.size() || (*state)->tensors.size() != 2)
      return violated("a state that nobody shared");
    const SharedState expected = state_of(*number);
    for (std::size_t i = 0; i < 2; ++i)
      if (!std::ranges::equal((*state)->tensors[i].data.view(), expected.tensors[i].data.view()))
        return violated("the state is damaged");
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
    for (auto& peer : peers_) {
      peer->step.reset();
      peer->hostile.reset();
      peer->averager.reset();
      peer->dht.reset();
    }
    if (const std::string left = swarm_.left_behind(); !left.empty()) violated("left behind: {}", left);
  }

  std::mt19937_64 random_;
  FaultReport report_;
  sim::Swarm swarm_;
  std::vector<std::uint32_t> shapes_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<TaskGroup> healing_;
  Fault fault_ = Fault::none;
  std::size_t at_message_ = 0, messages_ = 0, victim_ = 0, repeats_ = 0, broken_ = 0;
  Duration heals_after_{};
  bool armed_ = false;
};

}  // namespace

FaultReport run_faults(std::uint64_t seed) {
  return Scenario(seed).run();
}

}  // namespace cohive::averaging
