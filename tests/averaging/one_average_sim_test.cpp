// Groups whose reducers encode an average once, and whose members all take what it decodes to.
#include <cmath>
#include <numeric>

#include "averaging/averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

using codec::Codec;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class OneAverage : public Averaging {
 protected:
  AveragerOptions asking(Codec ordinary, std::optional<Codec> agreed = std::nullopt) {
    AveragerOptions options = quick();
    options.codec = ordinary;
    if (agreed) options.agreed_codec = codec::CodecSpec(*agreed, 0.1);
    options.one_average = true;
    return options;
  }
  /// Gives every peer values of its own, about a wave that all have in common.
  void draw() {
    for (std::size_t i = 0; i < peers.size(); ++i)
      for (std::size_t k = 0; k < peers[i]->a.size(); ++k)
        peers[i]->a[k] =
            std::sin(0.37f * static_cast<float>(k)) + 0.3f * std::cos(static_cast<float>((i + 2) * (k + 1)));
  }
};

// ---- Bytes

class BitsPerValue : public OneAverage, public ::testing::WithParamInterface<std::tuple<std::size_t, Codec, double>> {};

TEST_P(BitsPerValue, AreFewBothWaysAndAllMembersHoldTheSame) {
  const auto [members, kind, most] = GetParam();
  const bool agreed = codec::info(kind).needs_agreement;
  auto options = asking(agreed ? Codec::float16 : kind, agreed ? std::optional(kind) : std::nullopt);
  options.part_size_bytes = 1 << 18;
  const std::size_t size = 262'144 * members;  // a code book has 1 KiB, which fewer values would feel
  for (std::size_t i = 0; i < members; ++i) add(options, size);
  draw();
  auto rounds = begin_all();
  for (auto& round : rounds)
    while (round.stage() == Round::Stage::looking_for_group) swarm.pass(10ms);
  std::uint64_t on_the_wire = 0;
  swarm.fabric().set_tap([&](const std::string&, const std::string&, ByteView bytes) {
    on_the_wire += bytes.size();
    return true;
  });
  for (auto& round : rounds) round.trigger();
  std::uint64_t sent = 0, received = 0;
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), members);
    EXPECT_TRUE(result->one_average);
    EXPECT_EQ(result->parts_failed, 0u);
    sent += result->bytes_sent;
    received += result->bytes_received;
  }
  swarm.fabric().set_tap(nullptr);
  const double values = static_cast<double>((size + 7) * (members - 1));  // of all members, in parts of others
  EXPECT_LE(8 * static_cast<double>(sent) / values, most);
  EXPECT_LE(8 * static_cast<double>(received) / values, most);
  EXPECT_LE(8 * static_cast<double>(on_the_wire) / values, 1.005 * most) << "with all that goes around them";
  for (auto& peer : peers) EXPECT_TRUE(same_bits(peer->a, peers[0]->a));
}
INSTANTIATE_TEST_SUITE_P(OneAverage, BitsPerValue,
                         ::testing::Combine(::testing::Values(4, 16), ::testing::Values(Codec::block4),
                                            ::testing::Values(8.6)));
INSTANTIATE_TEST_SUITE_P(OneAverageOfUniform8, BitsPerValue,
                         ::testing::Combine(::testing::Values(4, 16), ::testing::Values(Codec::uniform8),
                                            ::testing::Values(16.1)));

// ---- What members hold

struct Way {
  const char* name;
  Codec ordinary;
  std::optional<Codec> agreed;
  Aggregation how;
  double lost;  ///< of the mean of values up to 1.3
};

class OneAverageInAnyWay : public OneAverage, public ::testing::WithParamInterface<Way> {};

TEST_P(OneAverageInAnyWay, IsTheSameForAllToTheBit) {
  const Way& way = GetParam();
  auto options = asking(way.ordinary, way.agreed);
  options.aggregation = way.how;
  for (int i = 0; i < 3; ++i) add(options, 3000);
  options.mode = PeerMode::client;
  add(options, 3000);
  draw();
  const auto expected = mean_of_all();
  options.mode = PeerMode::auxiliary;
  add(options, 3000);
  auto steps = same();
  steps[4].weight = 0;
  for (const auto& result : step_all(steps)) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 5u);
    EXPECT_TRUE(result->one_average);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (auto& peer : peers) EXPECT_TRUE(same_bits(peer->a, peers[0]->a));
  for (std::size_t k = 0; k < expected.size(); ++k)
    ASSERT_NEAR(static_cast<double>(peers[0]->a[k]), expected[k], way.lost) << k;
}
INSTANTIATE_TEST_SUITE_P(OneAverage, OneAverageInAnyWay,
                         ::testing::Values(Way{"none", Codec::none, std::nullopt, Mean(), 1e-5},
                                           Way{"float16", Codec::float16, std::nullopt, Mean(), 2e-3},
                                           Way{"meanstd16", Codec::meanstd16, std::nullopt, Mean(), 2e-2},
                                           Way{"quantile8", Codec::quantile8, std::nullopt, Mean(), 0.1},
                                           Way{"uniform8", Codec::uniform8, std::nullopt, Mean(), 0.1},
                                           Way{"blockwise8", Codec::blockwise8, std::nullopt, Mean(), 0.1},
                                           Way{"block4", Codec::float16, Codec::block4, Mean(), 0.3},
                                           Way{"top_k", Codec::float16, Codec::top_k, Mean(), 1.5},
                                           Way{"sparse2", Codec::float16, Codec::sparse2, Mean(), 1.5},
                                           Way{"of_senders", Codec::float16, Codec::sparse2, MeanOfSenders(), 2.6},
                                           Way{"of_clipped", Codec::float16, Codec::sparse2, MeanOfSenders{1}, 2.6},
                                           Way{"trimmed", Codec::none, Codec::block4, TrimmedMean{0.3}, 0.5},
                                           Way{"centered", Codec::float16, std::nullopt, CenteredClip{5, 3}, 0.5},
                                           Way{"clipped", Codec::uniform8, std::nullopt, ClippedMean{1.5}, 0.5}),
                         [](const auto& test) { return std::string(test.param.name); });

/// What members owe of what they have sent is paid; the answer's own loss is nobody's, and small beside a gradient's
/// noise.
TEST_F(OneAverage, WhatMembersOweIsSentWithTheNextRound) {
  const auto options = asking(Codec::float16, Codec::block4);
  for (int i = 0; i < 3; ++i) add(options);
  draw();
  std::vector<double> wanted = mean_of_all(), delivered(1000);
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
    for (std::size_t k = 0; k < 1000; ++k) delivered[k] += static_cast<double>(peers[0]->a[k]) / kRounds;
    draw();
  }
  double off = 0;
  for (std::size_t k = 0; k < 1000; ++k) off += std::abs(delivered[k] - wanted[k]) / 1000;
  EXPECT_LT(off, 0.05) << "a twenty-sixth of the largest value; in one round 4 bits are off by twice that";
}

/// The first parts have been added up; the next one has to wait for a member that has sent nothing yet.
TEST_F(OneAverage, PartsThatWaitToBeAddedCountAsFilledByTheirSender) {
  constexpr std::size_t kPart = 1 << 16, kOpenParts = 4;
  auto options = asking(Codec::none);
  options.part_size_bytes = kPart * sizeof(float);
  options.sender_timeout = 30s;
  options.reducer_timeout = 60s;
  options.allreduce_timeout = 120s;
  add(options, kPart * (kOpenParts + 1));
  options.mode = PeerMode::client;
  for (int i = 0; i < 2; ++i) add(options, kPart * (kOpenParts + 1));
  auto rounds = begin_all();
  for (auto& round : rounds)
    while (round.stage() == Round::Stage::looking_for_group) swarm.pass(10ms);
  const MemoryBudget& memory = peers[0]->dht->host().memory();
  const std::size_t before = memory.held();
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger();
  swarm.pass(3s);
  EXPECT_GE(memory.held(), kPart * sizeof(float));
  EXPECT_LT(memory.held(), before + 2 * kPart * sizeof(float)) << "those that were added are kept by nobody";
  rounds[2].trigger();
  for (auto& round : rounds) ASSERT_TRUE(swarm.run(round.result()));
  swarm.pass(3s);
  EXPECT_LT(memory.held(), before + kPart * sizeof(float));
}

TEST_F(OneAverage, OfAReducerThatDiesIsHeldByAllThatHaveIt) {
  const auto options = asking(Codec::float16, Codec::block4);
  for (int i = 0; i < 4; ++i) add(options, 60'000);
  draw();
  std::vector<std::vector<float>> before;
  for (auto& peer : peers) before.push_back(peer->a);
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 2e4});
  auto rounds = begin_all();
  for (auto& round : rounds)
    while (round.stage() == Round::Stage::looking_for_group) swarm.pass(10ms);
  for (auto& round : rounds) round.trigger();
  ASSERT_NO_FATAL_FAILURE(crash_the_fourth_amid(rounds));
  std::size_t averaged = 0;
  for (std::size_t k = 0; k < 60'000; ++k) {
    std::vector<float> held;
    for (std::size_t i = 0; i < 3; ++i)
      if (peers[i]->a[k] != before[i][k]) held.push_back(peers[i]->a[k]);
    averaged += held.size() == 3;
    for (float value : held) ASSERT_EQ(value, held[0]) << k;
  }
  EXPECT_GT(averaged, 40'000u);
}

/// Which member, leader or follower, does not ask for it.
class OneAverageOddMember : public OneAverage, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(OneAverageOddMember, MeansThatAllAreAnsweredWithDifferences) {
  for (std::size_t i = 0; i < 3; ++i) {
    auto options = asking(Codec::float16, Codec::block4);
    if (i == GetParam()) options.one_average = false;
    add(options);
  }
  draw();
  const auto expected = mean_of_all();
  for (const auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_FALSE(result->one_average);
    EXPECT_EQ(result->agreed_codecs, codec::CodecSet{Codec::block4});
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (auto& peer : peers)
    for (std::size_t k = 0; k < 1000; ++k) ASSERT_NEAR(static_cast<double>(peer->a[k]), expected[k], 0.15);
}
INSTANTIATE_TEST_SUITE_P(OneAverage, OneAverageOddMember, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace cohive::averaging
