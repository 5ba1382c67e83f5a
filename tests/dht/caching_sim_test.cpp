// What a node caches, when it looks cached keys up again, and how gets share their searches.
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

class CachingSwarm : public DhtSwarm {
 protected:
  double finds() { return served("find"); }
};

TEST_F(CachingSwarm, AFoundRecordIsReadFromTheCacheNextTime) {
  add_many(12);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(100)));
  for (auto& reader : nodes) {
    ASSERT_TRUE(get(*reader, "key"));
    const double before = finds();
    ASSERT_TRUE(get(*reader, "key"));
    EXPECT_EQ(finds(), before);
  }
}

TEST_F(CachingSwarm, WithoutCachingEveryGetAsksTheNetwork) {
  add_many(12, kNoCaching);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(100)));
  for (auto& node : nodes) {
    if (node->storage_size() > 0) continue;
    for (int i = 0; i < 2; ++i) {
      const double before = finds();
      ASSERT_TRUE(get(*node, "key"));
      EXPECT_GT(finds(), before);
    }
    EXPECT_EQ(node->cache_size(), 0u);
  }
}

TEST_F(CachingSwarm, TheWriterCachesWhatItStored) {
  add_many(20);
  for (auto& node : nodes) {
    if (node->storage_size() > 0) continue;
    ASSERT_TRUE(store(*node, "key", 1, in(100)));
    EXPECT_EQ(node->cache_size(), 1u);
    break;
  }
}

TEST_F(CachingSwarm, TheNearestNodeWithoutTheRecordGetsACopy) {
  add_many(20, {.num_replicas = 1, .cache_locally = false, .cache_nearest = 1, .cache_on_store = false});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(100)));
  for (auto& node : nodes)
    if (node->storage_size() == 0) {
      ASSERT_TRUE(get(*node, "key", true));
      break;
    }
  swarm.pass(1s);
  std::size_t copies = 0;
  for (auto& node : nodes) copies += node->cache_size();
  EXPECT_EQ(copies, 1u);
}

TEST_F(CachingSwarm, ALatestGetLooksPastTheCache) {
  add_many(12);
  ASSERT_TRUE(store(*nodes[1], "key", "old", in(100)));
  ASSERT_TRUE(get(*nodes[9], "key"));
  ASSERT_TRUE(store(*nodes[2], "key", "new", in(200)));
  EXPECT_EQ(*get(*nodes[9], "key", true)->value(), msgpack::Value("new"));
  EXPECT_EQ(*get(*nodes[9], "key")->value(), msgpack::Value("new")) << "and caches what it found";
}

TEST_F(CachingSwarm, ACachedKeyInUseIsRefreshedShortlyBeforeItExpires) {
  add_many(20, {.cache_nearest = 0});
  const auto refreshes = [&] { return DhtMetrics(swarm.runtime().metrics()).cache_refreshes.value(); };
  ASSERT_TRUE(store(*nodes[1], "key", "first", in(60)));
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0 && node != nodes[1] && !reader) reader = node.get();
  ASSERT_TRUE(get(*reader, "key"));  // fetched and cached
  ASSERT_TRUE(get(*reader, "key"));  // served from the cache: now it is in use
  swarm.pass(50s);
  EXPECT_EQ(refreshes(), 0);
  ASSERT_TRUE(store(*nodes[1], "key", "second", in(60)));
  swarm.pass(7s);  // within 5 s of the old expiration
  EXPECT_EQ(refreshes(), 1);
  const double before = finds();
  EXPECT_EQ(*get(*reader, "key")->value(), msgpack::Value("second"));
  EXPECT_EQ(finds(), before) << "no network: the refreshed value was there";
}

TEST_F(CachingSwarm, ACachedKeyThatNobodyRenewsIsLookedUpOnceHoweverOftenItIsRead) {
  add_many(20, {.cache_nearest = 0});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(60)));
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0 && node != nodes[1] && !reader) reader = node.get();
  ASSERT_TRUE(get(*reader, "key"));
  swarm.pass(50s);
  for (int i = 0; i < 90; ++i) {
    ASSERT_TRUE(get(*reader, "key"));
    swarm.pass(100ms);
  }
  EXPECT_EQ(DhtMetrics(swarm.runtime().metrics()).cache_refreshes.value(), 1);
}

TEST_F(CachingSwarm, ACachedKeyThatNobodyReadsIsNotRefreshed) {
  add_many(10);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(60)));
  ASSERT_TRUE(get(*nodes[8], "key"));
  swarm.pass(2min);
  EXPECT_EQ(DhtMetrics(swarm.runtime().metrics()).cache_refreshes.value(), 0);
  for (auto& node : nodes) EXPECT_EQ(node->cache_size(), 0u);
}

TEST_F(CachingSwarm, TheCacheKeepsItsSize) {
  add_many(6, {.cache_size = 3});
  std::vector<StoreItem> items;
  for (int i = 0; i < 20; ++i) items.push_back({i, std::nullopt, i, in(100 + i)});
  for (const auto& stored : swarm.run(nodes[1]->store_many(items))) EXPECT_TRUE(stored);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(get(*nodes[5], i));
  for (auto& node : nodes) EXPECT_LE(node->cache_size(), 3u);
}

TEST_F(CachingSwarm, ConcurrentGetsOfOneKeyShareTheSearch) {
  add_many(16, kNoCaching);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0 && !reader) reader = node.get();
  const double start = finds();
  ASSERT_TRUE(get(*reader, "key"));
  swarm.pass(5s);
  const double alone = finds() - start;
  std::vector<Task<Result<GetResult>>> gets;
  for (int i = 0; i < 10; ++i) gets.push_back(reader->get("key"));
  for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(gets)))) EXPECT_TRUE(result);
  swarm.pass(5s);
  EXPECT_LE(finds() - start - alone, 2 * alone);
}

TEST_F(CachingSwarm, DroppingTheFirstOfSharedGetsDoesNotHarmTheOthers) {
  add_many(16, kNoCaching);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0 && !reader) reader = node.get();
  auto get_into = [](Dht& node, bool& found) -> Task<void> { found = (co_await node.get("key")).has_value(); };
  bool first = false, second = false;
  TaskGroup others(swarm.runtime(), "second caller");
  {
    TaskGroup caller(swarm.runtime(), "first caller");
    caller.spawn(get_into(*reader, first), "get");
    swarm.pass(1ms);
    others.spawn(get_into(*reader, second), "get");
    swarm.pass(1ms);
  }
  swarm.pass(10s);
  EXPECT_FALSE(first);
  EXPECT_TRUE(second);
}

}  // namespace
}  // namespace cohive::dht
