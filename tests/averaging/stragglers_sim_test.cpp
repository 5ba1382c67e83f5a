// Members that are connected and send nothing: what they cost a group that meets again and again.
#include <algorithm>

#include "averaging/groups/notices.hpp"
#include "averaging/groups/stragglers.hpp"
#include "averaging_fixture.hpp"
#include "cohive/proto/averaging.pb.h"
#include "scenarios/hostile_peer.hpp"

namespace cohive::averaging {
namespace {

class Stalling : public Averaging {
 protected:
  /// Everybody's round, with a link of the last peer as slow as silence while values are exchanged, where one is given.
  std::vector<Result<RoundReport>> average(std::optional<std::size_t> silent_to) {
    auto rounds = begin_all({.allow_retries = false});
    swarm.pass(4s);
    const std::size_t staller = peers.size() - 1;
    const auto slow_down = [&](Duration latency) {
      if (silent_to) swarm.fabric().set_link(sim::Swarm::ip(staller + 1), sim::Swarm::ip(*silent_to + 1), {latency});
    };
    slow_down(15s);
    for (auto& round : rounds) round.trigger();
    std::vector<Result<RoundReport>> results;
    for (auto& round : rounds) results.push_back(swarm.run(round.result()));
    slow_down(10ms);
    swarm.pass(15s);
    return results;
  }
  bool was_there(const Result<RoundReport>& result, std::size_t peer) const {
    return result && std::ranges::count(result->group, id(peer), &Member::peer) > 0;
  }
  /// Members that neither lead the group nor stall.
  std::vector<std::size_t> followers_of(const PeerId& leader) const {
    std::vector<std::size_t> followers;
    for (std::size_t i = 0; i + 1 < peers.size(); ++i)
      if (id(i) != leader) followers.push_back(i);
    return followers;
  }
  /// A first round of four members and a client, which will stall: one of its followers.
  std::size_t follower_of_a_first_round() {
    for (int i = 0; i < 4; ++i) add(quick());
    auto options = quick();
    options.mode = PeerMode::client;
    add(options);
    const auto first = average(std::nullopt);
    EXPECT_TRUE(first[0]) << first[0].error();
    return first[0] ? followers_of(first[0]->leader).front() : 0;
  }
};

constexpr Duration kFullPatience = 3s;  // with a sender

TEST_F(Stalling, AMemberThatIsSilentToAnotherOneEachTimeCostsARoundNowAndThen) {
  for (int i = 0; i < 5; ++i) add(quick());
  auto options = quick();
  options.mode = PeerMode::client;  // owns no parts: only owners that it sends nothing to can tell
  add(options);
  const auto first = average(std::nullopt);
  ASSERT_TRUE(first[0]) << first[0].error();
  ASSERT_EQ(first[0]->group.size(), 6u);
  const auto victims = followers_of(first[0]->leader);
  int waited = 0;
  constexpr int kRounds = 9;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t victim = victims[static_cast<std::size_t>(round) % victims.size()];
    const auto results = average(victim);
    ASSERT_TRUE(results[victim]) << results[victim].error();
    waited += results[victim]->allreduce >= kFullPatience;
    EXPECT_TRUE(was_there(results[victim], 5)) << "nobody is kept out for being late";
  }
  EXPECT_EQ(waited, 1) << "what one has seen, all know";
  for (int round = 0; round < 2; ++round) {
    const auto results = average(std::nullopt);
    for (std::size_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(results[i]) << results[i].error();
      EXPECT_TRUE(results[i]->lost_senders.empty()) << "in time again";
    }
  }
}

TEST_F(Stalling, AMemberThatIsSilentToTheSameOneEachTimeIsSoonNotWaitedFor) {
  const std::size_t victim = follower_of_a_first_round();
  int waited = 0;
  for (std::size_t round = 0; round < 8; ++round) {
    const auto results = average(victim);
    ASSERT_TRUE(results[victim]) << results[victim].error();
    EXPECT_TRUE(was_there(results[victim], 4)) << "the leader has seen nothing";
    waited += results[victim]->allreduce >= kFullPatience;
  }
  EXPECT_EQ(waited, 1);
}

TEST_F(Stalling, AMemberThatSlowsDownForAShortWhileInEachSecondRoundCostsLessAndLess) {
  const std::size_t victim = follower_of_a_first_round();
  int waited = 0;
  for (std::size_t round = 0; round < 12; ++round) {
    const auto results = average(round % 2 == 0 ? std::optional(victim) : std::nullopt);
    ASSERT_TRUE(results[victim]) << results[victim].error();
    waited += results[victim]->allreduce >= kFullPatience;
  }
  EXPECT_LE(waited, 3) << "of twelve";
}

TEST_F(Stalling, AMachineThatSleepsThroughARoundCostsThatOneAndIsInTheNextAsBefore) {
  for (int i = 0; i < 5; ++i) add(quick());
  const auto first = average(std::nullopt);
  ASSERT_TRUE(first[0]) << first[0].error();
  auto rounds = begin_all({.allow_retries = false});
  swarm.pass(4s);
  std::set<std::string> others;
  for (std::size_t i = 0; i < 4; ++i) others.insert(sim::Swarm::ip(i + 1));
  swarm.fabric().partition({sim::Swarm::ip(5)}, others);
  for (auto& round : rounds) round.trigger();
  swarm.pass(10s);
  swarm.fabric().heal();
  for (auto& round : rounds) (void)swarm.run(round.result());
  swarm.pass(15s);
  (void)step_all(same({.timeout = 20s}));  // the others meet without it, and see that it is there again
  for (auto& result : step_all(same({.timeout = 60s}))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 5u);
    EXPECT_TRUE(result->lost_senders.empty());
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_LT(result->allreduce, 1s);
  }
}

/// A stranger that joins the group, says nothing, and goes.
class SilentStrangers : public Averaging {
 protected:
  /// A round of the peers that average. Returns how long it took, and expects them to be a group.
  Duration average(bool with_a_stranger) {
    std::optional<HostilePeer> stranger;
    TaskGroup joining(swarm.runtime(), "stranger");
    if (with_a_stranger) {
      stranger.emplace(*strangers.emplace_back(join_dht()), quick_as("test"), std::vector<std::uint32_t>{1000, 7}, 1,
                       HostilePeer::Malice::silence);
      joining.spawn(stranger->misbehave(), "stranger");
      swarm.pass(500ms);
    }
    std::vector<Task<Result<RoundReport>>> rounds;
    for (auto& peer : peers) rounds.push_back(peer->averager->step({.timeout = 60s}));
    Duration longest{};
    stranger_was_there = false;
    for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
      EXPECT_TRUE(result) << result.error();
      if (!result) continue;
      longest = std::max(longest, result->allreduce);
      EXPECT_GE(result->group.size(), peers.size());
      stranger_was_there |= result->group.size() > peers.size();
    }
    swarm.pass(1s);
    return longest;
  }
  bool stranger_was_there = false;

 private:
  std::unique_ptr<Dht> join_dht() {
    auto dht = std::make_unique<Dht>(swarm.add_host());
    EXPECT_TRUE(swarm.run(dht->start({swarm.host(0).visible_addresses().front()})));
    return dht;
  }
  AveragerOptions quick_as(const std::string& prefix) {
    auto options = quick();
    options.prefix = prefix;
    return options;
  }
  std::vector<std::unique_ptr<Dht>> strangers;
};

TEST_F(SilentStrangers, ThatStallOneAfterAnotherAreSoonNotWaitedForAndNobodyIsKeptOut) {
  for (int i = 0; i < 4; ++i) add(quick());
  EXPECT_LT(average(false), 1s);
  int stalled = 0, waited = 0;
  for (int round = 0; round < 12; ++round) {
    const Duration took = average(true);
    stalled += stranger_was_there;
    waited += took >= kFullPatience;
    if (!stranger_was_there) EXPECT_LT(took, 1s);
  }
  EXPECT_GE(stalled, 2) << "else few strangers came in";
  EXPECT_LE(waited, 2);
  add(quick());  // an honest one, that is in time
  std::size_t group = 0;
  for (int round = 0; round < 3 && group < peers.size(); ++round) {
    swarm.pass(2s);
    for (auto& result : step_all(same({.timeout = 60s})))
      if (result) group = std::max(group, result->group.size());
  }
  EXPECT_EQ(group, peers.size()) << "an honest newcomer is in";
}

/// A member that does its part, and tells the others after each round that some of them have not.
class Slander : public Averaging {
 protected:
  std::vector<Result<RoundReport>> average(std::size_t slanderer) {
    auto results = step_all(same({.timeout = 30s, .expected_members = peers.size()}));
    if (const auto& own = results[slanderer]) slander(slanderer, *own);
    swarm.pass(3s);
    return results;
  }

 private:
  /// To each member it names others, as many as one may name.
  void slander(std::size_t slanderer, const RoundReport& round) {
    std::vector<PeerId> members;
    for (const Member& member : round.group)
      if (member.peer != id(slanderer)) members.push_back(member.peer);
    Notices notices(peers[slanderer]->dht->host(), "test::DecentralizedAverager.rpc_spoilers");
    for (std::size_t i = 0; i < members.size(); ++i) {
      proto::SpoilersNotice notice;
      notice.set_group_id(round.group_id);
      for (std::size_t k = 1; 2 * k + 1 <= round.group.size() && k < members.size(); ++k)
        notice.add_peers(members[(i + k) % members.size()].binary());
      swarm.run(notices.tell({members[i]}, notice.SerializeAsString(), swarm.after(3s)));
    }
  }
};

TEST_F(Slander, ByOneMemberCostsThoseThatAreInTimeNothing) {
  constexpr std::size_t kPeers = 7;
  for (std::size_t i = 0; i < kPeers; ++i) add(quick());
  for (std::size_t i = 0; i < kPeers; ++i)
    for (std::size_t k = 0; k < i; ++k) swarm.fabric().set_link(sim::Swarm::ip(i + 1), sim::Swarm::ip(k + 1), {150ms});
  for (int round = 0; round < 3; ++round) (void)average(kPeers - 1);
  for (int round = 0; round < 5; ++round)
    for (const auto& result : average(kPeers - 1)) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_EQ(result->group.size(), kPeers);
      EXPECT_TRUE(result->lost_senders.empty());
      EXPECT_EQ(result->parts_failed, 0u);
    }
}

}  // namespace
}  // namespace cohive::averaging
