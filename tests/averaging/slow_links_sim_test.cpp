// Links that carry a part for seconds: who is slow is not silent.
#include "averaging/averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

class SlowLinks : public Averaging {
 protected:
  /// Of members whose links are slow, not the round's time short.
  AveragerOptions patient(std::size_t part_size) {
    auto options = quick();
    options.part_size_bytes = part_size;
    options.sender_timeout = 2s;
    options.reducer_timeout = 4s;
    options.allreduce_timeout = 10min;
    return options;
  }
  void add_peers(std::size_t values, std::size_t part_size, double bytes_per_second) {
    for (int i = 0; i < 2; ++i) {
      add(patient(part_size), values);
      set_line(peers.size(), bytes_per_second);
    }
  }
  void set_line(std::size_t number, double rate) { swarm.fabric().set_line(sim::Swarm::ip(number), {rate, rate}); }
  /// Both have a group; the second one is ready a little later.
  std::vector<Result<RoundReport>> average_one_after_another() {
    auto rounds = begin_all();
    swarm.pass(4s);
    rounds[0].trigger();
    swarm.pass(300ms);
    rounds[1].trigger();
    std::vector<Result<RoundReport>> results;
    for (auto& round : rounds) results.push_back(swarm.run(round.result()));
    return results;
  }
  void expect_averaged(const std::vector<Result<RoundReport>>& results) {
    for (const auto& result : results) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->lost_senders.empty());
    }
    for (const auto& peer : peers) EXPECT_EQ(peer->a, std::vector<float>(peer->a.size(), 0.5f));
  }
};

TEST_F(SlowLinks, AMemberThatAnswersSendsItsOwnPartsBesideTheAnswers) {
  add_peers(3'000'000, 1 << 16, 1e6);  // one that only answered would send no part for six seconds
  expect_averaged(average_one_after_another());
}

TEST_F(SlowLinks, APartIsWaitedForAsLongAsItsBytesKeepComing) {
  add_peers(500'000, 1 << 19, 100e3);  // ten seconds for a part beside an answer
  expect_averaged(average_one_after_another());
}

TEST_F(SlowLinks, AMemberOfWhichAlmostNothingComesIsLeftOut) {
  add_peers(500'000, 1 << 19, 100e3);
  auto rounds = begin_all();
  swarm.pass(4s);
  for (auto& round : rounds) round.trigger();
  swarm.pass(1s);
  set_line(2, 1e3);
  const TimePoint begin = swarm.runtime().now();
  const auto result = swarm.run(rounds[0].result());
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(result->lost_senders, std::vector{id(1)});
  EXPECT_LT(swarm.runtime().now() - begin, 1min);
}

class SlowMember : public SlowLinks, public ::testing::WithParamInterface<double> {};

TEST_P(SlowMember, DoesNotVoidTheRoundOfTheOthers) {
  auto options = quick();
  options.part_size_bytes = 1 << 19;
  for (int i = 0; i < 5; ++i) add(options, 1'000'000);
  set_line(5, GetParam());
  const auto results = step_all(same({.timeout = 60s, .allow_retries = false}));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 5u);
    EXPECT_LT(results[i]->allreduce, options.allreduce_timeout);
  }
}

/// The others wait for a reducer that waits for the slow one.
TEST_F(SlowLinks, AMemberThatHoldsAReducerUpIsLeftOutBeforeTheReducerIsTakenForSilent) {
  for (int i = 0; i < 5; ++i) add(patient(1 << 19), 1'000'000);
  set_line(5, 200e3);  // of half a megabyte for each of four reducers, enough comes within each two seconds
  const auto results = step_all(same({.timeout = 60s, .allow_retries = false}));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 5u);
    EXPECT_EQ(results[i]->lost_senders, std::vector{id(4)});
    for (const PeerId& failed : results[i]->failed_reducers) EXPECT_EQ(failed, id(4));
    EXPECT_LT(results[i]->allreduce, 1min);
  }
}

INSTANTIATE_TEST_SUITE_P(BytesPerSecond, SlowMember, ::testing::Values(150e3, 200e3, 250e3, 275e3, 300e3, 350e3));

}  // namespace
}  // namespace cohive::averaging
