#include "dht/routing_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cohive/core/sim_runtime.hpp"
#include "dht/numbered_peers.hpp"

namespace cohive::dht {
namespace {

struct Filled {
  Filled(std::size_t nodes, std::size_t bucket_size, std::size_t modulo, std::uint64_t seed = 5)
      : runtime(seed), table(DhtId::random(runtime), bucket_size, modulo) {
    for (std::size_t i = 0; i < nodes; ++i) {
      inserted.push_back({DhtId::random(runtime), peer_of(static_cast<int>(i))});
      table.add_or_update(inserted.back().id, inserted.back().peer, runtime.now());
    }
  }
  SimRuntime runtime;
  RoutingTable table;
  std::vector<NodeEntry> inserted;
};

TEST(RoutingTable, AHundredNodesAllFindRoom) {
  Filled filled(100, 20, 5);
  EXPECT_GE(filled.table.bucket_count(), 3u);
  EXPECT_LE(filled.table.bucket_count(), 10u);
  EXPECT_EQ(filled.table.size(), 100u);
  EXPECT_EQ(filled.table.replacement_count(), 0u);
}

TEST(RoutingTable, TenThousandNodesFillTheExpectedNumberOfBuckets) {
  const struct {
    std::size_t bucket_size, modulo, least, most;
  } cases[] = {{20, 5, 45, 65}, {50, 5, 35, 45}, {20, 10, 650, 800}, {20, 1, 7, 15}};
  for (const auto& expected : cases) {
    Filled filled(10'000, expected.bucket_size, expected.modulo);
    EXPECT_GE(filled.table.bucket_count(), expected.least);
    EXPECT_LE(filled.table.bucket_count(), expected.most);
    if (expected.bucket_size == 20 && expected.modulo == 5) {
      EXPECT_GE(filled.table.size(), 800u);
      EXPECT_LE(filled.table.size(), 1100u);
      EXPECT_EQ(filled.table.size() + filled.table.replacement_count(), 10'000u);
    }
  }
}

TEST(RoutingTable, NearestIsExactlyWhatBruteForceFinds) {
  Filled filled(10'000, 20, 5);
  const auto all = filled.table.nearest(DhtId{}, 10'000);
  EXPECT_EQ(all.size(), filled.table.size());
  for (int round = 0; round < 1000; ++round) {
    const DhtId query =
        round % 10 == 0 ? all[static_cast<std::size_t>(round) % all.size()].id : DhtId::random(filled.runtime);
    auto expected = all;
    std::sort(expected.begin(), expected.end(),
              [&](const auto& a, const auto& b) { return a.id.distance(query) < b.id.distance(query); });
    const std::size_t k = 1 + static_cast<std::size_t>(round) % 60;
    std::optional<DhtId> exclude;
    if (round % 3 == 0) {
      exclude = expected[0].id;
      expected.erase(expected.begin());
    }
    expected.resize(k);
    ASSERT_EQ(filled.table.nearest(query, k, exclude), expected) << round;
  }
}

TEST(RoutingTable, NearestCopesWithAnEmptyTableAndWithAsksForTooMany) {
  Filled filled(7, 20, 5);
  EXPECT_TRUE(RoutingTable(DhtId{}, 20, 5).nearest(DhtId::of("x"), 5).empty());
  EXPECT_EQ(filled.table.nearest(DhtId::of("x"), 50).size(), 7u);
  EXPECT_TRUE(filled.table.nearest(DhtId::of("x"), 0).empty());
}

TEST(RoutingTable, KeepsItsBooksThroughRandomChanges) {
  Filled filled(2000, 20, 5);
  auto& table = filled.table;
  for (std::size_t i = 0; i < filled.inserted.size(); i += 2) table.remove(filled.inserted[i].id);
  std::size_t present = 0;
  for (const auto& node : filled.inserted) present += table.contains(node.id);
  EXPECT_EQ(present, 1000u);
  EXPECT_EQ(table.size() + table.replacement_count(), present);
  EXPECT_EQ(table.nearest(DhtId{}, 10'000).size(), table.size());
  for (const auto& node : filled.inserted)
    if (table.contains(node.id)) {
      EXPECT_EQ(table.peer_of(node.id), node.peer);
      EXPECT_EQ(table.id_of(node.peer), node.id);
    }
  for (const auto& node : filled.inserted) table.remove(node.peer);
  EXPECT_EQ(table.size() + table.replacement_count(), 0u);
}

DhtId far(std::uint8_t last) {
  DhtId id{};
  id.bytes[0] = 0x80;
  id.bytes[19] = last;
  return id;
}

TEST(RoutingTable, AFullBucketAsksToPingItsOldestNodeAndReplacesIt) {
  SimRuntime runtime(7);
  RoutingTable table(DhtId{}, 2, 1);  // splits only around ourselves
  EXPECT_FALSE(table.add_or_update(far(1), peer_of(1), runtime.now()));
  EXPECT_FALSE(table.add_or_update(far(2), peer_of(2), runtime.now()));
  const auto doubtful = table.add_or_update(far(3), peer_of(3), runtime.now());
  ASSERT_TRUE(doubtful);
  EXPECT_EQ(doubtful->id, far(1));
  EXPECT_EQ(table.add_or_update(far(4), peer_of(4), runtime.now())->id, far(2)) << "the first is being pinged already";
  EXPECT_FALSE(table.add_or_update(far(5), peer_of(5), runtime.now()));
  table.add_or_update(far(1), peer_of(1), runtime.now());  // it answered: now the most recent
  EXPECT_EQ(table.replacement_count(), 3u);
  table.remove(far(2));
  EXPECT_TRUE(table.contains(far(1)));
  EXPECT_EQ(table.nearest(far(5), 1)[0].id, far(5)) << "the newest replacement takes the place";
}

TEST(RoutingTable, OnePeerHasOneNodeAndNobodyTakesOverAnothersId) {
  SimRuntime runtime(8);
  RoutingTable table(DhtId{}, 20, 5);
  table.add_or_update(far(1), peer_of(1), runtime.now());
  table.add_or_update(far(2), peer_of(1), runtime.now());
  EXPECT_FALSE(table.contains(far(1))) << "the peer restarted under a new id";
  EXPECT_EQ(table.id_of(peer_of(1)), far(2));
  table.add_or_update(far(2), peer_of(66), runtime.now());
  EXPECT_EQ(table.peer_of(far(2)), peer_of(1));
  EXPECT_FALSE(table.id_of(peer_of(66)));
  table.add_or_update(DhtId{}, peer_of(67), runtime.now());
  EXPECT_EQ(table.size(), 1u) << "nobody is us";
}

TEST(RoutingTable, AFloodOfInventedNodesStaysBounded) {
  Filled filled(50'000, 20, 5);
  EXPECT_LE(filled.table.size(), 1500u);
  EXPECT_LE(filled.table.replacement_count(), 40'000u);
  EXPECT_EQ(filled.table.nearest(DhtId{}, 10'000).size(), filled.table.size());
}

// ---- Many nodes in one network block

TEST(RoutingTable, ABlockGetsItsShareOfABucketAndOthersTheRest) {
  SimRuntime runtime(9);
  RoutingTable table(DhtId{}, 4, 1, {.in_bucket = 2});  // splits only around ourselves
  for (std::uint8_t i = 1; i <= 2; ++i) EXPECT_FALSE(table.add_or_update(far(i), peer_of(i), runtime.now(), 88));
  const auto doubtful = table.add_or_update(far(3), peer_of(3), runtime.now(), 88);
  EXPECT_FALSE(table.contains(far(3)));
  ASSERT_TRUE(doubtful);
  EXPECT_EQ(doubtful->id, far(1)) << "one of the block that does not answer would make room";
  EXPECT_FALSE(table.add_or_update(far(4), peer_of(4), runtime.now(), 99));
  EXPECT_FALSE(table.add_or_update(far(5), peer_of(5), runtime.now()));
  EXPECT_EQ(table.size(), 4u);
  table.remove(far(1));
  table.add_or_update(far(3), peer_of(3), runtime.now(), 88);
  EXPECT_TRUE(table.contains(far(3)));
}

TEST(RoutingTable, AFloodFromOneBlockLeavesRoomForEverybodyElse) {
  Filled honest(0, 20, 5);
  RoutingTable table(DhtId::random(honest.runtime), 20, 5, {.in_table = 100, .in_bucket = 10});
  for (int i = 0; i < 5000; ++i)
    table.add_or_update(DhtId::random(honest.runtime), peer_of(i), honest.runtime.now(), 88);
  EXPECT_LE(table.size() + table.replacement_count(), 100u);
  std::vector<DhtId> others;
  for (int i = 0; i < 200; ++i) {
    others.push_back(DhtId::random(honest.runtime));
    table.add_or_update(others.back(), peer_of(10'000 + i), honest.runtime.now(), static_cast<std::uint64_t>(1000 + i));
  }
  for (const DhtId& id : others) EXPECT_TRUE(table.contains(id));
}

TEST(RoutingTable, ASwarmWithinOneBlockKnowsItsNearNodesAndSomeEverywhere) {
  SimRuntime runtime(10);
  const DhtId self = DhtId::random(runtime);
  RoutingTable table(self, 20, 5, {.in_table = 100, .in_bucket = 10});
  std::vector<DhtId> all;
  for (int i = 0; i < 250; ++i) {
    all.push_back(DhtId::random(runtime));
    table.add_or_update(all.back(), peer_of(i), runtime.now(), 88);
  }
  EXPECT_LE(table.size() + table.replacement_count(), 100u);
  EXPECT_GE(table.size(), 60u);
  std::sort(all.begin(), all.end(),
            [&](const DhtId& a, const DhtId& b) { return a.distance(self) < b.distance(self); });
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(table.contains(all[i])) << "the one with rank " << i;
  for (int first = 0; first < 256; first += 32) {
    DhtId corner{};
    corner.bytes[0] = static_cast<std::uint8_t>(first);
    EXPECT_LT(table.nearest(corner, 1)[0].id.distance(corner).bytes[0], 64) << "nobody known near " << first;
  }
}

TEST(RoutingTable, StaleBucketsGetAnIdInsideThem) {
  Filled filled(300, 20, 5);
  EXPECT_TRUE(filled.table.stale_buckets(filled.runtime.now(), filled.runtime).empty());
  const auto ids = filled.table.stale_buckets(filled.runtime.now() + 1s, filled.runtime);
  EXPECT_EQ(ids.size(), filled.table.bucket_count());
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end())) << "one in each, in their order";
}

}  // namespace
}  // namespace cohive::dht
