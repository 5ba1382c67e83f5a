#include "train/claim_bounds.hpp"

#include <gtest/gtest.h>

#include "cohive/core/keys.hpp"

namespace cohive::train {
namespace {

constexpr double kBatch = 1000;

PeerId numbered(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number)).peer_id();
}

/// Two trainers that make a batch in 100 seconds together, and a third key that claims batches.
class Claims : public ::testing::Test {
 protected:
  TimePoint at(double seconds) const { return TimePoint{} + from_seconds(seconds); }
  void SetUp() override { bounds.epoch_began(at(0)); }
  double believed(double seconds, std::vector<SampleClaim> claims, double own) {
    return bounds.add_up(claims, own, at(seconds)).samples;
  }
  /// The round of an epoch that the liar has ended early.
  void short_round() {
    EXPECT_EQ(believed(10, {{honest, 50, 5}, {liar, kBatch, 1e6}}, 50), kBatch + 100) << "nothing is known yet";
    bounds.averaged({{honest, 60.0}}, 60, false, at(10));
    bounds.epoch_began(at(10));
  }
  ClaimBounds bounds{kBatch};
  const PeerId honest = numbered(1), liar = numbered(2);
};

TEST_F(Claims, CountAsTheyAreWhileTheyComeIntoTheAverages) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    const double begin = 100.0 * epoch;
    EXPECT_EQ(believed(begin + 99, {{honest, 490, 5}}, 500), 990);
    bounds.averaged({{honest, 505.0}}, 505, false, at(begin + 100));
    bounds.epoch_began(at(begin + 100));
  }
  // Newcomers, however fast and many, count as they do in hivemind.
  EXPECT_EQ(believed(310, {{honest, 50, 5}, {numbered(3), 700, 70}, {numbered(4), 200, 20}}, 50), 1000);
  EXPECT_FALSE(bounds.doubting());
}

TEST_F(Claims, ThatDidNotComeIntoTheAverageCountLittleFromThenOn) {
  short_round();
  EXPECT_TRUE(bounds.doubting());
  EXPECT_EQ(believed(60, {{honest, 250, 5}, {liar, kBatch, 1e6}}, 250), 750);
  // Nor do many keys get further than one.
  std::vector<SampleClaim> many{{honest, 250, 5}, {std::nullopt, kBatch, 1e6}};
  for (std::uint8_t i = 10; i < 30; ++i) many.push_back({numbered(i), kBatch, 1e6});
  EXPECT_EQ(believed(60, many, 250), 750);
}

TEST_F(Claims, OfATrainerThatGotFasterCountUpToTwiceWhatItHasShown) {
  short_round();
  EXPECT_EQ(believed(60, {{honest, 500, 10}, {liar, 0, 1}}, 0), 500) << "6 a second were shown";
  EXPECT_EQ(believed(60, {{honest, 5000, 100}}, 0), 600 + kBatch / 4);
}

TEST_F(Claims, AreBelievedAgainSomeEpochsAfterTheLastLie) {
  short_round();
  for (int epoch = 0; epoch < 5; ++epoch) {
    EXPECT_TRUE(bounds.doubting());
    const double begin = 10 + 100.0 * epoch;
    (void)believed(begin + 99, {{honest, 500, 5}}, 500);
    bounds.averaged({{honest, 500.0}}, 500, false, at(begin + 100));
    bounds.epoch_began(at(begin + 100));
  }
  EXPECT_FALSE(bounds.doubting());
}

TEST_F(Claims, OfSpeedThatEndAnEpochEarlyAreNotBelievedAgain) {
  const BelievedSamples first = bounds.add_up({{honest, 50, 5}, {liar, 1, 1e14}}, 50, at(10));
  EXPECT_GE(first.samples_per_second, 1e14) << "nothing is known yet";
  bounds.averaged({{honest, 60.0}}, 60, false, at(10));
  bounds.epoch_began(at(10));
  EXPECT_LE(bounds.add_up({{honest, 50, 5}, {liar, 1, 1e14, 1}}, 50, at(20)).samples_per_second, 12);
  EXPECT_LE(bounds.add_up({{honest, 50, 5}, {liar, 1, 1e14, 1}}, 50, at(20)).estimated, 102);
}

TEST_F(Claims, AreAllBelievedByATrainerThatTheRunHasLeftBehind) {
  short_round();
  bounds.epoch_began(at(100));
  EXPECT_EQ(believed(110, {{honest, 50, 5}, {numbered(3), 900, 100}}, 50), 1000);
}

TEST_F(Claims, OfAMemberThatSendsNoWeightAreNoBetterThanNone) {
  (void)believed(10, {{honest, 50, 5}, {liar, kBatch, 1e6}}, 50);
  bounds.averaged({{honest, 60.0}, {liar, std::nullopt}}, 60, false, at(10));
  bounds.epoch_began(at(10));
  EXPECT_EQ(believed(60, {{honest, 250, 5}, {liar, kBatch, 1e6}}, 250), 750);
}

TEST_F(Claims, OfTheLastEpochAreComparedWhereAnotherOneHasBegunMeanwhile) {
  (void)believed(10, {{honest, 50, 5}, {liar, kBatch, 1e6}}, 50);
  bounds.averaged({{honest, 60.0}}, 60, false, at(10));
  bounds.epoch_began(at(10));
  (void)believed(20, {{honest, 50, 5}, {liar, kBatch, 1e6}}, 50);
  bounds.epoch_began(at(20));
  bounds.averaged({{honest, 60.0}}, 60, true, at(22));
  EXPECT_TRUE(bounds.doubting());
  EXPECT_EQ(believed(70, {{honest, 250, 5}, {liar, kBatch, 1e6}}, 250), 750);
}

}  // namespace
}  // namespace cohive::train
