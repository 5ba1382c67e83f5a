#include "averaging/schemes/robust.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace cohive::averaging {
namespace {

constexpr float kHuge = std::numeric_limits<float>::max();

Vote vote(std::size_t sender, std::vector<float> values, double weight = 1) {
  return {sender, weight, [values = std::move(values)](std::size_t first, std::span<float> out) {
            std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
            return true;
          }};
}

std::vector<float> result(const Aggregation& how, std::vector<Vote> votes, std::size_t size) {
  std::vector<float> out(size, 777);
  EXPECT_TRUE(aggregate(how, std::move(votes), out));
  return out;
}

/// A group whose last members lie.
struct VotingGroup {
  std::vector<Vote> votes;
  std::vector<float> low, high;  ///< of the honest ones
  VotingGroup(std::size_t honest, std::size_t liars, std::size_t size, unsigned seed)
      : low(size, kHuge), high(size, -kHuge) {
    std::mt19937 random(seed);
    std::normal_distribution<float> values(0.5f, 2);
    std::uniform_real_distribution<double> weights(0.1, 10);
    for (std::size_t i = 0; i < honest; ++i) {
      std::vector<float> own(size);
      for (float& value : own) value = values(random);
      for (std::size_t k = 0; k < size; ++k) low[k] = std::min(low[k], own[k]), high[k] = std::max(high[k], own[k]);
      votes.push_back(vote(i, own, weights(random)));
    }
    for (std::size_t i = 0; i < liars; ++i) {
      std::vector<float> lies(size);
      for (float& value : lies) value = random() % 2 ? kHuge : random() % 2 ? -kHuge : 100;
      votes.push_back(vote(honest + i, lies, i % 2 ? 1e300 : 1));
    }
  }
};

/// senders, liars
class Minority : public ::testing::TestWithParam<std::pair<std::size_t, std::size_t>> {
 protected:
  static constexpr std::size_t kSize = 2500;  // several blocks, the last one short
  std::size_t senders = GetParam().first, liars = GetParam().second;
  VotingGroup group{senders - liars, liars, kSize, 5};
};
INSTANTIATE_TEST_SUITE_P(Groups, Minority,
                         ::testing::Values(std::pair(3, 1), std::pair(4, 1), std::pair(5, 2), std::pair(8, 3),
                                           std::pair(33, 16), std::pair(300, 90)));

TEST_P(Minority, CannotMoveATrimmedMeanOutOfTheHonestRange) {
  const TrimmedMean how{std::min(0.499, static_cast<double>(liars) / static_cast<double>(senders))};
  const auto mean = result(how, group.votes, kSize);
  for (std::size_t k = 0; k < kSize; ++k) {
    ASSERT_GE(mean[k], group.low[k]) << k;
    ASSERT_LE(mean[k], group.high[k]) << k;
  }
}

TEST_P(Minority, MovesACenteredClipNoFurtherThanItsShareOfTheSteps) {
  const CenteredClip how{3.0, 4};
  const auto centre = result(how, group.votes, kSize);
  double outside = 0;
  for (std::size_t k = 0; k < kSize; ++k) {
    const double beyond = std::max({0.0f, group.low[k] - centre[k], centre[k] - group.high[k]});
    outside += beyond * beyond;
  }
  // No weight counts for more than the median, so that the share of the liars is at most this.
  std::vector<double> weights;
  for (const auto& one : group.votes) weights.push_back(one.weight);
  std::sort(weights.begin(), weights.end());
  const double most = weights[senders / 2];
  double total = 0, lying = 0;
  for (const auto& one : group.votes) {
    total += std::min(one.weight, most);
    if (one.sender >= senders - liars) lying += std::min(one.weight, most);
  }
  EXPECT_LE(std::sqrt(outside), how.iterations * how.radius * lying / total * 1.001);
}

TEST_P(Minority, PullsAClippedMeanNoFurtherThanAFactorOfTheMedianNorm) {
  const ClippedMean how{2.0};
  const auto norm = [](std::span<const float> values) {
    double squares = 0;
    for (float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(squares);
  };
  double largest = 0;
  for (const auto& one : group.votes) {
    if (one.sender >= senders - liars) continue;
    std::vector<float> values(kSize);
    ASSERT_TRUE(one.read(0, values));
    largest = std::max(largest, norm(values));
  }
  EXPECT_LE(norm(result(how, group.votes, kSize)), how.factor * largest * 1.001);
}

TEST_P(Minority, GainsNothingByTheOrderInWhichPartsCome) {
  for (const Aggregation& how :
       {Aggregation(TrimmedMean{0.3}), Aggregation(CenteredClip{3.0, 2}), Aggregation(ClippedMean{2.0})}) {
    auto shuffled = group.votes;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
    EXPECT_EQ(result(how, shuffled, kSize), result(how, group.votes, kSize));
  }
}

TEST(TrimmedMeanOf, HonestSendersIsTheWeightedMeanOfTheMiddle) {
  const std::vector votes{vote(0, {1, -9}, 1), vote(1, {2, 7}, 2), vote(2, {4, 5}, 4), vote(3, {3, 6}, 2),
                          vote(4, {100, 4}, 2)};
  const auto mean = result(TrimmedMean{0.2}, votes, 2);
  EXPECT_FLOAT_EQ(mean[0], (2 * 2 + 3 * 2 + 4 * 2) / 6.0f) << "4 counts as the median weight, 2";
  EXPECT_FLOAT_EQ(mean[1], (5 * 2 + 6 * 2 + 4 * 2) / 6.0f);
}

TEST(TrimmedMeanOf, FewSendersTrimsAtMostToTheMiddle) {
  EXPECT_EQ(trimmed_at_each_end({0.2}, 1), 0u);
  EXPECT_EQ(trimmed_at_each_end({0.49}, 2), 0u);
  EXPECT_EQ(trimmed_at_each_end({0.01}, 3), 1u) << "at least one";
  EXPECT_EQ(trimmed_at_each_end({0.49}, 4), 1u);
  EXPECT_EQ(trimmed_at_each_end({0.49}, 5), 2u);
  EXPECT_EQ(trimmed_at_each_end({0.1}, 30), 3u);
  EXPECT_EQ(trimmed_at_each_end({0.25}, 1000), 250u);
  EXPECT_EQ(result(TrimmedMean{0.4}, {vote(0, {7})}, 1)[0], 7);
  EXPECT_FLOAT_EQ(result(TrimmedMean{0.4}, {vote(0, {1}, 1), vote(1, {4}, 2)}, 1)[0], 3) << "two: their weighted mean";
}

TEST(TrimmedMeanOf, EqualValuesIsThatValue) {
  EXPECT_EQ(result(TrimmedMean{0.3}, {vote(0, {5}), vote(1, {5}), vote(2, {5}), vote(3, {5}, 9)}, 1)[0], 5);
}

TEST(CenteredClipOf, SendersWithinTheRadiusIsTheirWeightedMean) {
  const std::vector votes{vote(0, {1, 0}, 1), vote(1, {2, 3}, 2), vote(2, {4, 0}, 2), vote(3, {3, 1}, 2)};
  const auto centre = result(CenteredClip{100, 1}, votes, 2);
  EXPECT_FLOAT_EQ(centre[0], (1 + 4 + 8 + 6) / 7.0f);
  EXPECT_FLOAT_EQ(centre[1], (6 + 2) / 7.0f);
}

TEST(CenteredClipOf, DistantSendersPullByTheRadiusOnly) {
  const std::vector votes{vote(0, {0, 0}), vote(1, {0, 0}), vote(2, {30, 40})};
  const auto centre = result(CenteredClip{1.5, 1}, votes, 2);  // from the median, nothing, by 1.5 / 3 towards (30, 40)
  EXPECT_FLOAT_EQ(centre[0], 0.3f);
  EXPECT_FLOAT_EQ(centre[1], 0.4f);
}

TEST(ClippedMeanOf, SendersWithinTheFactorIsTheirWeightedMean) {
  const std::vector votes{vote(0, {3, 4}, 1), vote(1, {0, 6}, 2), vote(2, {-8, 0}, 2), vote(3, {5, 0}, 3)};
  const auto mean = result(ClippedMean{2}, votes, 2);
  EXPECT_FLOAT_EQ(mean[0], (3 - 16 + 15) / 8.0f);
  EXPECT_FLOAT_EQ(mean[1], (4 + 12) / 8.0f);
}

TEST(ClippedMeanOf, ALongPartIsScaledDownAndALargeWeightCountsAsTheFactor) {
  const std::vector votes{vote(0, {0, 1}), vote(1, {0, 1}), vote(2, {300, 400}, 1e15)};
  const auto mean = result(ClippedMean{2}, votes, 2);  // (1.2, 1.6) with weight 2, beside 1 and 1
  EXPECT_FLOAT_EQ(mean[0], 2 * 1.2f / 4);
  EXPECT_FLOAT_EQ(mean[1], (1 + 1 + 2 * 1.6f) / 4);
}

TEST(ClippedMeanOf, TwoSendersIsNoLargerThanTheFactorTimesTheSmaller) {
  const auto mean = result(ClippedMean{3}, {vote(0, {1}), vote(1, {kHuge})}, 1);
  EXPECT_LE(mean[0], 2.0f);
  EXPECT_EQ(result(ClippedMean{3}, {vote(0, {7})}, 1)[0], 7);
}

TEST(MeanOfSendersOf, SparsePartsDividesByTheWeightsOfThoseThatSentAValue) {
  const std::vector<Vote> votes = {vote(0, {4, 0, 0, 2}, 3), vote(1, {8, -1, 0, 0}, 1), vote(2, {0, -4, 0, 0}, 2)};
  EXPECT_EQ(result(MeanOfSenders(), votes, 4), (std::vector<float>{5, -3, 0, 2}));
  EXPECT_EQ(result(MeanOfSenders(), {vote(0, {0, 2}, 0), vote(1, {3, 0}, 1)}, 2), (std::vector<float>{3, 0}));
}

TEST(MeanOfSendersOf, ALongPartIsScaledDownWhereItClips) {
  const std::vector<Vote> votes = {vote(0, {3, 4, 0}), vote(1, {0, 0, 5}), vote(2, {600, 800, 0}, 50)};
  EXPECT_EQ(result(MeanOfSenders{1}, votes, 3), (std::vector<float>{3, 4, 5})) << "of the median's length and weight";
  EXPECT_GT(result(MeanOfSenders(), votes, 3)[0], 500);
  EXPECT_TRUE(bears_liars(MeanOfSenders{1}));
  EXPECT_FALSE(bears_liars(MeanOfSenders()));
}

TEST(RobustAggregates, SendersWithoutWeightHaveNoVote) {
  const std::vector votes{vote(0, {1}), vote(1, {90}, 0), vote(2, {3}), vote(3, {95}, 0), vote(4, {2})};
  EXPECT_EQ(result(TrimmedMean{0.4}, votes, 1)[0], 2);
  EXPECT_EQ(result(CenteredClip{10, 3}, votes, 1)[0], 2);
  EXPECT_FLOAT_EQ(result(ClippedMean{3}, votes, 1)[0], 2);
  std::vector<float> out(1);
  EXPECT_FALSE(aggregate(TrimmedMean{0.4}, {votes[1], votes[3]}, out));
  EXPECT_FALSE(aggregate(CenteredClip{}, {}, out));
  EXPECT_FALSE(aggregate(ClippedMean{}, {votes[1], votes[3]}, out));
}

TEST(RobustAggregates, ValuesThatAreGoneMakeNoAverage) {
  const Vote gone{1, 1, [](std::size_t, std::span<float>) { return false; }};
  std::vector<float> out(1);
  EXPECT_FALSE(aggregate(TrimmedMean{0.4}, {vote(0, {1}), gone}, out));
  EXPECT_FALSE(aggregate(CenteredClip{}, {vote(0, {1}), gone}, out));
  EXPECT_FALSE(aggregate(ClippedMean{}, {vote(0, {1}), gone}, out));
  EXPECT_FALSE(aggregate(MeanOfSenders{}, {vote(0, {1}), gone}, out));
  EXPECT_FALSE(aggregate(MeanOfSenders{1}, {vote(0, {1}), gone}, out));
}

}  // namespace
}  // namespace cohive::averaging
