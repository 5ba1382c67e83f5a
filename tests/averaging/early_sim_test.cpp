// Rounds that begin before anybody needs their group: see RoundOptions::early.
#include "averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

class Early : public Averaging {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) add(quick());
  }
  /// As a peer of hivemind, which looks for a group when it needs one.
  Round begin_now(std::size_t peer) { return peers[peer]->averager->begin({.expected_members = 3}); }
  Round begin_early(std::size_t peer) { return peers[peer]->averager->begin({.expected_members = 2, .early = true}); }
  std::size_t group_of(Round& round) {
    const auto result = swarm.run(round.result());
    EXPECT_TRUE(result) << result.error();
    return result ? result->group.size() : 0;
  }
  std::vector<PeerId> all() const { return {id(0), id(1), id(2)}; }
};

TEST_F(Early, AGroupHasTheCompanyThatComesAtTheLastMoment) {
  std::vector<Round> rounds;
  for (const std::size_t peer : {0u, 1u}) rounds.push_back(begin_early(peer));
  swarm.runtime().run_for(5s);  // in which a group of two would have begun
  for (auto& round : rounds) {
    EXPECT_EQ(round.stage(), Round::Stage::looking_for_group);
    round.hurry(all());
  }
  rounds.push_back(begin_now(2));
  for (auto& round : rounds) round.trigger();
  for (auto& round : rounds) EXPECT_EQ(group_of(round), 3u);
}

TEST_F(Early, CompanyThatDoesNotComeIsGivenUp) {
  std::vector<Round> rounds;
  for (const std::size_t peer : {0u, 1u}) rounds.push_back(begin_early(peer));
  swarm.runtime().run_for(5s);
  for (auto& round : rounds) {
    round.hurry(all());
    round.trigger();
  }
  const TimePoint begin = swarm.runtime().now();
  for (auto& round : rounds) EXPECT_EQ(group_of(round), 2u);
  EXPECT_LE(swarm.runtime().now() - begin, quick().min_matchmaking_time * 2);
}

TEST_F(Early, AGroupThatMeetsAgainIsMadeAtOnce) {
  for (const auto& result : step_all(same({.expected_members = 3}))) ASSERT_TRUE(result) << result.error();
  auto rounds = begin_all({.expected_members = 3, .early = true});
  swarm.runtime().run_for(500ms);
  for (auto& round : rounds) {
    EXPECT_EQ(round.stage(), Round::Stage::awaiting_trigger);
    round.trigger();
  }
  for (auto& round : rounds) EXPECT_EQ(group_of(round), 3u);
}

TEST_F(Early, CompanyIsEnoughWhereMoreAreExpected) {
  std::vector<Round> rounds;
  for (const std::size_t peer : {0u, 1u})
    rounds.push_back(peers[peer]->averager->begin({.expected_members = 3, .early = true}));
  swarm.runtime().run_for(500ms);
  for (auto& round : rounds) {
    round.hurry({id(0), id(1)});
    round.trigger();
  }
  const TimePoint begin = swarm.runtime().now();
  for (auto& round : rounds) EXPECT_EQ(group_of(round), 2u);
  EXPECT_LE(swarm.runtime().now() - begin, quick().min_matchmaking_time / 4);
}

}  // namespace
}  // namespace cohive::averaging
