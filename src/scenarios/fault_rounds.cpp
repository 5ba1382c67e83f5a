// Rounds of averaging in which something goes wrong: survivors end in time, and hold what the owners of parts averaged.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>

#include "averaging/rounds/partition.hpp"
#include "scenarios/fault_setting.hpp"
#include "scenarios/held_values.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kStepTimeout = 20s;
constexpr float kTolerance = 4e-3f;  // of halves that stand for differences up to 2

class RoundFaults final : public FaultSetting {
 public:
  using FaultSetting::FaultSetting;

 private:
  bool is_download() const override { return false; }
  bool has_offender() const override { return fault_ == Fault::hostile || fault_ == Fault::other_parts; }

  void act() override {
    for (std::size_t i = 0; i < rounds_before_; ++i) {
      run_round();
      if (report_.failed > 0) violated("nothing was wrong, and a step failed");
    }
    if (fault_ == Fault::hostile || fault_ == Fault::other_parts || fault_ == Fault::not_a_number) prepare_bad_peer();
    armed_ = true;
    run_round();
    armed_ = false;
    if (!round_after_ || !report_.violated.empty()) return;
    heal();
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
    const RoundReport& result = **peer.result;
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
      if ((*any.result)->one_average) {
        check_equal(members, owner, part);
        if (!report_.violated.empty()) return;
        continue;
      }
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

  /// All that have the average hold the same bits, also of an owner that has died; the others hold what they had.
  void check_equal(const std::vector<std::size_t>& members, const PeerId& owner, const Part& part) {
    std::vector<std::size_t> changed;
    for (std::size_t i : members)
      if (!std::ranges::equal(of(peers_[i]->inputs, part), of(peers_[i]->values, part))) changed.push_back(i);
    if (changed.empty()) return;
    const auto is_exact = [&](std::size_t i) { return !peers_[i]->handed || peers_[i]->handed->is_exact(); };
    const auto exact = std::ranges::find_if(changed, is_exact);
    const std::size_t first = exact == changed.end() ? changed.front() : *exact;
    const auto average = of(peers_[first]->values, part);
    report_.one_average += changed.size() > 1;
    for (std::size_t i : members) {
      const auto own = of(peers_[i]->inputs, part), held = of(peers_[i]->values, part);
      const double tolerance = is_exact(i) && is_exact(first) ? 0 : 1e-6 * rounds_;
      const auto differs = [&](std::size_t k) {
        return std::abs(static_cast<double>(held[k] - average[k])) > tolerance;
      };
      const auto places = std::views::iota(std::size_t{0}, part.length);
      if (std::ranges::none_of(places, differs)) continue;
      const bool missed = std::ranges::count(std::as_const(*peers_[i]->result)->failed_reducers, owner) > 0;
      if (std::ranges::equal(own, held) && (missed || is_not_believed(*peers_[i], own, average))) continue;
      const std::size_t at = *std::ranges::find_if(places, differs);
      return violated("peer {} holds {} where peer {} has the average {} of owner {}", i, held[at], first, average[at],
                      owner);
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
      if (is_not_believed(*peers_[i], own, average) && std::ranges::equal(own, held)) continue;
      const auto expected = extended ? through(codec(), average) : held_after(codec(), own, average);
      double tolerance = 1e-5;
      if (codec() == codec::Codec::float16) tolerance = 2e-3;
      // A value stands for its bin as the mean of all that are in it, which may be at either end of it.
      if (codec() == codec::Codec::uniform8)
        tolerance += 2.1 * UniformError(extended ? std::vector(average.begin(), average.end())
                                                 : difference(average, through(codec(), own)))
                               .most;
      for (std::size_t k = 0; k < part.length; ++k)
        if (std::abs(static_cast<double>(held[k] - expected[k])) > tolerance)
          return violated("peer {} holds {} where {}, with the average {} of owner {}, makes it {}", i, held[k], own[k],
                          average[k], owner, expected[k]);
    }
  }

  /// Where contributions are trimmed or clipped, a peer keeps its own values in place of an average that is far longer
  /// than what it sent: a few values are so by chance, and of top-k any may have been sent.
  static bool is_not_believed(const Participant& peer, std::span<const float> own, std::span<const float> average) {
    const auto length = [](std::span<const float> values) {
      return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
    };
    constexpr double kFarLonger = 29;
    const bool any_sent = (*peer.result)->agreed_codecs.contains(codec::Codec::top_k);
    return !std::holds_alternative<Mean>(peer.options.aggregation) &&
           (any_sent || length(average) > kFarLonger * length(own));
  }

  codec::Codec codec() const { return peers_[0]->options.codec.fixed()->codec; }
  static std::span<const float> of(const std::vector<std::vector<float>>& tensors, const Part& part) {
    return std::span<const float>(tensors[part.tensor]).subspan(part.offset, part.length);
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
      bad.hostile = std::make_unique<HostilePeer>(*bad.dht, bad.options, shapes_, random_());
      return;
    }
    make_averager(bad);
  }

  std::size_t rounds_ = 0;
};

}  // namespace

std::unique_ptr<FaultSetting> make_round_faults(std::uint64_t seed, bool one_average) {
  return std::make_unique<RoundFaults>(seed, one_average);
}

}  // namespace cohive::averaging
