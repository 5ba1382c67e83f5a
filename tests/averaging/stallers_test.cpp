#include "averaging/stallers.hpp"

#include <gtest/gtest.h>

#include <string>

namespace cohive::averaging {
namespace {

constexpr std::size_t kMembers = 7;
const TimePoint kStart{1h};

PeerId staller_id(int number) {
  const std::string key = "key of peer " + std::to_string(number);
  return PeerId::of_public_key(as_bytes(key));
}

class StallersOfAGroup : public ::testing::Test {
 protected:
  /// A round that has lost the peer here, where `here`, and at these members.
  void lose(bool here, std::initializer_list<int> witnesses, TimePoint now) {
    stallers.round_ended(here ? std::vector{peer} : std::vector<PeerId>{}, kMembers, now);
    for (int witness : witnesses) stallers.reported(staller_id(witness), {peer}, now);
  }
  Stallers stallers{staller_id(0)};
  const PeerId peer = staller_id(100);
};

TEST_F(StallersOfAGroup, OneRoundKeepsNobodyOutAndIsTold) {
  lose(true, {1, 2, 3}, kStart);
  EXPECT_FALSE(stallers.is_kept_out(peer, kStart));
  EXPECT_TRUE(stallers.has_stalled(peer, kStart));
  EXPECT_EQ(stallers.last(), std::vector{peer});
  stallers.round_ended({}, kMembers, kStart + 10s);
  EXPECT_TRUE(stallers.last().empty());
  EXPECT_TRUE(stallers.has_stalled(peer, kStart + 10s));
  EXPECT_FALSE(stallers.has_stalled(peer, kStart + Stallers::kMemory + 1s));
}

TEST_F(StallersOfAGroup, ASecondRoundSeenHereKeepsItOutAndEachLaterOneTwiceAsLong) {
  lose(true, {}, kStart);
  TimePoint now = kStart + 10s;
  for (Duration ban = Stallers::kFirstBan; ban < 600s; ban *= 2) {
    lose(true, {}, now);
    EXPECT_TRUE(stallers.is_kept_out(peer, now + ban - 1s));
    EXPECT_FALSE(stallers.is_kept_out(peer, now + ban));
    now += ban;
  }
}

TEST_F(StallersOfAGroup, MoreThanAThirdOfTheMembersAreBelievedAndFewerAreNot) {
  for (int round = 0; round < 5; ++round) lose(false, {1, 2}, kStart + round * 10s);
  EXPECT_FALSE(stallers.has_stalled(peer, kStart + 50s));
  EXPECT_FALSE(stallers.is_kept_out(peer, kStart + 50s));
  lose(false, {3}, kStart + 50s);
  EXPECT_TRUE(stallers.has_stalled(peer, kStart + 50s));
  EXPECT_TRUE(stallers.is_kept_out(peer, kStart + 50s));
}

TEST_F(StallersOfAGroup, OneRoundIsOneHoweverManyMembersTellOfItAndHoweverOften) {
  lose(false, {1, 2, 3, 4, 1, 2, 3, 4}, kStart);
  EXPECT_TRUE(stallers.has_stalled(peer, kStart));
  EXPECT_FALSE(stallers.is_kept_out(peer, kStart));
}

TEST_F(StallersOfAGroup, APeerThatLostMostOfItsGroupWasCutOffItselfAndBlamesNobody) {
  std::vector<PeerId> most{peer};
  for (int i = 1; i < 4; ++i) most.push_back(staller_id(i));
  for (int round = 0; round < 3; ++round) {
    stallers.round_ended(most, kMembers, kStart);
    for (int witness = 4; witness < 7; ++witness) stallers.reported(staller_id(witness), most, kStart);
  }
  EXPECT_TRUE(stallers.last().empty());
  for (const PeerId& lost : most) {
    EXPECT_FALSE(stallers.has_stalled(lost, kStart));
    EXPECT_FALSE(stallers.is_kept_out(lost, kStart));
  }
}

TEST_F(StallersOfAGroup, OfTwoPeersNeitherKeepsTheOtherOut) {
  for (int round = 0; round < 3; ++round) stallers.round_ended({peer}, 2, kStart);
  EXPECT_FALSE(stallers.is_kept_out(peer, kStart));
}

TEST_F(StallersOfAGroup, APeerStartsAnewAfterAWhile) {
  lose(true, {}, kStart);
  lose(true, {}, kStart + Stallers::kMemory + 1s);
  EXPECT_FALSE(stallers.is_kept_out(peer, kStart + Stallers::kMemory + 1s));
}

TEST_F(StallersOfAGroup, NobodyBlamesThisPeerToItselfOrAWitnessItself) {
  for (int round = 0; round < 3; ++round) {
    stallers.round_ended({}, kMembers, kStart);
    for (int witness = 1; witness < 6; ++witness)
      stallers.reported(staller_id(witness), {staller_id(0), staller_id(witness)}, kStart);
  }
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(stallers.has_stalled(staller_id(i), kStart)) << i;
}

}  // namespace
}  // namespace cohive::averaging
