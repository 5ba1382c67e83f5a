// Gets of the latest record: whom they ask, and that nothing newer escapes them.
#include <algorithm>

#include "dht/storage.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

class LatestGets : public DhtSwarm {
 protected:
  /// Nodes from the nearest to the key to the farthest.
  std::vector<Dht*> ranked(const Key& key) {
    std::vector<Dht*> ranks;
    for (auto& node : nodes) ranks.push_back(node.get());
    const DhtId id = DhtId::of(key);
    std::sort(ranks.begin(), ranks.end(),
              [&](Dht* a, Dht* b) { return a->node_id().distance(id) < b->node_id().distance(id); });
    return ranks;
  }
  /// On this node alone.
  void place(Dht& node, const Key& key, int value, double expiration) {
    const WireRecord record{DhtId::of(key), std::string(kRegularTag), msgpack::encode(msgpack::Value(value)),
                            expiration};
    std::vector<WireRecord> records{record};
    EXPECT_EQ(swarm.run(node.restore(std::move(records))), 1u);
  }
  /// Find calls that a latest get of the key costs.
  double cost(Dht& reader, const Key& key) {
    const double before = served("find");
    EXPECT_TRUE(get(reader, key, true));
    swarm.pass(1s);
    return served("find") - before;
  }
};

TEST_F(LatestGets, AskOnlyTheReplicasWhileTheyAgree) {
  add_many(18, kNoCaching);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  const auto ranks = ranked("key");
  EXPECT_LT(cost(*ranks.back(), "key"), 10);
  EXPECT_EQ(cost(*ranks.back(), "key"), 5) << "now that it knows who is near";
  EXPECT_LT(cost(*ranks[2], "key"), 10);
  EXPECT_EQ(cost(*ranks[2], "key"), 4) << "who is a replica counts, too";
}

TEST_F(LatestGets, LookFartherWhenAReplicaLacksTheRecord) {
  add_many(18, kNoCaching);
  const auto ranks = ranked("key");
  const double expiration = in(600);
  for (std::size_t i : {0, 1, 2, 4}) place(*ranks[i], "key", 1, expiration);
  place(*ranks[8], "key", 2, expiration + 1);
  EXPECT_EQ(*get(*ranks.back(), "key", true)->value(), msgpack::Value(2));
}

TEST_F(LatestGets, LookFartherWhenOneReplicaHasANewerRecord) {
  add_many(18, kNoCaching);
  const auto ranks = ranked("key");
  const double expiration = in(600);
  for (std::size_t i = 0; i < 5; ++i) place(*ranks[i], "key", static_cast<int>(i), expiration + (i == 3));
  place(*ranks[8], "key", 9, expiration + 2);
  EXPECT_EQ(*get(*ranks.back(), "key", true)->value(), msgpack::Value(9));
}

TEST_F(LatestGets, LookFartherWhenTheirOwnCopyIsNewer) {
  add_many(18, kNoCaching);
  const auto ranks = ranked("key");
  const double expiration = in(600);
  for (std::size_t i = 0; i < 5; ++i) place(*ranks[i], "key", 1, expiration);
  place(*ranks[2], "key", 2, expiration + 1);
  place(*ranks[8], "key", 3, expiration + 2);
  EXPECT_EQ(*get(*ranks[2], "key", true)->value(), msgpack::Value(3));
}

TEST_F(LatestGets, GatherTheEntriesOfReplicasThatHaveDifferentOnes) {
  add_many(18, kNoCaching);
  const auto ranks = ranked("key");
  const double expiration = in(600);
  for (std::size_t i : {0, 1, 2, 3, 4, 7}) {
    Dictionary dictionary;
    // All expire at the same time: that alone does not make them equal.
    dictionary.put(*Subkey::from_value(i == 7 ? "rare" : "common"), msgpack::encode(msgpack::Value(1)), expiration);
    if (i == 4) dictionary.put(*Subkey::from_value("new"), msgpack::encode(msgpack::Value(1)), expiration);
    std::vector<WireRecord> records{
        {DhtId::of("key"), std::string(kDictionaryTag), dictionary.encoded(), dictionary.latest_expiration()}};
    ASSERT_EQ(swarm.run(ranks[i]->restore(std::move(records))), 1u);
  }
  EXPECT_EQ(get(*ranks.back(), "key", true)->entries().size(), 3u);
}

TEST_F(LatestGets, DoNotCopyTheRecordToNodesThatHaveIt) {
  add_many(18, {.cache_locally = false, .cache_on_store = false});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  const double before = served("store");
  ASSERT_TRUE(get(*ranked("key").back(), "key", true));
  swarm.pass(1s);
  EXPECT_EQ(served("store"), before);
}

}  // namespace
}  // namespace cohive::dht
