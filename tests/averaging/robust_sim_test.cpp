// Groups with members that lie about their values, and what those do to the others.
#include <array>
#include <cmath>
#include <random>

#include "averaging/averaging_fixture.hpp"
#include "averaging/rounds/partition.hpp"
#include "scenarios/held_values.hpp"
#include "scenarios/hostile_peer.hpp"

namespace cohive::averaging {
namespace {

class Liars : public Averaging {
 protected:
  /// `honest` members with values 0, 1, 2... and liars, clients that own no part, with huge ones.
  void form(std::size_t honest, std::size_t liars, const Aggregation& how, codec::Codec codec = codec::Codec::none,
            float lie = 1e20f) {
    auto options = quick();
    options.aggregation = how;
    options.codec = codec;
    for (std::size_t i = 0; i < honest; ++i) add(options);
    options.mode = PeerMode::client;
    for (std::size_t i = 0; i < liars; ++i) {
      auto& liar = add(options);
      liar.a.assign(liar.a.size(), lie);
      liar.b.assign(liar.b.size(), -lie);
    }
    auto steps = same();
    for (std::size_t i = honest; i < honest + liars; ++i) steps[i].weight = 1e6;
    for (auto& result : step_all(steps)) {
      ASSERT_TRUE(result) << result.error();
      ASSERT_EQ(result->group.size(), honest + liars);
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->lost_senders.empty());
    }
  }
};

TEST_F(Liars, MoveAMeanAnywhere) {
  form(3, 1, Mean());
  EXPECT_GT(peers[0]->a[0], 1e19f);
}

TEST_F(Liars, CannotMoveATrimmedMeanOutOfTheHonestRange) {
  form(5, 2, TrimmedMean{0.3});
  for (std::size_t i = 0; i < 5; ++i) {
    for (float value : peers[i]->a) ASSERT_NEAR(value, 3, 1e-5) << "2, 3 and 4 are left";
    for (float value : peers[i]->b) ASSERT_NEAR(value, 10, 1e-4) << "0, 10 and 20 are left";
  }
}

TEST_F(Liars, AreWhatTheyAreInEightBitsToo) {
  form(5, 2, TrimmedMean{0.3}, codec::Codec::uniform8);
  for (std::size_t i = 0; i < 5; ++i)
    for (float value : peers[i]->a) ASSERT_NEAR(value, 3, 0.1);
}

TEST_F(Liars, MoveACenteredClipALittle) {
  const CenteredClip how{2.0, 3};
  form(5, 2, how);
  // Parts of `a` hold 128 values, and liars are two of seven.
  for (std::size_t i = 0; i < 5; ++i) {
    double outside = 0;
    for (std::size_t k = 0; k < 128; ++k) outside += std::pow(std::max(0.0f, peers[i]->a[k] - 4), 2);
    EXPECT_LE(std::sqrt(outside), how.radius * how.iterations * 2 / 7 + 1e-3);
    for (std::size_t k = 0; k < 128; ++k) ASSERT_GE(peers[i]->a[k], 0);
  }
}

TEST_F(Liars, PullAClippedMeanByTheirShareOfTheMedianNorm) {
  form(5, 2, ClippedMean{1.5}, codec::Codec::none, 1e15f);
  // In each part of `a` the members hold 0 to 4 and the liars 1e15 with a large weight: the median norm is that of 3,
  // and a liar counts as 4.5 with a weight of 1.5.
  for (std::size_t i = 0; i < 5; ++i)
    for (float value : peers[i]->a) ASSERT_NEAR(value, (0 + 1 + 2 + 3 + 4 + 2 * 1.5 * 4.5) / (5 + 2 * 1.5), 1e-4);
}

TEST_F(Liars, AggregatesAreEachReducersOwnChoice) {
  auto options = quick();
  for (const Aggregation& how :
       {Aggregation(Mean()), Aggregation(TrimmedMean{0.2}), Aggregation(CenteredClip{1e9, 1})}) {
    options.aggregation = how;
    add(options);
  }
  for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers)
    for (float value : peer->a) ASSERT_NEAR(value, 1, 1e-5) << "mean, median and clipped mean of 0, 1 and 2";
}

TEST_F(Averaging, ClientsAndAuxiliariesTakePartInATrimmedMean) {
  auto options = quick();
  options.aggregation = TrimmedMean{0.3};
  add(options);
  add(options);
  options.mode = PeerMode::client;
  add(options);
  options.mode = PeerMode::auxiliary;
  add(options);
  peers[3]->a.assign(1000, 500);
  auto steps = same();
  steps[3].weight = 0;
  for (auto& result : step_all(steps)) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 1e-6) << "of 0, 1 and 2: who weighs nothing has no vote";
}

TEST_F(Averaging, ASenderOfNonsenseIsLeftOutOfATrimmedMeanAndNamed) {
  auto options = quick();
  options.aggregation = TrimmedMean{0.3};
  for (int i = 0; i < 4; ++i) add(options);
  for (float& value : peers[1]->a) value = NAN;
  const auto results = step_all(same());
  for (std::size_t i : {0u, 2u, 3u}) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->lost_senders, std::vector{peers[1]->dht->host().id()});
  }
  EXPECT_NEAR(peers[0]->a[0], 2.0f, 1e-6) << "of 0, 2 and 3";
}

class EightBitRounds : public Averaging, public ::testing::WithParamInterface<Aggregation> {};

/// Peers may end far apart in uniform 8-bit, because differences to a middle vote are zero for many values and large
/// for some; but no farther than the codec's bound, and each exactly where its reducer meant it to be.
TEST_P(EightBitRounds, LeaveMembersWithinTheCodecsErrorOfTheAverage) {
  auto options = quick();
  options.aggregation = GetParam();
  constexpr codec::Codec kCodec = codec::Codec::uniform8;
  options.codec = kCodec;
  constexpr std::size_t kSize = 3000;
  std::mt19937_64 random(5);
  std::vector<std::vector<float>> inputs;
  for (int i = 0; i < 3; ++i) {
    auto& peer = add(options, kSize);
    for (float& value : peer.a) value = static_cast<float>(random() % 2001) / 1000 - 1;
    inputs.push_back(peer.a);
  }
  const auto results = step_all(same());
  for (const auto& result : results) ASSERT_TRUE(result) << result.error();
  const std::vector<PartedTensor> parted{{kSize, 1}, {7, 1}};
  const auto fractions = peer_fractions(kSize + 7, results[0]->group).value();
  const auto index_of = [&](std::size_t member) {
    std::size_t i = 0;
    while (peers[i]->dht->host().id() != results[0]->group[member].peer) ++i;
    return i;
  };
  double farthest = 0;
  for (const Part& part : cut_into_parts(parted, options.part_size_bytes, fractions)) {
    if (part.tensor != 0) continue;
    const std::size_t owner = index_of(part.owner);
    const auto of = [&](std::span<const float> values) { return values.subspan(part.offset, part.length); };
    const auto average = of(peers[owner]->a);  // no codec lies between an owner and its parts
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (i == owner) continue;
      const auto own = of(inputs[i]), held = of(peers[i]->a);
      const auto expected = held_after(kCodec, own, average);
      const UniformError of_part(own), of_answer(difference(average, through(kCodec, own)));
      for (std::size_t k = 0; k < part.length; ++k) {
        ASSERT_NEAR(held[k], expected[k], of_answer.step) << "the owner's average is known up to rounding";
        const double off = std::abs(static_cast<double>(held[k] - average[k]));
        ASSERT_LE(off, of_part.most + of_answer.most + 1e-5);
        farthest = std::max(farthest, off);
      }
    }
  }
  if (std::holds_alternative<TrimmedMean>(GetParam())) EXPECT_GT(farthest, 0.1) << "many times the width of a bin";
}

std::string name_of(const ::testing::TestParamInfo<Aggregation>& test) {
  return std::array{"Mean", "TrimmedMean", "CenteredClip", "ClippedMean"}[test.param.index()];
}
INSTANTIATE_TEST_SUITE_P(OfEveryAggregation, EightBitRounds,
                         ::testing::Values(Aggregation(Mean()), Aggregation(TrimmedMean{0.3}),
                                           Aggregation(CenteredClip{0.5, 3}), Aggregation(ClippedMean{1.0})),
                         name_of);

TEST_F(Averaging, WhereContributionsAreClippedAnAverageFarBeyondThemIsNotUsed) {
  auto options = quick();
  options.aggregation = ClippedMean();
  for (int i = 0; i < 4; ++i) add(options);
  options.aggregation = Mean();  // clips nothing, of all its own values
  add(options);
  for (std::size_t i = 0; i < 5; ++i)
    for (auto* tensor : {&peers[i]->a, &peers[i]->b})
      std::ranges::fill(*tensor, i == 4 ? 1e6f : 1 + 0.1f * static_cast<float>(i));
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_EQ(results[i]->group.size(), 5u);
    EXPECT_GT(results[i]->parts_failed, 0u) << "those of the liar";
    EXPECT_TRUE(results[i]->liars.empty()) << "nothing is proven";
    for (float value : peers[i]->a) ASSERT_LT(value, 4);
  }
}

/// Zeros say nothing about how long an average may be; what a member sends otherwise does.
class ZerosWhereContributionsAreClipped : public Averaging {
 protected:
  /// One member that reduces everything, and four others, the first of them without anything in its second tensor.
  void form(const Aggregation& of_the_reducer, float value_of_the_reducer) {
    auto options = quick();
    options.aggregation = of_the_reducer;
    add(options);
    options.aggregation = ClippedMean();
    options.mode = PeerMode::client;
    for (int i = 0; i < 4; ++i) add(options);
    for (std::size_t i = 0; i < 5; ++i)
      for (auto* tensor : {&peers[i]->a, &peers[i]->b}) std::ranges::fill(*tensor, i == 0 ? value_of_the_reducer : 1);
    std::ranges::fill(peers[1]->b, 0.0f);
    const auto results = step_all(same());
    for (std::size_t i = 1; i < 5; ++i) {
      ASSERT_TRUE(results[i]) << results[i].error();
      ASSERT_EQ(results[i]->group.size(), 5u);
    }
  }
};

TEST_F(ZerosWhereContributionsAreClipped, AreNotAveragedToAnythingByALiar) {
  form(Mean(), 1e6f);
  for (float value : peers[1]->a) ASSERT_EQ(value, 1);
  for (float value : peers[1]->b) ASSERT_EQ(value, 0);
}

TEST_F(ZerosWhereContributionsAreClipped, TakeTheAverageOfAnHonestReducer) {
  form(ClippedMean(), 1);
  for (float value : peers[1]->b) ASSERT_NEAR(value, 0.8f, 1e-5);
}

/// A first part of 128 values with something that is not finite in it.
struct BadPart {
  codec::Codec codec;
  std::size_t at;      ///< of the buffer
  std::uint32_t bits;  ///< written there
  const char* reason;
};

class BadParts : public Averaging, public ::testing::WithParamInterface<BadPart> {};

TEST_P(BadParts, TheirSenderIsLeftOutNamedAndCounted) {
  const BadPart& bad = GetParam();
  auto options = quick();
  options.codec = bad.codec;
  constexpr std::uint32_t kSize = 6 * 1024;  // so that everybody's first part is a whole one
  for (int i = 0; i < 3; ++i) add(options, kSize);
  options.prefix = "test";
  peers[2]->averager.reset();
  has_hostile_peers = true;
  HostilePeer hostile(*peers[2]->dht, options, {kSize, 7}, 1);
  std::vector<float> values(options.part_size_bytes / 4 *
                            static_cast<std::size_t>(1 / codec::compression_ratio(bad.codec, codec::DType::float32)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  Slice buffer = codec::encode(bad.codec, values);
  std::memcpy(buffer.mutable_data() + bad.at, &bad.bits, sizeof bad.bits);
  TaskGroup hostilities(swarm.runtime());
  hostilities.spawn(hostile.send_part(static_cast<int>(bad.codec), buffer, values.size()));
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 2; ++i) rounds.push_back(peers[i]->averager->step());
  for (auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->lost_senders, std::vector{hostile.id()});
  }
  for (std::size_t i = 0; i < 2; ++i)
    for (float value : peers[i]->a) ASSERT_TRUE(value >= 0 && value <= 1);
  const std::string counted =
      std::string("cohive_averaging_banned_senders_total{averager=\"test\",reason=\"") + bad.reason + "\"} 2\n";
  EXPECT_NE(swarm.runtime().metrics().text().find(counted), std::string::npos);
}

constexpr std::uint32_t kNan = 0x7fc00000, kInfinity = 0x7f800000, kHalfInfinity = 0x7c00, kHalfNan = 0xfe00;
INSTANTIATE_TEST_SUITE_P(OfEveryCodec, BadParts,
                         ::testing::Values(BadPart{codec::Codec::none, 400, kNan, "not_finite"},
                                           BadPart{codec::Codec::none, 400, kInfinity, "not_finite"},
                                           BadPart{codec::Codec::float16, 100, kHalfInfinity, "not_finite"},
                                           BadPart{codec::Codec::float16, 100, kHalfNan, "not_finite"},
                                           BadPart{codec::Codec::meanstd16, 100, kHalfNan, "not_finite"},
                                           BadPart{codec::Codec::uniform8, 400, kInfinity, "not_finite"},
                                           BadPart{codec::Codec::quantile8, 400, kNan, "not_finite"},
                                           BadPart{codec::Codec::blockwise8, 16, kNan, "malformed"}),
                         [](const auto& test) {
                           return std::string(codec::name_of(test.param.codec)) + std::to_string(test.index);
                         });

}  // namespace
}  // namespace cohive::averaging
