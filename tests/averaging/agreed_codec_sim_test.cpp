// Codecs that a group agrees on, from the offer to the average.
#include <cmath>

#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "scenarios/hostile_peer.hpp"

namespace cohive::averaging {
namespace {

using codec::Codec;
using codec::CodecSet;

class AgreedCodecs : public Averaging {
 protected:
  AveragerOptions offering(std::optional<Codec> kind) {
    auto options = quick();
    if (kind) options.agreed_codec = codec::CodecSpec(*kind, 0.1);
    return options;
  }
};

TEST_F(AgreedCodecs, AreAgreedOnByAGroupWhoseMembersAllOfferThem) {
  for (int i = 0; i < 3; ++i) add(offering(Codec::block4));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->agreed_codecs, CodecSet{Codec::block4});
  }
}

/// Which member, leader or follower, offers something else or nothing.
class OddOffer : public AgreedCodecs,
                 public ::testing::WithParamInterface<std::tuple<std::size_t, std::optional<Codec>>> {};

TEST_P(OddOffer, OfOneMemberMeansTheOrdinaryCodec) {
  const auto [odd, other] = GetParam();
  for (std::size_t i = 0; i < 3; ++i) add(offering(i == odd ? other : Codec::block4));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_TRUE(result->agreed_codecs.empty());
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(AgreedCodecs, OddOffer,
                         ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Values(std::nullopt, Codec::top_k)));

/// What every member contributes to a round: gradients, say.
std::vector<float> update_of(std::size_t peer, int round, std::size_t size) {
  std::vector<float> update(size);
  for (std::size_t i = 0; i < size; ++i)
    update[i] =
        std::sin(static_cast<float>(i * (peer + 1)) + static_cast<float>(round) * 0.1f) + static_cast<float>(peer);
  return update;
}

class Feedback : public AgreedCodecs, public ::testing::WithParamInterface<std::tuple<Codec, Codec>> {
 protected:
  Codec kind = std::get<0>(GetParam());
  AveragerOptions feeding() {
    auto options = offering(kind);
    options.codec = std::get<1>(GetParam());
    return options;
  }
  /// One round of all, each with its update (or nothing); the average, which is the same for everybody.
  std::vector<float> average(std::optional<int> round) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
      peers[i]->a.assign(peers[i]->a.size(), 0.0f);
      if (round) std::ranges::copy(update_of(i, *round, peers[i]->a.size()), peers[i]->a.begin());
    }
    for (auto& result : step_all(same())) {
      EXPECT_TRUE(result) << result.error();
      if (!result) continue;
      EXPECT_EQ(result->agreed_codecs, CodecSet{kind});
      EXPECT_EQ(result->group.size(), peers.size());
      EXPECT_EQ(result->parts_failed, 0u);
    }
    const float rounding = std::get<1>(GetParam()) == Codec::none ? 0.0f : 2e-3f;
    for (auto& peer : peers)
      for (std::size_t k = 0; k < peer->a.size(); ++k)
        EXPECT_NEAR(peer->a[k], peers[0]->a[k], rounding * (1 + std::abs(peer->a[k])));
    return peers[0]->a;
  }
};
INSTANTIATE_TEST_SUITE_P(AgreedCodecs, Feedback,
                         ::testing::Combine(::testing::Values(Codec::block4, Codec::top_k),
                                            ::testing::Values(Codec::none, Codec::float16)));

TEST_P(Feedback, DeliversOverTheRoundsWhatEveryMemberShouldHaveSent) {
  constexpr int kRounds = 6, kPayingRounds = 12;
  for (int i = 0; i < 3; ++i) add(feeding());
  std::vector<double> delivered(1000), wanted(1000);
  for (int round = 0; round < kRounds + kPayingRounds; ++round) {
    // The last rounds bring nothing new: what was owed is paid. Owners of parts change with the order of the group.
    const auto mean = average(round < kRounds ? std::optional(round) : std::nullopt);
    for (std::size_t k = 0; k < 1000; ++k) {
      delivered[k] += static_cast<double>(mean[k]);
      if (round >= kRounds) continue;
      for (std::size_t i = 0; i < 3; ++i) wanted[k] += static_cast<double>(update_of(i, round, 1000)[k]) / 3;
    }
  }
  for (std::size_t k = 0; k < 1000; ++k) ASSERT_NEAR(delivered[k], wanted[k], 2e-2) << k;
}

TEST_P(Feedback, IsForgottenWhenTheModelIsReplaced) {
  for (int i = 0; i < 3; ++i) add(feeding());
  average(0);
  for (auto& peer : peers) peer->averager->reset_residuals();
  EXPECT_EQ(average(std::nullopt), std::vector<float>(1000));
}

TEST_P(Feedback, OfAMemberThatWeighsNothingIsNothing) {
  for (int i = 0; i < 2; ++i) add(feeding());
  peers[0]->a.assign(1000, 1.0f);
  for (std::size_t k = 0; k < 1000; ++k) peers[1]->a[k] = 1e6f * std::sin(static_cast<float>(k));
  auto steps = same();
  steps[1].weight = 0;
  for (auto& result : step_all(steps)) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers)
    for (float value : peer->a) ASSERT_TRUE(value >= -1e-3f && value <= 1.02f) << value;
  for (float value : average(std::nullopt)) ASSERT_LE(std::abs(value), 1.0f);
}

TEST_P(Feedback, WorksForClientsAndSendsFewerBytes) {
  add(feeding());
  auto options = feeding();
  options.mode = PeerMode::client;
  add(options);
  for (auto& peer : peers) peer->a.assign(1000, 1.0f);
  const auto results = step_all(same());
  for (auto& result : results) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
  }
  EXPECT_EQ(results[1]->agreed_codecs, CodecSet{kind});
  EXPECT_LT(results[1]->bytes_sent, 1000u) << "of 4028";
}

TEST_F(AgreedCodecs, AMemberThatSendsAnOrdinaryCodecAllTheSameIsAnsweredInIt) {
  for (int i = 0; i < 3; ++i) add(offering(Codec::block4));
  // Its tensors keep no residuals, so that it sends them as they are.
  const auto plain =
      std::make_shared<HostParts>(swarm.runtime(), peers[2]->averager->schema(),
                                  std::vector<TensorSpan>{TensorSpan(peers[2]->a), TensorSpan(peers[2]->b)});
  auto rounds = begin_all();
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger();
  rounds[2].trigger(1, plain);
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->agreed_codecs, CodecSet{Codec::block4});
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_TRUE(result->lost_senders.empty());
  }
  for (auto& peer : peers)
    for (float value : peer->a) ASSERT_NEAR(value, 1.0f, 0.02f);
}

TEST_F(AgreedCodecs, AreChosenForEachTensor) {
  auto options = quick();
  // The large tensor in 4 bits, the small one as the ordinary codec has it; top_k is for tensors that there are none
  // of.
  options.codec = Codec::float16;
  options.agreed_codec = codec::Compression::size_adaptive(
      100, Codec::none, codec::Compression::size_adaptive(5000, Codec::block4, codec::CodecSpec(Codec::top_k, 0.1)));
  for (int i = 0; i < 2; ++i) add(options);
  for (auto& peer : peers)
    for (std::size_t k = 0; k < 1000; ++k) peer->a[k] += std::sin(static_cast<float>(k));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->agreed_codecs, (CodecSet{Codec::block4, Codec::top_k}));
    EXPECT_LT(result->bytes_sent, 1000u * 17 / 32 / 2 + 1000 * 2 / 2 + 100) << "half of it in 4.25 bits, half in 16";
  }
  for (auto& peer : peers) {
    for (std::size_t k = 0; k < 1000; ++k)
      ASSERT_NEAR(peer->a[k], 0.5f + std::sin(static_cast<float>(k)), 0.15f) << "4 bits lose that much";
    EXPECT_EQ(peer->b[0], 5.0f) << "halves do not";
  }
}

TEST_F(AgreedCodecs, OfMembersThatOfferMoreOrLessAreThoseThatAllOffer) {
  auto both = quick();
  both.agreed_codec = codec::Compression::size_adaptive(100, codec::CodecSpec(Codec::top_k, 0.5), Codec::block4);
  add(both);
  add(offering(Codec::block4));
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->agreed_codecs, CodecSet{Codec::block4});
    EXPECT_EQ(result->parts_failed, 0u);
  }
  EXPECT_EQ(peers[0]->b[0], 5.0f) << "the tensor that top_k was for travels in the ordinary codec";
}

TEST_F(AgreedCodecs, APartThatWasNotTakenIsNotOwed) {
  for (int i = 0; i < 3; ++i) add(offering(Codec::block4), 60'000);
  for (std::size_t i = 0; i < 3; ++i) std::ranges::copy(update_of(i, 0, 60'000), peers[i]->a.begin());
  const auto before = peers[0]->a;
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e5});
  std::vector<Result<RoundReport>> results(3, Error(Errc::no_group));
  TaskGroup group(swarm.runtime());
  auto run = [](Averager& averager, Result<RoundReport>& out) -> Task<void> { out = co_await averager.step(); };
  for (std::size_t i = 0; i < 3; ++i) group.spawn(run(*peers[i]->averager, results[i]));
  swarm.pass(2200ms);  // past matchmaking, within the exchange
  swarm.fabric().crash(sim::Swarm::ip(3));
  swarm.pass(60s);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_GT(results[i]->parts_failed, 0u);
    ASSERT_LT(results[i]->parts_failed, results[i]->parts_total);
  }
  std::vector<bool> kept(60'000);
  for (std::size_t k = 0; k < kept.size(); ++k) kept[k] = peers[0]->a[k] == before[k];

  // The next round, with nothing new, pays what is owed.
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 2; ++i) {
    peers[i]->a.assign(60'000, 0.0f);
    rounds.push_back(peers[i]->averager->step());
  }
  for (auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->agreed_codecs, CodecSet{Codec::block4});
  }
  std::size_t paid = 0, failed = 0;
  for (std::size_t first = 0; first < 60'000 - 128; first += 128) {
    bool whole = true, nothing = true;
    for (std::size_t k = first; k < first + 128; ++k) whole &= kept[k], nothing &= peers[0]->a[k] == 0;
    failed += whole;
    paid += !nothing;
    if (whole) EXPECT_TRUE(nothing) << first;
  }
  EXPECT_GT(failed, 10u);
  EXPECT_GT(paid, 10u);
}

TEST_F(AgreedCodecs, ATrimmedMeanOfThemHoldsLiarsOff) {
  auto options = offering(Codec::block4);
  options.aggregation = TrimmedMean{0.3};
  for (int i = 0; i < 3; ++i) add(options);
  options.mode = PeerMode::client;
  add(options);
  peers[3]->a.assign(1000, 1e20f);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->agreed_codecs, CodecSet{Codec::block4});
  }
  for (std::size_t i = 0; i < 3; ++i)
    for (float value : peers[i]->a) ASSERT_NEAR(value, 1.5f, 0.02f) << "of 0, 1, 2 and the liar";
}

/// A first part that is not what a group agreed on.
struct WrongPart {
  const char* name;
  std::optional<Codec> agreed;
  int compression;
  Bytes buffer;
};

Bytes good_part(Codec kind) {
  return to_bytes(codec::encode({kind, 0.1}, update_of(1, 1, 128)).view());
}
Bytes bad_part(Codec kind, std::size_t at, std::uint16_t value) {
  Bytes bytes = good_part(kind);
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

class WrongParts : public AgreedCodecs, public ::testing::WithParamInterface<WrongPart> {};

TEST_P(WrongParts, CostTheirSenderItsPlaceInTheRound) {
  const WrongPart& wrong = GetParam();
  auto options = offering(wrong.agreed);
  constexpr std::uint32_t kSize = 3 * 1024;
  for (int i = 0; i < 3; ++i) add(options, kSize);
  options.prefix = "test";
  peers[2]->averager.reset();
  has_hostile_peers = true;
  HostilePeer hostile(*peers[2]->dht, options, {kSize, 7}, 1);
  TaskGroup hostilities(swarm.runtime());
  hostilities.spawn(hostile.send_part(wrong.compression, Slice::copy_of(wrong.buffer), 128));
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 2; ++i) rounds.push_back(peers[i]->averager->step());
  for (auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->agreed_codecs, wrong.agreed ? CodecSet{*wrong.agreed} : CodecSet{});
    EXPECT_EQ(result->lost_senders, std::vector{hostile.id()});
  }
  for (std::size_t i = 0; i < 2; ++i)
    for (float value : peers[i]->a) ASSERT_TRUE(value >= 0 && value <= 1.01f) << value;
  const std::string counted = "cohive_averaging_banned_senders_total{averager=\"test\",reason=\"malformed\"} 2\n";
  EXPECT_NE(swarm.runtime().metrics().text().find(counted), std::string::npos);
}

constexpr int kBlock4 = static_cast<int>(Codec::block4), kTopK = static_cast<int>(Codec::top_k);
INSTANTIATE_TEST_SUITE_P(
    AgreedCodecs, WrongParts,
    ::testing::Values(WrongPart{"ScaleThatIsInfinite", Codec::block4, kBlock4, bad_part(Codec::block4, 0, 0x7f80)},
                      WrongPart{"ScaleThatIsNan", Codec::block4, kBlock4, bad_part(Codec::block4, 2, 0x7fc0)},
                      WrongPart{"TooShort", Codec::block4, kBlock4, Bytes(60)},
                      WrongPart{"MoreValuesThanThereAre", Codec::top_k, kTopK, bad_part(Codec::top_k, 0, 0xffff)},
                      WrongPart{"PlaceOutOfRange", Codec::top_k, kTopK, bad_part(Codec::top_k, 4 + 2 * 12, 128)},
                      WrongPart{"ValueThatIsInfinite", Codec::top_k, kTopK, bad_part(Codec::top_k, 4 + 2 * 13, 0x7c00)},
                      WrongPart{"AnotherCodec", Codec::top_k, kBlock4, good_part(Codec::block4)},
                      WrongPart{"CodecThatWasNotAgreedOn", std::nullopt, kBlock4, good_part(Codec::block4)}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cohive::averaging
