// Peers that leave say so: none that waits for them waits on.
#include <gmock/gmock.h>

#include "averaging/averaging_fixture.hpp"
#include "averaging/groups/search.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/metrics.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kAtOnce = 500ms;  // some round trips, and a look at the DHT

class Leaving : public Averaging {
 protected:
  void leave(std::size_t peer) {
    const auto start = swarm.runtime().now();
    swarm.run(peers[peer]->averager->leave(swarm.runtime().after(5s)));
    EXPECT_LE(swarm.runtime().now() - start, kAtOnce) << "it has been told";
  }
  AveragerOptions slow() {
    auto options = quick();
    options.min_matchmaking_time = 20s;
    options.sender_timeout = 30s;
    options.reducer_timeout = 60s;
    options.allreduce_timeout = 90s;
    return options;
  }
  /// A group of all has averaged: they know each other.
  std::size_t leader_after_a_round() {
    auto results = step_all(same());
    for (auto& result : results) EXPECT_TRUE(result) << result.error();
    for (std::size_t i = 0; i < peers.size(); ++i)
      if (id(i) == results[0]->leader) return i;
    return peers.size();
  }
  Duration time_of(Result<RoundReport>& out, Round& round) {
    const auto start = swarm.runtime().now();
    out = swarm.run(round.result());
    return swarm.runtime().now() - start;
  }
};

/// Who stays behind, the leader of the known group or a follower; and whether it is told how many are expected.
class LastOne : public Leaving, public ::testing::WithParamInterface<std::tuple<bool, std::size_t>> {};
INSTANTIATE_TEST_SUITE_P(Leaving, LastOne, ::testing::Combine(::testing::Bool(), ::testing::Values(0u, 3u)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Leader" : "Follower") + "Expecting" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(LastOne, StopsSearchingWhenAllOthersHaveLeft) {
  const auto [stays_leader, expected] = GetParam();
  for (int i = 0; i < 3; ++i) add(slow());
  const std::size_t leader = leader_after_a_round(), stays = stays_leader ? leader : (leader + 1) % 3;
  auto round = peers[stays]->averager->begin({.expected_members = expected});
  round.trigger();
  swarm.pass(2s);
  for (std::size_t i = 0; i < 3; ++i)
    if (i != stays) leave(i);
  Result<RoundReport> result = Error(Errc::no_group);
  EXPECT_LE(time_of(result, round), kAtOnce);
  EXPECT_EQ(result.error(), Errc::members_left);
  // Also when they leave before the search begins.
  round = peers[stays]->averager->begin({.expected_members = expected});
  EXPECT_LE(time_of(result, round), kAtOnce);
  EXPECT_EQ(result.error(), Errc::members_left);
}

class Remaining : public Leaving, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Leaving, Remaining, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "LeaderLeaves" : "FollowerLeaves"); });

TEST_P(Remaining, MembersAverageWithoutTheOneThatLeft) {
  for (int i = 0; i < 3; ++i) add(slow());
  const std::size_t leader = leader_after_a_round(), leaves = GetParam() ? leader : (leader + 1) % 3;
  std::vector<std::optional<Result<RoundReport>>> results(3);
  TaskGroup group(swarm.runtime());
  for (std::size_t i = 0; i < 3; ++i)
    if (i != leaves) group.spawn(keep_result(*peers[i]->averager, {}, results[i]));
  swarm.pass(3s);
  for (const auto& result : results) EXPECT_FALSE(result) << "they wait for the third";
  leave(leaves);
  // Followers find each other through the DHT; a leader that only waited has them all.
  swarm.pass(GetParam() ? 21s : kAtOnce);
  for (std::size_t i = 0; i < 3; ++i) {
    if (i == leaves) continue;
    ASSERT_TRUE(results[i] && *results[i]) << i;
    EXPECT_EQ((*results[i])->group.size(), 2u);
  }
}

TEST_F(Leaving, AFirstSearchIsNotLedOn) {
  for (int i = 0; i < 3; ++i) add(slow());
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < 3; ++i) {
    rounds.push_back(peers[i]->averager->begin());
    rounds.back().trigger();
    swarm.pass(1s);  // the first one's declaration expires first: it leads
  }
  swarm.pass(2s);
  leave(0);
  EXPECT_EQ(swarm.run(rounds[0].result()).error(), Errc::round_cancelled);
  for (std::size_t i = 1; i < 3; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 2u);
  }
}

TEST_F(Leaving, AMemberOfAGroupThatLeavesBeforeItsTriggerIsNotWaitedFor) {
  auto client = slow();
  client.mode = PeerMode::client;  // it reduces nothing: no other member would notice before its time is up
  add(slow());
  add(slow());
  add(client);
  auto rounds = begin_all();
  while (rounds[2].stage() != Round::Stage::awaiting_trigger) swarm.pass(1s);
  rounds[0].trigger();
  rounds[1].trigger();
  swarm.pass(2s);
  EXPECT_EQ(rounds[0].stage(), Round::Stage::running);
  leave(2);
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), kAtOnce);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_NEAR(peers[i]->a[0], 0.5f, 1e-6) << "of the two that stay";
  }
}

TEST_F(Leaving, AMemberThatGivesUpItsRoundIsNotWaitedForInThatRound) {
  auto client = slow();
  client.mode = PeerMode::client;
  add(slow());
  add(slow());
  add(client);
  auto rounds = begin_all();
  while (rounds[2].stage() != Round::Stage::awaiting_trigger) swarm.pass(1s);
  rounds[0].trigger();
  rounds[1].trigger();
  swarm.pass(2s);
  rounds[2].cancel();
  for (std::size_t i = 0; i < 2; ++i) {
    Result<RoundReport> result = Error(Errc::no_group);
    EXPECT_LE(time_of(result, rounds[i]), kAtOnce);
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
  }
  // It has not left for good.
  auto again = begin_all({.expected_members = 3});
  for (auto& round : again) round.trigger();
  for (auto& round : again) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
  }
}

TEST_F(Leaving, WhoeverIsLeftAloneBeforeItsTriggerFindsAnotherGroup) {
  auto pairs = slow();
  pairs.target_group_size = 2;
  for (int i = 0; i < 3; ++i) add(pairs);
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < 2; ++i) rounds.push_back(peers[i]->averager->begin({.timeout = 120s}));
  while (rounds[1].stage() != Round::Stage::awaiting_trigger) swarm.pass(1s);
  rounds[0].cancel();
  swarm.pass(kAtOnce);
  EXPECT_EQ(rounds[1].stage(), Round::Stage::looking_for_group);
  rounds.push_back(peers[2]->averager->begin({.timeout = 120s}));
  for (std::size_t i = 1; i < 3; ++i) rounds[i].trigger();
  for (std::size_t i = 1; i < 3; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 2u);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  // Without retries it averages as before: its trainer counts on the round.
  auto once = peers[1]->averager->begin({.timeout = 120s, .allow_retries = false});
  auto other = peers[2]->averager->begin({.timeout = 120s});
  while (once.stage() != Round::Stage::awaiting_trigger) swarm.pass(1s);
  other.cancel();
  swarm.pass(kAtOnce);
  EXPECT_EQ(once.stage(), Round::Stage::awaiting_trigger);
  once.trigger();
  EXPECT_TRUE(swarm.run(once.result()));
}

TEST_F(Leaving, APeerThatComesBackIsWelcome) {
  for (int i = 0; i < 2; ++i) add(slow());
  leader_after_a_round();
  leave(1);
  peers[1]->averager.reset();
  auto options = slow();
  options.prefix = "test";
  Peer& back = *peers[1];
  back.averager =
      std::make_unique<Averager>(*back.dht, std::vector<AveragedTensor>{{back.a, {1000}}, {back.b, {7}}}, options);
  back.averager->start();
  swarm.pass(10s);
  for (auto& result : step_all(same({.timeout = 60s, .expected_members = 2}))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 2u);
  }
}

TEST_F(Leaving, PeersThatDoNotKnowTheCallAreToldOnceAndHoldNobodyUp) {
  for (int i = 0; i < 3; ++i) add(slow());
  leader_after_a_round();
  // One of them is as a Python peer: it serves other calls only.
  peers[2]->averager.reset();
  rpc::Server server(peers[2]->dht->host());
  int calls = 0;
  server.add_streaming("test::DecentralizedAverager.rpc_join_group", [&calls](rpc::ServerStream&) -> Task<Result<>> {
    ++calls;
    co_return ok();
  });
  auto round = peers[1]->averager->begin();
  round.trigger();
  swarm.pass(2s);
  leave(0);
  swarm.pass(2s);
  EXPECT_EQ(round.stage(), Round::Stage::looking_for_group) << "the third may come";
}

TEST_F(Leaving, APeerThatIsSilentHardlyDelaysALeaver) {
  for (int i = 0; i < 2; ++i) add(slow());
  leader_after_a_round();
  swarm.fabric().crash(sim::Swarm::ip(2));
  const auto start = swarm.runtime().now();
  swarm.run(peers[0]->averager->leave(swarm.runtime().after(1s)));
  EXPECT_LE(swarm.runtime().now() - start, 1s) << "no longer than it wants";
  swarm.run(peers[1]->averager->leave(swarm.runtime().after(10s)));
  EXPECT_LE(swarm.runtime().now() - start, 3s) << "for two seconds";
}

TEST_F(Leaving, WhatStrangersSayAboutThemselvesEndsNoSearch) {
  for (int i = 0; i < 4; ++i) add(slow());
  auto round = peers[0]->averager->begin({.expected_members = 3});
  swarm.pass(2s);
  const auto lines_about_leaving = [] {
    return std::ranges::count_if(log::recent(),
                                 [](const auto& line) { return line.find(" averages no more") != std::string::npos; });
  };
  const auto lines = lines_about_leaving();
  for (std::size_t i = 2; i < 4; ++i) {
    auto lie = [](p2p::Host& host, PeerId to) -> Task<void> {
      const Deadline soon = host.runtime().after(1s);
      auto call = co_await rpc::open_call(host, to, "test::DecentralizedAverager.rpc_leave", soon);
      (co_await (*call)->send(ByteView(), soon)).value();
      (co_await (*call)->finish(soon)).value();
      (void)co_await (*call)->receive(soon);
    };
    swarm.run(lie(peers[i]->dht->host(), id(0)));
  }
  EXPECT_LE(lines_about_leaving(), lines) << "or they fill the log";
  swarm.pass(3s);
  EXPECT_EQ(round.stage(), Round::Stage::looking_for_group);
}

TEST_F(Leaving, AfterwardsNoGroupIsJoinedAndNoneFormed) {
  for (int i = 0; i < 3; ++i) add(slow());
  leader_after_a_round();
  leave(0);
  EXPECT_EQ(swarm.run(peers[0]->averager->step()).error(), Errc::left);
  std::vector<Task<Result<RoundReport>>> tasks;
  for (std::size_t i = 1; i < 3; ++i) tasks.push_back(peers[i]->averager->step());
  for (auto& result : swarm.run(when_all(swarm.runtime(), std::move(tasks)))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 2u);
  }
}

}  // namespace
}  // namespace cohive::averaging
