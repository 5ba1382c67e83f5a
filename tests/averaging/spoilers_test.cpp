#include "averaging/spoilers.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "dht/numbered_peers.hpp"

namespace cohive::averaging {
namespace {

using dht::peer_of;

constexpr int kMembers = 7;

class SpoilersOfAGroup : public ::testing::Test {
 protected:
  const std::string& begin(const std::vector<int>& others = {1, 2, 3, 4, 5, 6}) {
    std::set<PeerId> members{peer_of(0), peer};
    for (int other : others) members.insert(peer_of(other));
    id = "round " + std::to_string(++rounds);
    spoilers.group_began(id, std::move(members));
    return id;
  }
  /// A round that the peer has spoilt here, where `here`, and for these members.
  void spoil(bool here, std::initializer_list<int> witnesses) {
    begin();
    spoilers.told(peer_of(0), id, here ? std::vector{peer} : std::vector<PeerId>{});
    for (int witness : witnesses) spoilers.told(peer_of(witness), id, {peer});
  }
  SimRuntime runtime;
  p2p::HostMetrics metrics{runtime.metrics()};
  p2p::Reputation reputation{runtime, metrics};
  Spoilers spoilers{runtime, reputation, peer_of(0)};
  const PeerId peer = peer_of(100);
  int rounds = 0;
  std::string id;
};

TEST_F(SpoilersOfAGroup, OneRoundHasNobodyShunned) {
  begin();
  EXPECT_TRUE(spoilers.told(peer_of(0), id, {peer}));
  for (int witness : {1, 2, 3}) spoilers.told(peer_of(witness), id, {peer});
  EXPECT_FALSE(reputation.is_shunned(peer));
  EXPECT_TRUE(spoilers.has_spoilt(peer));
  spoil(false, {});
  EXPECT_TRUE(spoilers.has_spoilt(peer));
  runtime.run_for(Spoilers::kMemory + 1s);
  EXPECT_FALSE(spoilers.has_spoilt(peer));
}

TEST_F(SpoilersOfAGroup, ASecondRoundSeenHereHasItShunnedAndEachLaterOneTwiceAsLong) {
  spoil(true, {});
  for (Duration time = Spoilers::kFirstTime; time < 500s; time *= 2) {
    spoil(true, {});
    EXPECT_TRUE(reputation.is_shunned(peer));
    runtime.run_for(time - 1s);
    EXPECT_TRUE(reputation.is_shunned(peer));
    runtime.run_for(2s);
    EXPECT_FALSE(reputation.is_shunned(peer));
  }
}

TEST_F(SpoilersOfAGroup, APeerThatHasAveragedHereMayBeLateOnceMore) {
  reputation.worked(peer);
  spoil(true, {1, 2, 3});
  spoil(true, {1, 2, 3});
  EXPECT_FALSE(reputation.is_shunned(peer));
  spoil(true, {});
  EXPECT_TRUE(reputation.is_shunned(peer));
  EXPECT_FALSE(reputation.is_acquainted(peer));
}

TEST_F(SpoilersOfAGroup, ARoundInWhichItDoesItsPartMakesUpForOne) {
  for (int i = 0; i < 5; ++i) {
    spoil(true, {1, 2, 3});
    EXPECT_TRUE(spoilers.has_spoilt(peer));
    begin();
    EXPECT_TRUE(spoilers.worked(peer, id));
    EXPECT_FALSE(spoilers.has_spoilt(peer));
  }
  EXPECT_FALSE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, MoreThanAThirdOfTheMembersAreBelievedAndFewerAreNot) {
  for (int round = 0; round < 5; ++round) spoil(false, {1, 2});
  EXPECT_FALSE(spoilers.has_spoilt(peer));
  EXPECT_FALSE(reputation.is_shunned(peer));
  spoil(false, {3});
  EXPECT_TRUE(spoilers.has_spoilt(peer));
  EXPECT_TRUE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, OneMemberUnderANewIdentityInEachRoundIsNotBelieved) {
  for (int round = 0; round < 10; ++round) {
    begin({1, 2, 3, 4, 5, 20 + round});
    spoilers.told(peer_of(20 + round), id, {peer});
  }
  EXPECT_FALSE(spoilers.has_spoilt(peer));
  EXPECT_FALSE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, APeerThatComesAgainIsAnAcquaintanceWhateverOneMemberSays) {
  spoil(false, {1});
  EXPECT_FALSE(spoilers.worked(peer, id)) << "a stranger may have been silent to that member, and not come again";
  runtime.run_for(Spoilers::kMemory + 1s);
  spoil(false, {2});
  EXPECT_TRUE(spoilers.worked(peer, id));
  spoil(false, {3, 4, 5});
  EXPECT_FALSE(spoilers.worked(peer, id)) << "they are believed";
}

TEST_F(SpoilersOfAGroup, OneRoundIsOneHoweverManyMembersTellOfItAndHoweverOften) {
  begin();
  for (int i = 0; i < 2; ++i)
    for (int witness : {1, 2, 3, 4}) spoilers.told(peer_of(witness), id, {peer});
  EXPECT_TRUE(spoilers.has_spoilt(peer));
  EXPECT_FALSE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, OnlyMembersTellOfARoundAndOfMembers) {
  for (int round = 0; round < 3; ++round) {
    begin();
    for (int stranger : {20, 21, 22, 23}) EXPECT_FALSE(spoilers.told(peer_of(stranger), id, {peer}));
    for (int member : {1, 2, 3, 4}) spoilers.told(peer_of(member), id, {peer_of(30)});
    for (int member : {1, 2, 3, 4}) EXPECT_FALSE(spoilers.told(peer_of(member), "no round of ours", {peer}));
  }
  for (const PeerId& accused : {peer, peer_of(30)}) {
    EXPECT_FALSE(spoilers.has_spoilt(accused));
    EXPECT_FALSE(reputation.is_shunned(accused));
  }
}

TEST_F(SpoilersOfAGroup, APeerForWhichMostOfItsGroupFailedWasCutOffItselfAndBlamesNobody) {
  std::vector<PeerId> most{peer};
  for (int i = 1; i < 4; ++i) most.push_back(peer_of(i));
  for (int round = 0; round < 3; ++round) {
    begin();
    for (int witness : {0, 4, 5, 6}) EXPECT_FALSE(spoilers.told(peer_of(witness), id, most));
  }
  for (const PeerId& accused : most) {
    EXPECT_FALSE(spoilers.has_spoilt(accused));
    EXPECT_FALSE(reputation.is_shunned(accused));
  }
}

TEST_F(SpoilersOfAGroup, OfTwoPeersNeitherHasTheOtherShunned) {
  for (int round = 0; round < 3; ++round) {
    begin({});
    EXPECT_FALSE(spoilers.told(peer_of(0), id, {peer}));
  }
  EXPECT_FALSE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, APeerStartsAnewAfterAWhile) {
  spoil(true, {});
  runtime.run_for(Spoilers::kMemory + 1s);
  spoil(true, {});
  EXPECT_FALSE(reputation.is_shunned(peer));
}

TEST_F(SpoilersOfAGroup, NobodyBlamesThisPeerToItselfOrAWitnessItself) {
  for (int round = 0; round < 3; ++round) {
    begin();
    for (int witness = 1; witness < kMembers; ++witness)
      spoilers.told(peer_of(witness), id, {peer_of(0), peer_of(witness)});
  }
  for (int i = 0; i < kMembers; ++i) EXPECT_FALSE(spoilers.has_spoilt(peer_of(i))) << i;
}

}  // namespace
}  // namespace cohive::averaging
