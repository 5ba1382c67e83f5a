// Members whose process has ended refuse connections: none waits for them. One behind a lost network is waited for.
#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kAfterRedial = 800ms;  // a redial, some round trips, and a look at the members

class EndedMembers : public Averaging {
 protected:
  AveragerOptions slow() {
    auto options = quick();
    options.min_matchmaking_time = 20s;
    options.sender_timeout = 30s;
    options.reducer_timeout = 60s;
    options.allreduce_timeout = 90s;
    return options;
  }
  void add_two() {
    for (int i = 0; i < 2; ++i) add(slow());
  }
  void add_three() {
    for (int i = 0; i < 3; ++i) add(slow());
  }
  void kill(std::size_t peer) { swarm.fabric().kill(sim::Swarm::ip(peer + 1)); }
  /// Two of them average; the third has the group and is not ready.
  std::vector<Round> begin_without_trigger_of_the_third() {
    auto rounds = begin_all();
    while (rounds[2].stage() != Round::Stage::awaiting_trigger) swarm.pass(100ms);
    rounds[0].trigger();
    rounds[1].trigger();
    swarm.pass(2s);
    EXPECT_EQ(rounds[0].stage(), Round::Stage::running);
    return rounds;
  }
  std::size_t leader_after_a_round() {
    auto results = step_all(same());
    for (auto& result : results) EXPECT_TRUE(result) << result.error();
    std::size_t leader = 0;
    while (id(leader) != results[0]->leader) ++leader;
    return leader;
  }
  Duration time_of(Result<RoundReport>& out, Round& round) {
    const auto start = swarm.runtime().now();
    out = swarm.run(round.result());
    return swarm.runtime().now() - start;
  }
};

TEST_F(EndedMembers, AreNotWaitedForInARunningRound) {
  add_three();
  auto rounds = begin_without_trigger_of_the_third();
  kill(2);
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), kAfterRedial);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
    EXPECT_EQ(result->failed_reducers, std::vector{id(2)});
    EXPECT_LT(result->parts_failed, result->parts_total);
  }
}

TEST_F(EndedMembers, AreNotWaitedForWhenTheyEndBeforeTheRoundRuns) {
  add_three();
  auto rounds = begin_all();
  while (rounds[2].stage() != Round::Stage::awaiting_trigger) swarm.pass(100ms);
  kill(2);
  swarm.pass(1s);
  rounds[0].trigger();
  rounds[1].trigger();
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), kAfterRedial);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
  }
}

/// Peer routing, which might know other addresses of a member, asks nodes that may be asleep.
TEST_F(EndedMembers, AreNotLookedForWhileTheOthersWait) {
  add_three();
  auto& sleeper = swarm.add_host();
  Dht sleeping(sleeper);
  ASSERT_TRUE(swarm.run(sleeping.start({swarm.host(0).visible_addresses().front()})));
  swarm.pass(5s);
  auto rounds = begin_all();
  for (auto& round : rounds)
    while (round.stage() != Round::Stage::awaiting_trigger) swarm.pass(100ms);
  swarm.fabric().crash(sim::Swarm::ip(4));
  kill(2);
  rounds[0].trigger();
  rounds[1].trigger();
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), kAfterRedial);
    EXPECT_TRUE(result) << result.error();
  }
}

TEST_F(EndedMembers, AreNotWaitedForEvenIfTheyWouldReduceNothing) {
  add_two();
  auto idle = slow();
  idle.bandwidth = Bandwidth(0.0);
  add(idle);
  auto rounds = begin_all();
  while (rounds[2].stage() != Round::Stage::awaiting_trigger) swarm.pass(100ms);
  kill(2);
  swarm.pass(1s);
  rounds[0].trigger();
  rounds[1].trigger();
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), 1s + kAfterRedial);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
    EXPECT_TRUE(result->failed_reducers.empty());
  }
}

TEST_F(EndedMembers, OnesBehindALostNetworkAreWaitedForAWhile) {
  add_three();
  auto rounds = begin_without_trigger_of_the_third();
  swarm.fabric().crash(sim::Swarm::ip(3));
  for (std::size_t i = 0; i < 2; ++i) peers[i]->dht->host().disconnect(id(2));
  swarm.pass(2s);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(rounds[i].stage(), Round::Stage::running);
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), 12s);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
  }
}

TEST_F(EndedMembers, OneWhoseConnectionOnlyBrokeIsNotLeftOut) {
  add_three();
  auto rounds = begin_without_trigger_of_the_third();
  for (std::size_t i = 0; i < 2; ++i) {
    peers[i]->dht->host().disconnect(id(2));
    swarm.pass(1s);
    EXPECT_TRUE(peers[i]->dht->host().connected(id(2))) << "it was dialled again";
  }
  rounds[2].trigger();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_TRUE(result->lost_senders.empty());
  }
}

/// Which one ends, the leader of the known group or a follower; and whether the caller still counts it.
class Searching : public EndedMembers, public ::testing::WithParamInterface<std::tuple<bool, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(EndedMembers, Searching, ::testing::Combine(::testing::Bool(), ::testing::Values(0u, 3u)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Leader" : "Follower") + "Expecting" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(Searching, FindAGroupWithoutTheOneThatHasEnded) {
  const auto [leader_ends, expected] = GetParam();
  add_three();
  const std::size_t leader = leader_after_a_round(), ended = leader_ends ? leader : (leader + 1) % 3;
  kill(ended);
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < 3; ++i)
    if (i != ended) rounds.push_back(peers[i]->averager->begin({.expected_members = expected}));
  for (auto& round : rounds) round.trigger();
  for (auto& round : rounds) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, round), kAfterRedial);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 2u);
  }
}

TEST_P(Searching, EndsAtOnceWhenNoneOfThemIsLeft) {
  const auto [stays_leader, expected] = GetParam();
  add_three();
  const std::size_t leader = leader_after_a_round(), stays = stays_leader ? leader : (leader + 1) % 3;
  for (std::size_t i = 0; i < 3; ++i)
    if (i != stays && i != leader) swarm.run(peers[i]->averager->leave(swarm.after(5s)));
  for (std::size_t i = 0; i < 3; ++i)
    if (i != stays) kill(i);
  auto round = peers[stays]->averager->begin({.expected_members = expected});
  Result<RoundReport> result = Error(Errc::no_group);
  EXPECT_LE(time_of(result, round), 5s) << "the DHT is asked, and its nodes are gone, too";
  EXPECT_EQ(result.error(), Errc::members_left);
}

}  // namespace
}  // namespace cohive::averaging
