// Over how many connections the bytes of one peer go.
#include "p2p/lane_growth.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace cohive::p2p {
namespace {

constexpr Duration kPath = 50ms;
constexpr double kLink = 25e6;  // bytes per second

struct Growing {
  LaneGrowth growth{16};
  std::size_t lanes = 1;
  TimePoint now{};
  bool held_back = true;

  /// One measurement. \param queue  adds to the round trip
  std::size_t measure(double rate, Duration queue = {}) {
    now += 3s;
    return lanes = growth.after({rate, kPath + queue, kPath, held_back}, lanes, now);
  }
  /// Measures so often; `rate` tells what so many connections carry.
  std::size_t measure(int times, const std::function<double(std::size_t)>& rate) {
    for (int i = 0; i < times; ++i) {
      const double carried = std::min(kLink, rate(lanes));
      measure(carried, carried == kLink ? Duration(20ms) : Duration{});
    }
    return lanes;
  }
};

double lossy(std::size_t lanes) {
  return 2.5e6 * static_cast<double>(lanes);
}

TEST(LaneGrowth, FillsALinkWhoseConnectionsLoseBytes) {
  Growing peer;
  EXPECT_EQ(peer.measure(20, lossy), 16u);
  Growing fewer;
  EXPECT_EQ(fewer.measure(20, [](std::size_t lanes) { return 2 * lossy(lanes); }), 8u) << "they fill it";
}

TEST(LaneGrowth, AQueueShowsThatOneConnectionFillsTheLink) {
  Growing peer;
  EXPECT_EQ(peer.measure(50, [](std::size_t) { return kLink; }), 1u);
}

TEST(LaneGrowth, NothingIsTriedWhereNothingHoldsASingleConnectionBack) {
  Growing peer;
  peer.held_back = false;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(peer.measure(2.5e6), 1u);
}

TEST(LaneGrowth, WhatCarriesNoMoreIsTakenBackAndTriedSeldom) {
  Growing peer;
  std::size_t steps = 0;
  for (int i = 0; i < 200; ++i) {
    const std::size_t before = peer.lanes;
    steps += peer.measure(3e6) > before;
  }
  EXPECT_EQ(peer.lanes, 1u);
  EXPECT_GE(steps, 3u);
  EXPECT_LE(steps, 6u) << "of ten minutes";
}

/// A queue on a link that is full now, and was not before, says that the step helped.
TEST(LaneGrowth, WhatFillsTheLinkIsKept) {
  Growing peer;
  peer.measure(2, [](std::size_t) { return 3.5e6; });
  ASSERT_GT(peer.lanes, 1u);
  const std::size_t grown = peer.lanes;
  for (int i = 0; i < 10; ++i) peer.measure(24e6, 20ms);
  EXPECT_EQ(peer.lanes, grown);
}

/// A new connection carries much until it has lost its first packets.
TEST(LaneGrowth, TheLuckOfTheFirstSecondsIsNoMeasure) {
  Growing peer;
  peer.measure(22e6);  // one connection before its first loss
  EXPECT_EQ(peer.lanes, 1u);
  EXPECT_EQ(peer.measure(20, lossy), 16u);
}

/// The first connection went on losing while another was tried.
TEST(LaneGrowth, OneStepIsExcusedWhereThePathHasBecomeWorse) {
  Growing peer;
  peer.measure(20e6);
  peer.measure(12e6);  // it is still in luck
  ASSERT_GT(peer.lanes, 1u);
  EXPECT_EQ(peer.measure(2, lossy), 8u);
  EXPECT_EQ(peer.measure(4, lossy), 16u);
}

TEST(LaneGrowth, TwoStepsThatMadeItWorseAreNot) {
  Growing peer;
  const std::size_t most = 16;
  std::size_t reached = 1;
  for (int i = 0; i < 12; ++i) reached = std::max(reached, peer.measure(12e6 / static_cast<double>(peer.lanes)));
  EXPECT_LT(reached, most);
  EXPECT_LT(peer.lanes, reached);
}

TEST(LaneGrowth, WhatHelpedBeforeIsThereAgainAtOnceAfterAPause) {
  Growing peer;
  peer.measure(20, lossy);
  ASSERT_EQ(peer.lanes, 16u);
  peer.lanes = 1;  // nothing was to be sent for a while
  EXPECT_EQ(peer.measure(lossy(1)), 16u);
  peer.measure(3, [](std::size_t) { return 12e6; });  // another flow takes its share
  EXPECT_EQ(peer.lanes, 16u);
}

TEST(LaneGrowth, NothingIsTriedForAWhileWhereNoMoreCanBeHad) {
  Growing peer;
  peer.measure(2, lossy);
  ASSERT_GT(peer.lanes, 1u);
  peer.growth.rest(peer.now);  // the peer has refused them
  peer.lanes = 1;
  EXPECT_EQ(peer.measure(9, lossy), 1u);
  EXPECT_GT(peer.measure(3, lossy), 1u);
}

}  // namespace
}  // namespace cohive::p2p
