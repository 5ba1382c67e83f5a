#include "cohive/averaging/averager.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "averaging/averaging_fixture.hpp"
#include "averaging/wire.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::averaging {
namespace {

TEST_F(Averaging, FourPeersAgreeOnTheMean) {
  for (int i = 0; i < 4; ++i) add(quick());
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (auto& peer : peers) {
    for (float value : peer->a) ASSERT_NEAR(value, 1.5f, 1e-6);
    for (float value : peer->b) ASSERT_NEAR(value, 15.0f, 1e-5);
  }
}

TEST_F(Averaging, WeightsCountAndGatheredDataReachesAll) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  for (std::size_t i = 0; i < 3; ++i) {
    steps[i].weight = static_cast<double>(i + 1);
    steps[i].round.gather = static_cast<int>(100 + i);
  }
  auto results = step_all(steps);
  for (auto& result : results) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers) ASSERT_NEAR(peer->a[3], (0 * 1 + 1 * 2 + 2 * 3) / 6.0f, 1e-6);
  std::set<std::uint64_t> gathered;
  for (const auto& member : results[0]->group) gathered.insert(*member.data.as_uint());
  EXPECT_EQ(gathered, (std::set<std::uint64_t>{100, 101, 102}));
}

TEST_F(Averaging, ClientsAndAuxiliariesTakePart) {
  add(quick());
  add(quick());
  auto client = quick();
  client.mode = PeerMode::client;
  add(client);
  auto auxiliary = quick();
  auxiliary.mode = PeerMode::auxiliary;
  add(auxiliary);
  auto steps = same();
  steps[3].weight = 0;
  for (auto& result : step_all(steps)) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
  }
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 1e-6);  // (0 + 1 + 2) / 3
}

/// Where nothing comes of the other member in time, nothing is left whose weight counts: there is no average.
TEST_F(Averaging, AMemberWithoutWeightCountsAllPartsThatItKeeps) {
  for (int i = 0; i < 2; ++i) add(quick(), 20'000);
  auto rounds = begin_all({.allow_retries = false});
  swarm.pass(4s);
  swarm.fabric().set_line(sim::Swarm::ip(1), {.download = 20e3});
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(rounds[i].stage(), Round::Stage::awaiting_trigger);
    rounds[i].trigger(static_cast<double>(i));
  }
  swarm.pass(1s);
  swarm.fabric().set_line(sim::Swarm::ip(1), {.download = 10});
  const auto result = swarm.run(rounds[0].result());
  ASSERT_TRUE(result) << result.error();
  const auto kept = static_cast<std::size_t>(std::ranges::count(peers[0]->a, 0.0f));
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, 20'000u) << "the first parts came in time";
  EXPECT_LE(kept, 128 * result->parts_failed) << "a part has 128 values";
}

TEST_F(Averaging, TellsWhenMoreThanAShareOfTheMembersWait) {
  for (int i = 0; i < 5; ++i) add(quick());
  auto rounds = begin_all();
  swarm.pass(4s);
  bool one = false, most = false;
  TaskGroup waiting(swarm.runtime());
  const auto note = [](Averager& averager, double share, bool& out) -> Task<void> {
    co_await averager.member_waiting(share);
    out = true;
  };
  waiting.spawn(note(*peers[0]->averager, 0, one));
  waiting.spawn(note(*peers[0]->averager, 0.5, most));
  for (std::size_t i = 1; i < 4; ++i) {
    ASSERT_EQ(rounds[i].stage(), Round::Stage::awaiting_trigger);
    EXPECT_FALSE(most) << i - 1 << " of 4 wait";
    rounds[i].trigger();
    swarm.pass(500ms);
    EXPECT_TRUE(one);
  }
  EXPECT_TRUE(most) << "3 of 4 wait";
}

TEST_F(Averaging, TellsWhenAMemberWaitsThatCounts) {
  for (int i = 0; i < 3; ++i) add(quick());
  std::vector<Round> rounds;
  for (int i = 0; i < 3; ++i) rounds.push_back(peers[i]->averager->begin({.gather = i}));
  swarm.pass(4s);
  bool any = false, second = false;
  TaskGroup waiting(swarm.runtime());
  const auto note = [](Averager& averager, std::uint64_t least, bool& out) -> Task<void> {
    co_await averager.member_waiting(0, [least](const Member& member, const Member& own) {
      return *member.data.as_uint() >= least + *own.data.as_uint();
    });
    out = true;
  };
  waiting.spawn(note(*peers[0]->averager, 0, any));
  waiting.spawn(note(*peers[0]->averager, 2, second));
  rounds[1].trigger();
  swarm.pass(500ms);
  EXPECT_TRUE(any);
  EXPECT_FALSE(second) << "the member that waits does not count";
  rounds[2].trigger();
  swarm.pass(500ms);
  EXPECT_TRUE(second);
}

/// Nor is there one where nobody's values count, which is nobody's fault.
TEST_F(Averaging, MembersWhoseWeightsAreAllZeroKeepTheirValuesAndBlameNobody) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  for (Step& step : steps) step.weight = 0;
  const auto results = step_all(steps);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_GT(results[i]->parts_failed, 0u) << "its own ones";
    EXPECT_TRUE(results[i]->lost().empty());
    EXPECT_EQ(peers[i]->a, std::vector<float>(1000, static_cast<float>(i)));
  }
}

TEST_F(Averaging, EveryByteSentIsCountedAlsoAfterTheOwnRound) {
  add(quick());
  add(quick());
  auto client = quick();
  client.mode = PeerMode::client;
  add(client);
  for (const auto& result : step_all(same())) ASSERT_TRUE(result);
  swarm.pass(5s);
  const auto bytes = [&](const char* direction) {
    return swarm.runtime()
        .metrics()
        .counter("cohive_averaging_bytes_total", "Tensor bytes.", {{"averager", "test"}, {"direction", direction}})
        .value();
  };
  EXPECT_EQ(bytes("out"), bytes("in"));
  // 1,007 values: each node sends half of them, and averages of its half to two; the client sends all.
  EXPECT_EQ(bytes("out"), 4.0 * (1007 + 2 * 1007 + 1007));
}

TEST_F(Averaging, HalfPrecisionAveragesWithinItsRounding) {
  auto options = quick();
  options.codec = codec::Codec::float16;
  for (int i = 0; i < 3; ++i) add(options);
  for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers) ASSERT_NEAR(peer->b[0], 10.0f, 2e-2);
}

TEST_F(Averaging, EveryTensorMayHaveItsOwnCodec) {
  auto options = quick();
  options.codec = codec::Compression::size_adaptive(100, codec::Codec::none, codec::Codec::uniform8);
  for (int i = 0; i < 3; ++i) add(options);
  for (auto& peer : peers)
    for (std::size_t k = 0; k < 1000; ++k) peer->a[k] += static_cast<float>(k % 10) / 10;
  for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers) {
    EXPECT_NEAR(peer->a[5], 1.5f, 2e-2) << "eight bits";
    EXPECT_EQ(peer->b[0], 10.0f) << "as it is";
  }
}

TEST_F(Averaging, AFullGroupStartsWithoutWaitingForTheDeclaredTime) {
  auto options = quick();
  options.target_group_size = 2;
  for (int i = 0; i < 2; ++i) add(options);
  const auto start = swarm.runtime().now();
  for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  EXPECT_LT(swarm.runtime().now() - start, 2s);
}

TEST_F(Averaging, GroupsOfAGridConvergeToTheSameMean) {
  for (int i = 0; i < 4; ++i) {
    auto options = quick();
    options.target_group_size = 2;
    options.initial_group_bits = i < 2 ? "0" : "1";
    add(options);
  }
  float sum = 0;
  for (int round = 0; round < 4; ++round)
    for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  for (auto& peer : peers) sum += peer->a[0];
  EXPECT_NEAR(sum / 4, 1.5f, 1e-5) << "the mean is kept";
}

TEST_F(Averaging, AloneThereIsNoGroup) {
  add(quick());
  RoundOptions step;
  step.timeout = 5s;
  const auto start = swarm.runtime().now();
  auto results = step_all(same(step));
  ASSERT_FALSE(results[0]);
  EXPECT_EQ(results[0].error().code(), make_error_code(Errc::no_group));
  EXPECT_LE(swarm.runtime().now() - start, 6s);
}

TEST_F(Averaging, SurvivorsFinishWhenAPeerDiesInTheMiddle) {
  for (int i = 0; i < 4; ++i) add(quick(), 200'000);
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
  std::vector<Result<RoundReport>> results(4, Error(Errc::no_group));
  TaskGroup group(swarm.runtime());
  auto run = [](Averager& averager, Result<RoundReport>& out) -> Task<void> {
    RoundOptions once;
    once.allow_retries = false;
    out = co_await averager.step(once);
  };
  for (std::size_t i = 0; i < 4; ++i) group.spawn(run(*peers[i]->averager, results[i]));
  swarm.pass(2200ms);  // past matchmaking, within the exchange
  swarm.fabric().crash(sim::Swarm::ip(4));
  swarm.pass(60s);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << i << ": " << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 4u);
  }
  // Parts whose reducer survived are the same everywhere.
  for (std::size_t k = 0; k < 10; ++k) EXPECT_EQ(peers[0]->a[k] == 0.0f, peers[1]->a[k] == 1.0f);
}

TEST_F(Averaging, WhoeverLosesItsLeaderLooksForAnotherAtOnce) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  steps[0].round.scheduled_time = swarm.runtime().wall_time() + 10;  // the first to expire: it leads
  steps[1].round.scheduled_time = steps[2].round.scheduled_time = swarm.runtime().wall_time() + 11;
  std::vector<Result<RoundReport>> results(3, Error(Errc::no_group));
  TaskGroup group(swarm.runtime());
  auto run = [](Averager& averager, RoundOptions options, Result<RoundReport>& out) -> Task<void> {
    out = co_await averager.step(options);
  };
  auto leader = std::make_unique<TaskGroup>(swarm.runtime());
  for (std::size_t i = 0; i < 3; ++i)
    (i == 0 ? *leader : group).spawn(run(*peers[i]->averager, steps[i].round, results[i]));
  swarm.pass(5s);  // the others follow it by now
  leader.reset();
  peers[0]->averager.reset();
  peers[0]->dht.reset();
  swarm.remove_host(0);
  swarm.pass(7s);  // the end of their own declarations, and the exchange
  for (std::size_t i = 1; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << i << ": " << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 2u);
    EXPECT_EQ(results[i]->parts_failed, 0u);
    EXPECT_NEAR(peers[i]->a[0], 1.5f, 1e-6);
  }
}

TEST_F(Averaging, ALeaderThatFallsSilentIsLeftLongBeforeItsTime) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  const double start = swarm.runtime().wall_time();
  steps[0].round.scheduled_time = start + 60;  // the first to expire: it leads
  steps[1].round.scheduled_time = steps[2].round.scheduled_time = start + 61;
  TaskGroup group(swarm.runtime());
  for (std::size_t i = 0; i < 3; ++i)
    group.spawn([](Averager& averager, RoundOptions options) -> Task<void> { (void)co_await averager.step(options); }(
                                                                 *peers[i]->averager, steps[i].round));
  swarm.pass(5s);  // the others follow it by now
  swarm.fabric().crash(sim::Swarm::ip(1));
  swarm.pass(5s);
  const std::string metrics = swarm.runtime().metrics().text();
  EXPECT_NE(metrics.find("cohive_averaging_joins_total{averager=\"test\",outcome=\"lost\"} 1\n"), std::string::npos)
      << "who followed it does no longer";
  swarm.fabric().heal();
}

TEST_F(Averaging, AMemberThatDiesBeforeTheExchangeHoldsTheOthersUpOnlyBriefly) {
  auto options = quick();
  options.sender_timeout = 15s;
  options.reducer_timeout = 30s;
  options.allreduce_timeout = 60s;
  for (int i = 0; i < 3; ++i) add(options);
  auto rounds = begin_all();
  swarm.pass(4s);
  ASSERT_EQ(rounds[0].stage(), Round::Stage::awaiting_trigger);
  rounds.pop_back();
  peers[2]->averager.reset();
  peers[2]->dht.reset();
  swarm.remove_host(2);
  swarm.pass(1s);
  for (auto& round : rounds) round.trigger();
  const auto start = swarm.runtime().now();
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders.size(), 1u);
    EXPECT_EQ(result->failed_reducers.size(), 1u);
  }
  EXPECT_LE(swarm.runtime().now() - start, 5s);
}

TEST_F(Averaging, TheErrorSaysWhyThereIsNoGroup) {
  add(quick());
  auto other = quick();
  other.initial_group_bits = "";
  add(other, 999);  // other tensors: another schema
  RoundOptions step;
  step.timeout = 6s;
  step.allow_retries = false;
  bool refused = false;
  for (auto& result : step_all(same(step))) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), make_error_code(Errc::no_group));
    EXPECT_THAT(result.error().message(), ::testing::HasSubstr("met 1 peer that wanted to lead"));
    refused |= result.error().message().find("refused us (BAD_SCHEMA_HASH: another model or optimizer than here)") !=
               std::string::npos;
  }
  EXPECT_TRUE(refused);
}

TEST_F(Averaging, APeerWithNanIsLeftOutAndNamed) {
  for (int i = 0; i < 3; ++i) add(quick());
  for (float& value : peers[1]->a) value = NAN;
  const auto results = step_all(same());
  for (std::size_t i : {0u, 2u}) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->lost_senders, std::vector{peers[1]->dht->host().id()});
    for (float value : peers[i]->a) ASSERT_TRUE(std::isfinite(value));
  }
  EXPECT_NEAR(peers[0]->a[0], 1.0f, 1e-6) << "(0 + 2) / 2: its weight does not count";
}

TEST_F(Averaging, PartsThatAreCutDifferentlyAreRefusedOnBothSides) {
  has_hostile_peers = true;
  add(quick());
  auto other = quick();
  other.part_size_bytes = 400;
  add(other);
  RoundOptions step;
  step.allow_retries = false;
  const auto before = peers[0]->a;
  for (auto& result : step_all(same(step))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders.size(), 1u);
    EXPECT_EQ(result->failed_reducers.size(), 1u);
  }
  EXPECT_EQ(peers[0]->a, before) << "own values stay";
}

TEST_F(Averaging, AScheduledRoundCanBePostponedAndCancelled) {
  for (int i = 0; i < 2; ++i) add(quick());
  RoundOptions scheduled;
  scheduled.scheduled_time = swarm.runtime().wall_time() + 30;
  auto rounds = begin_all(scheduled);
  for (auto& round : rounds) round.trigger();
  swarm.pass(25s);
  EXPECT_EQ(rounds[0].stage(), Round::Stage::looking_for_group) << "not before the scheduled time";
  rounds[0].cancel();
  EXPECT_EQ(rounds[0].stage(), Round::Stage::finished);
  EXPECT_EQ(swarm.run(rounds[0].result()).error(), Errc::round_cancelled);
}

TEST_F(Averaging, AScheduledRoundCanBeMoved) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all();
  const double later = swarm.runtime().wall_time() + 20;
  for (auto& round : rounds) round.trigger();
  for (auto& round : rounds) round.reschedule(later);
  for (auto& round : rounds) ASSERT_TRUE(swarm.run(round.result()));
  EXPECT_GE(swarm.runtime().wall_time(), later);
}

TEST_F(Averaging, ATimeThatIsNoNumberIsNone) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all();
  for (auto& round : rounds) round.trigger();
  for (auto& round : rounds) round.reschedule(NAN);
  for (auto& round : rounds) ASSERT_TRUE(swarm.run(round.result()));
}

TEST_F(Averaging, AnImpossibleWeightIsAnErrorAndHarmsNobody) {
  for (int i = 0; i < 2; ++i) add(quick());
  RoundOptions once;
  once.allow_retries = false;
  auto steps = same(once);
  steps[1].weight = NAN;
  const auto results = step_all(steps);
  EXPECT_EQ(results[1].error().code(), make_error_code(cohive::Errc::invalid_argument));
  ASSERT_TRUE(results[0]) << results[0].error();
  EXPECT_EQ(peers[0]->a[0], 0.0f);
}

TEST_F(Averaging, AStreamForAGroupNobodyKnowsIsAnsweredAtOnce) {
  add(quick());
  add(quick());
  auto ask = [](p2p::Host& host, PeerId peer) -> Task<int> {
    const Deadline soon = host.runtime().after(1s);
    auto call = co_await rpc::open_call(host, peer, "test::DecentralizedAverager.rpc_aggregate_part", soon);
    const Envelope part = envelope_part(4, "no such group", 0, 0, 0, 1);
    (co_await (*call)->send(as_bytes(part.head + part.tail), soon)).value();
    auto reply = co_await (*call)->receive(soon);
    co_return parse_part(**reply).value().code;
  };
  EXPECT_EQ(swarm.run(ask(peers[0]->dht->host(), peers[1]->dht->host().id())), 10) << "BAD_GROUP_ID";
}

TEST_F(Averaging, ATriggeredRoundWaitsForAllItsMembers) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all();
  swarm.pass(5s);
  EXPECT_EQ(rounds[0].stage(), Round::Stage::awaiting_trigger);
  peers[0]->a.assign(1000, 40);
  rounds[0].trigger();
  swarm.pass(1s);
  EXPECT_EQ(rounds[0].stage(), Round::Stage::running);
  peers[1]->a.assign(1000, 60);
  rounds[1].trigger();
  for (auto& round : rounds) ASSERT_TRUE(swarm.run(round.result()));
  EXPECT_NEAR(peers[0]->a[0], 50, 1e-5);
  EXPECT_NEAR(peers[1]->a[999], 50, 1e-5);
}

TEST_F(Averaging, WhoLeavesAfterItsRoundServesSlowerMembersFirst) {
  auto options = quick();
  options.part_size_bytes = 1 << 14;
  options.sender_timeout = 30s;
  options.reducer_timeout = 60s;
  options.allreduce_timeout = 120s;
  add(options, 200'000);
  options.mode = PeerMode::client;
  Peer& slow = add(options, 200'000);
  swarm.fabric().set_line(sim::Swarm::ip(2), {.upload = 8e6, .download = 1e5});
  const auto leave = [](Peer& peer, p2p::Host& host) -> Task<Result<RoundReport>> {
    Runtime& runtime = host.runtime();
    auto result = co_await peer.averager->step();
    const TimePoint end = runtime.now();
    co_await peer.averager->drain(runtime.after(60s));
    EXPECT_GT(runtime.now() - end, 1s) << "or this test shows nothing";
    peer.averager.reset();
    co_await host.close();
    co_return result;
  };
  std::vector<Task<Result<RoundReport>>> tasks;
  tasks.push_back(leave(*peers[0], swarm.host(0)));
  tasks.push_back(slow.averager->step());
  for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(tasks)))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
  }
  EXPECT_EQ(slow.a, std::vector<float>(200'000, 0.5f));
}

}  // namespace
}  // namespace cohive::averaging
