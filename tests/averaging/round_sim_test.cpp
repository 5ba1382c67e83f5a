// The handle of a round: its limits, what it tells in the end, and its own end.
#include "cohive/averaging/round.hpp"

#include <gmock/gmock.h>

#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

using AveragingRounds = Averaging;

/// How long the options and the round wait for a silent sender, and what comes of it.
struct Patience {
  Duration options, round, expected;
};
class RoundLimitsAre : public AveragingRounds, public ::testing::WithParamInterface<Patience> {};
INSTANTIATE_TEST_SUITE_P(Rounds, RoundLimitsAre,
                         ::testing::Values(Patience{20s, 1s, 1s}, Patience{2s, 60s, 2s}, Patience{0s, 3s, 3s}));

TEST_P(RoundLimitsAre, WithinThoseOfTheOptions) {
  auto options = quick();
  options.sender_timeout = GetParam().options;
  options.reducer_timeout = GetParam().options * 2;
  options.allreduce_timeout = 100s;
  for (int i = 0; i < 3; ++i) add(options);
  auto rounds = begin_all({.limits = {.sender = GetParam().round, .reducer = GetParam().round * 2}});
  swarm.pass(4s);
  for (auto& round : rounds) ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
  swarm.fabric().partition({sim::Swarm::ip(3)}, {sim::Swarm::ip(1), sim::Swarm::ip(2)});
  const auto start = swarm.runtime().now();
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
    EXPECT_EQ(result->failed_reducers, std::vector{id(2)});
  }
  const auto took = swarm.runtime().now() - start;
  EXPECT_GE(took, GetParam().expected);
  EXPECT_LE(took, GetParam().expected * 3) << "with the time for a result";
  swarm.fabric().heal();
}

TEST_F(AveragingRounds, TheWholeExchangeHasALimit) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all({.allow_retries = false, .limits = {.allreduce = 2s}});
  swarm.pass(4s);
  rounds[0].trigger();
  const auto start = swarm.runtime().now();
  EXPECT_EQ(swarm.run(rounds[0].result()).error(), cohive::Errc::timeout);
  EXPECT_LE(swarm.runtime().now() - start, 2s);
}

TEST_F(AveragingRounds, TellWhenThereIsAGroup) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all({.allow_retries = false});
  swarm.run(rounds[0].grouped());
  EXPECT_EQ(rounds[0].stage(), Round::Stage::awaiting_trigger);
  rounds[0].cancel();
  swarm.run(rounds[0].grouped());  // and when there is none
  EXPECT_EQ(rounds[0].stage(), Round::Stage::finished);
}

TEST_F(AveragingRounds, EndWithoutAGroup) {
  add(quick());
  auto rounds = begin_all({.timeout = 5s, .allow_retries = false});
  const auto start = swarm.runtime().now();
  swarm.run(rounds[0].grouped());
  EXPECT_EQ(rounds[0].stage(), Round::Stage::finished);
  EXPECT_LE(swarm.runtime().now() - start, 6s);
}

TEST_F(AveragingRounds, TellWhenMembersCameAndWhatTheyExchanged) {
  auto options = quick();
  options.sender_timeout = 10s;
  options.reducer_timeout = 20s;
  options.part_size_bytes = 1 << 16;
  for (int i = 0; i < 3; ++i) add(options, 300'000);
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
  auto rounds = begin_all();
  swarm.pass(4s);
  rounds[0].trigger();
  swarm.pass(1s);
  rounds[1].trigger();
  swarm.pass(2s);
  rounds[2].trigger();
  std::vector<RoundReport> results;
  for (auto& round : rounds) results.push_back(swarm.run(round.result()).value());
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& result = results[i];
    EXPECT_NEAR(to_seconds(result.arrival_spread()), 3, 0.3);
    ASSERT_EQ(result.exchanged.size(), 3u);
    std::uint64_t sent = 0, received = 0;
    for (std::size_t m = 0; m < 3; ++m) {
      const Exchanged& with = result.exchanged[m];
      sent += with.bytes_sent;
      received += with.bytes_received;
      if (result.group[m].peer == id(i)) {
        EXPECT_FALSE(with.arrival || with.send_rate);
        continue;
      }
      ASSERT_TRUE(with.arrival);
      const std::size_t other = result.group[m].peer == id(0) ? 0 : result.group[m].peer == id(1) ? 1 : 2;
      const double triggers[] = {0, 1, 3};
      EXPECT_NEAR(to_seconds(*with.arrival), triggers[other] - triggers[i], 0.5) << i << other;
      ASSERT_TRUE(with.send_rate && with.receive_rate);
      EXPECT_LT(*with.receive_rate, 1.1e6) << "what the link carries";
      EXPECT_GT(*with.receive_rate, 5e4);
      EXPECT_LT(with.longest_part_wait, 4s);
    }
    EXPECT_EQ(sent, result.bytes_sent);
    EXPECT_EQ(received, result.bytes_received);
  }
  // The first one waited for the results of the last, which came three seconds later.
  Duration longest{};
  for (const auto& with : results[0].exchanged) longest = std::max(longest, with.longest_result_wait);
  EXPECT_GT(longest, 2s);
}

TEST_F(AveragingRounds, DroppingTheHandleCancelsAndOthersGoOn) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto rounds = begin_all();
  swarm.pass(4s);
  rounds.pop_back();
  for (auto& round : rounds) round.trigger();
  const auto start = swarm.runtime().now();
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->lost_senders, std::vector{id(2)});
  }
  EXPECT_LT(swarm.runtime().now() - start, 1s) << "it said so";
  // The averager begins anew.
  auto again = begin_all();
  for (auto& round : again) round.trigger();
  for (auto& round : again) EXPECT_TRUE(swarm.run(round.result()));
}

TEST_F(AveragingRounds, OutliveTheirAverager) {
  add(quick());
  auto round = peers[0]->averager->begin();
  std::optional<Result<RoundReport>> result;
  TaskGroup waiting(swarm.runtime());
  waiting.spawn([](Round& handle, std::optional<Result<RoundReport>>& out) -> Task<void> {
    out.emplace(co_await handle.result());
  }(round, result));
  swarm.pass(1s);
  peers[0]->averager.reset();
  swarm.pass(1s);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error(), Errc::round_cancelled);
  EXPECT_EQ(round.stage(), Round::Stage::finished);
  round.trigger();
  round.cancel();
}

TEST_F(AveragingRounds, OfOneAveragerComeOneAfterAnother) {
  add(quick());
  auto round = peers[0]->averager->begin();
  EXPECT_THROW(peers[0]->averager->begin(), std::logic_error);
  round.cancel();
  EXPECT_NO_THROW(peers[0]->averager->begin());
}

TEST_F(AveragingRounds, AreTriggeredOnce) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto rounds = begin_all();
  for (auto& round : rounds) {
    round.trigger(1);
    round.trigger(NAN);
  }
  for (auto& round : rounds) EXPECT_TRUE(swarm.run(round.result()));
  EXPECT_NEAR(peers[0]->a[0], 0.5f, 1e-6);
}

TEST_F(AveragingRounds, NeedTensorsAndLimitsThatMakeSense) {
  Peer& peer = add(quick());
  EXPECT_THROW(peer.averager->begin({.limits = {.sender = 0s}}), std::invalid_argument);
  auto round = peer.averager->begin();
  EXPECT_THROW(round.limit({.allreduce = -1s}), std::invalid_argument);
  EXPECT_THROW(round.trigger(1, nullptr), std::invalid_argument);
  round.cancel();
  auto options = quick();
  options.prefix = "other";
  Averager without(*peer.dht, std::vector<TensorInfo>{{{7}}}, options);
  EXPECT_THROW(without.begin().trigger(), std::logic_error) << "it has no tensors of its own";
}

TEST_F(AveragingRounds, CodecsThatNeedAgreementAreNotForEverybody) {
  Peer& peer = add(quick());
  auto options = quick();
  options.prefix = "other";
  options.codec = codec::Compression::size_adaptive(10, codec::Codec::none, codec::Codec::block4);
  EXPECT_THROW(Averager(*peer.dht, std::vector<TensorInfo>{{{7}}}, options), std::invalid_argument);
  options.codec = codec::Codec::none;
  options.agreed_codec = codec::CodecSpec(codec::Codec::top_k, 0);
  EXPECT_THROW(Averager(*peer.dht, std::vector<TensorInfo>{{{7}}}, options), std::invalid_argument);
}

}  // namespace
}  // namespace cohive::averaging
