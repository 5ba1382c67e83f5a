// How groups form when members are slow, come late or change their minds.
#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>
#include <set>

#include "averaging/averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

class MeetingTimes : public Averaging {
 protected:
  /// Every peer averages again and again. Returns the sizes of the groups that each was in, 0 where it found none.
  std::vector<std::vector<std::size_t>> average_for(Duration span) {
    std::vector<std::vector<std::size_t>> sizes(peers.size());
    TaskGroup tasks(swarm.runtime());
    for (std::size_t i = 0; i < peers.size(); ++i)
      tasks.spawn([](Averager& averager, std::vector<std::size_t>& found, Duration pause) -> Task<void> {
        Runtime& runtime = averager.dht().runtime();
        co_await runtime.sleep_for(pause);
        for (;;) {
          RoundOptions step;
          step.timeout = 20s;
          step.allow_retries = false;
          auto result = co_await averager.step(step);
          found.push_back(result ? result->group.size() : 0);
          co_await runtime.sleep_for(2s);
        }
      }(*peers[i]->averager, sizes[i], 137ms * static_cast<int>(i)));
    swarm.pass(span);
    return sizes;
  }
};

TEST_F(MeetingTimes, AMemberWithALongRoundTripDoesNotKeepTheOthersApart) {
  for (int i = 0; i < 3; ++i) add(quick());
  for (std::size_t i : {2u, 3u}) swarm.fabric().set_link(sim::Swarm::ip(1), sim::Swarm::ip(i), {.latency = 500ms});
  const auto sizes = average_for(100s);
  for (std::size_t i : {1u, 2u}) {
    EXPECT_GE(sizes[i].size(), 5u);
    EXPECT_EQ(std::ranges::count(sizes[i], 0u), 0) << "the DHT was too slow for them to find each other";
  }
}

TEST_F(MeetingTimes, GroupsOfRandomBitsAreSmallerAndMixAllPeers) {
  constexpr int kPeers = 12;
  for (int i = 0; i < kPeers; ++i) add(quick());
  RoundOptions divided{.timeout = 20s, .random_group_bits = 1};
  std::set<std::size_t> met;  // by the first peer
  for (int round = 0; round < 6; ++round) {
    const auto results = step_all(same(divided));
    for (const auto& result : results)
      if (result) EXPECT_LT(result->group.size(), static_cast<std::size_t>(kPeers));
    for (std::size_t i = 1; results[0] && i < kPeers; ++i)
      if (std::ranges::count(results[0]->group, id(i), &Member::peer)) met.insert(i);
  }
  EXPECT_GT(met.size(), 8u);
  const auto [least, most] =
      std::ranges::minmax(peers | std::views::transform([](const auto& peer) { return peer->a[0]; }));
  EXPECT_LT(most - least, 1) << "11 before";
  for (const auto& result : step_all(same({.timeout = 20s})))
    EXPECT_EQ(result.value().group.size(), static_cast<std::size_t>(kPeers)) << "one group of all again";
}

}  // namespace
}  // namespace cohive::averaging
