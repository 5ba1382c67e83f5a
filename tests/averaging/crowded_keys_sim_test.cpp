// Peers that do not exist, declared by the thousand under the key of a group: what a search for it costs, and finds.
#include "averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

class CrowdedKeys : public Averaging {
 protected:
  /// Declares peers that do not exist, which want to lead before all others.
  void invent(std::size_t peers_of_none) {
    auto& crowd = *strangers.emplace_back(std::make_unique<Dht>(swarm.add_host()));
    ASSERT_TRUE(swarm.run(crowd.start({swarm.host(0).visible_addresses().front()})));
    std::vector<dht::StoreItem> items;
    for (std::size_t i = 0; i < peers_of_none; ++i) {
      const std::string key = "nobody " + std::to_string(i);
      items.push_back(
          {"test.0b", msgpack::Value::bin(PeerId::of_public_key(as_bytes(key)).bytes()), true, crowd.now() + 600});
    }
    (void)swarm.run(crowd.store_many(std::move(items), swarm.after(60s)));
  }
  Duration average() {
    const TimePoint start = swarm.runtime().now();
    for (auto& result : step_all(same({.timeout = 60s, .expected_members = peers.size()}))) {
      EXPECT_TRUE(result) << result.error();
      if (result) EXPECT_EQ(result->group.size(), peers.size());
    }
    const Duration took = swarm.runtime().now() - start;
    swarm.pass(3s);
    return took;
  }
  std::vector<std::unique_ptr<Dht>> strangers;
};

TEST_F(CrowdedKeys, HoldNoGroupUpThatHasMetAndAdmitNewcomers) {
  for (int i = 0; i < 4; ++i) add(quick());
  average();
  const Duration calm = average();
  invent(3000);
  average();
  EXPECT_LE(average(), calm + 100ms) << "nobody waits for peers that do not exist a second time";
  add(quick());
  std::size_t group = 0;
  for (int round = 0; round < 8 && group < peers.size(); ++round)
    for (auto& result : step_all(same({.timeout = 20s})))
      if (result) group = std::max(group, result->group.size());
  EXPECT_EQ(group, peers.size()) << "a newcomer finds the group";
}

TEST_F(CrowdedKeys, KeepNobodyApartThatHasNotMet) {
  join();
  invent(3000);
  for (int i = 0; i < 4; ++i) add(quick());
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 1; i < peers.size(); ++i) rounds.push_back(peers[i]->averager->step({.timeout = 60s}));
  std::size_t largest = 0;
  for (auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
    ASSERT_TRUE(result) << result.error();
    largest = std::max(largest, result->group.size());
  }
  EXPECT_GE(largest, 2u);
}

}  // namespace
}  // namespace cohive::averaging
