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

  const std::string& begin(const std::vector<int>& others = {1, 2, 3, 4, 5, 6}) {
    std::set<PeerId> members{peer_of(0), peer};
    for (int other : others) members.insert(peer_of(other));
    id = "round " + std::to_string(++rounds);
    stragglers.group_began(id, std::move(members));
    return id;
  }
  void end(std::vector<PeerId> late, Duration took = 2s, bool tells_apart = true) {
    auto report = std::make_shared<RoundReport>();
    report->allreduce = took;
    report->lost_senders = report->stragglers = std::move(late);
    stragglers.round_ended({.group_id = id, .report = std::move(report)}, tells_apart);
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
  EXPECT_EQ(stragglers.patience(peer), 3s + Stragglers::kGrace) << "the round with the late one is no measure";
  be_in_time(8s);
  stragglers.told(peer_of(4), id, {peer});
  begin();
  EXPECT_EQ(stragglers.patience(peer), 3s + Stragglers::kGrace) << "nor is one in which another member has waited";
  begin({1, 2, 3});
  end({peer_of(1)});
  EXPECT_EQ(stragglers.patience(peer_of(1)), 3s + Stragglers::kGrace);
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

TEST_F(StragglersOfAGroup, AreNamedByEachMemberOnceForARound) {
  be_in_time();
  EXPECT_TRUE(stragglers.told(peer_of(1), id, {peer}));
  EXPECT_FALSE(stragglers.told(peer_of(1), id, {peer_of(2)}));
  EXPECT_TRUE(is_late());
  EXPECT_FALSE(stragglers.patience(peer_of(2)));
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
  begin({1, 2, 3, 20});
  end({peer_of(20)}, 10s, false);
  EXPECT_FALSE(stragglers.is_wary()) << "in a divided run most peers are strangers";
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
