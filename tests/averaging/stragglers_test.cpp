#include "averaging/groups/stragglers.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/testing/offences.hpp"
#include "dht/numbered_peers.hpp"

namespace cohive::averaging {
namespace {

using dht::peer_of;

constexpr Duration kUnknownPatience = 4s;

class StragglersOfAGroup : public ::testing::Test {
 protected:
  StragglersOfAGroup() {
    for (int i = 1; i < 7; ++i) reputation.record_success(peer_of(i));
    reputation.record_success(peer);
  }
  ~StragglersOfAGroup() override { EXPECT_EQ(sim::offences(runtime), 0) << "late is not hostile"; }

  const std::string& begin(const std::vector<int>& others = {1, 2, 3, 4, 5, 6}, bool tells_apart = true) {
    std::set<PeerId> members{peer_of(0), peer};
    for (int other : others) members.insert(peer_of(other));
    id = "round " + std::to_string(++rounds);
    stragglers.group_began(id, std::move(members), tells_apart);
    return id;
  }
  void end(std::vector<PeerId> late, Duration took = 2s) {
    auto report = std::make_shared<RoundReport>();
    report->allreduce = took;
    report->lost_senders = report->stragglers = std::move(late);
    stragglers.round_ended({.group_id = id, .report = std::move(report)});
  }
  void be_late() {
    begin();
    end({peer}, 10s);
  }
  void be_in_time(Duration took = 2s) {
    begin();
    end({}, took);
  }
  bool is_late() const { return stragglers.patience(peer).has_value(); }

  SimRuntime runtime;
  p2p::HostMetrics metrics{runtime.metrics()};
  p2p::Reputation reputation{runtime, metrics};
  Stragglers stragglers{runtime, reputation, peer_of(0), kUnknownPatience};
  const PeerId peer = peer_of(100);
  int rounds = 0;
  std::string id;
};

TEST_F(StragglersOfAGroup, AreWaitedForAgainOnceTheyHaveBeenInTime) {
  be_in_time();
  EXPECT_FALSE(is_late());
  be_late();
  EXPECT_TRUE(is_late());
  EXPECT_FALSE(reputation.is_banned(peer));
  be_in_time();
  EXPECT_FALSE(is_late());
}

TEST_F(StragglersOfAGroup, AreWaitedForAsLongAsARoundTakesWithThemInTime) {
  be_late();
  EXPECT_EQ(stragglers.patience(peer), kUnknownPatience) << "nothing is known";
  be_in_time(2s);
  begin({1, 2, 3});
  end({}, 500ms);
  be_in_time(3s);
  be_late();
  EXPECT_EQ(stragglers.patience(peer), 3s + 1500ms) << "the round with the late one is no measure";
  be_in_time(8s);
  stragglers.told(peer_of(4), id, {peer});
  begin();
  EXPECT_EQ(stragglers.patience(peer), 3s + 1500ms) << "nor is one in which another member has waited";
  begin({1, 2, 3});
  end({peer_of(1)});
  EXPECT_EQ(stragglers.patience(peer_of(1)), 3s + 1500ms);
}

TEST_F(StragglersOfAGroup, AreInTimeAsOftenAsTheyWereLateBeforeTheyAreWaitedForAgain) {
  for (int times = 1; times < 5; ++times) {
    be_late();
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(is_late());
      be_in_time();
    }
    EXPECT_FALSE(is_late());
  }
  be_late();
  runtime.run_for(Stragglers::kMemory + 1s);
  EXPECT_FALSE(is_late()) << "forgotten";
  be_late();
  be_in_time();
  EXPECT_FALSE(is_late()) << "and not counted any more";
}

TEST_F(StragglersOfAGroup, AreNoWorseForBeingLateWhileNobodyWaitsForThem) {
  for (int i = 0; i < 10; ++i) be_late();
  be_in_time();
  EXPECT_FALSE(is_late());
}

TEST_F(StragglersOfAGroup, AreFewerThanHalfOfTheOthersHoweverOftenAMemberNamesSome) {
  be_in_time();
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer}));
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer_of(2), peer_of(3)}));
  EXPECT_FALSE(stragglers.told(peer_of(1), id, {peer_of(4)}));
  EXPECT_TRUE(is_late());
  EXPECT_TRUE(stragglers.patience(peer_of(2)));
  EXPECT_FALSE(stragglers.patience(peer_of(4)));
  EXPECT_TRUE(stragglers.told(peer_of(2), id, {peer_of(4)})) << "another one has not named any";
  be_in_time();
  EXPECT_FALSE(is_late());
}

TEST_F(StragglersOfAGroup, AreNotInTimeInARoundInWhichAnotherMemberHasWaited) {
  be_late();
  begin();
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer}));
  end({});
  EXPECT_TRUE(is_late());
}

TEST_F(StragglersOfAGroup, AreNamedByMembersAloneAndAreMembers) {
  be_in_time();
  EXPECT_FALSE(stragglers.told(peer_of(20), id, {peer}));
  EXPECT_FALSE(stragglers.told(peer_of(1), "no round of ours", {peer}));
  EXPECT_TRUE(stragglers.told(peer_of(2), id, {peer_of(30), peer_of(2), peer_of(0)}));
  for (int i : {0, 2, 30}) EXPECT_FALSE(stragglers.patience(peer_of(i))) << i;
  EXPECT_FALSE(is_late());
}

TEST_F(StragglersOfAGroup, AreNoneForAPeerForWhichMostOfItsGroupWasLate) {
  std::vector<PeerId> most{peer};
  for (int i = 1; i < 4; ++i) most.push_back(peer_of(i));
  begin();
  end(most);
  EXPECT_FALSE(stragglers.told(peer_of(5), id, most));
  EXPECT_FALSE(is_late());
  begin({});
  end({peer});
  EXPECT_FALSE(is_late()) << "of two, neither has another one to go on with";
}

TEST_F(StragglersOfAGroup, AreAllStrangersForAWhileAfterOneOfThemWasLate) {
  be_in_time();
  begin({1, 2, 3, 20});
  end({peer_of(20)}, 10s);
  EXPECT_TRUE(stragglers.is_wary());
  EXPECT_EQ(stragglers.patience(peer_of(21)), 2s + Stragglers::kGrace) << "never seen";
  EXPECT_FALSE(stragglers.patience(peer_of(1)));
  reputation.record_success(peer_of(22));
  EXPECT_FALSE(stragglers.patience(peer_of(22)));
  runtime.run_for(161s);
  EXPECT_FALSE(stragglers.patience(peer_of(21)));
  begin({1, 2, 3, 20}, false);
  end({peer_of(20)}, 10s);
  EXPECT_FALSE(stragglers.is_wary()) << "in a divided run most peers are strangers";
}

TEST_F(StragglersOfAGroup, AreAllStrangersAsWellWhenAnotherMemberHasWaitedForOne) {
  be_in_time();
  begin({1, 2, 3, 20});
  runtime.run_for(5s);
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer_of(20)}));
  EXPECT_EQ(stragglers.patience(peer_of(21)), 2s + Stragglers::kGrace) << "it will be another one the next time";
  EXPECT_FALSE(stragglers.patience(peer_of(2)));
  runtime.run_for(81s);
  EXPECT_FALSE(stragglers.is_wary()) << "16 times as long as the round had lasted";
  begin({1, 2, 3, 20}, false);
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer_of(20)}));
  EXPECT_FALSE(stragglers.is_wary());
}

TEST_F(StragglersOfAGroup, AreAllStrangersAfterAGroupOfTwoWithOne) {
  be_in_time();
  id = "a stranger's";
  stragglers.group_began(id, {peer_of(0), peer_of(20)}, true);
  end({peer_of(20)}, 10s);
  EXPECT_TRUE(stragglers.is_wary()) << "with the others this peer can go on";
  EXPECT_FALSE(is_late());
}

TEST_F(StragglersOfAGroup, AreNotFollowedWhereTheyHaveLedInVainUntilTheyAreInTime) {
  stragglers.led_in_vain(peer);
  EXPECT_TRUE(stragglers.leads_in_vain(peer));
  EXPECT_FALSE(is_late());
  be_late();
  EXPECT_TRUE(stragglers.leads_in_vain(peer));
  be_in_time();
  EXPECT_FALSE(stragglers.leads_in_vain(peer));
}

}  // namespace
}  // namespace cohive::averaging
