// Stories of a DHT on a simulated swarm: storing, getting, expiring, joining, failing.
#include "cohive/dht/dht.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cohive/dht/errors.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

TEST_F(DhtSwarm, WhatOneStoresEveryoneReads) {
  add_many(20);
  const double expiration = in(100);
  ASSERT_TRUE(store(*nodes[3], "key", msgpack::Array{{1, "two", 3.0}}, expiration));
  for (auto& node : nodes) {
    auto result = get(*node, "key");
    ASSERT_TRUE(result);
    EXPECT_EQ(*result->value(), (msgpack::Value(msgpack::Array{{1, "two", 3.0}})));
    EXPECT_EQ(result->expiration, expiration);
    EXPECT_FALSE(result->is_dictionary());
    EXPECT_TRUE(result->entries().empty());
  }
  EXPECT_FALSE(get(*nodes[5], "another key"));
  EXPECT_FALSE(get(*nodes[5], "another key", true));
}

TEST_F(DhtSwarm, ANodeAloneServesItself) {
  add();
  ASSERT_TRUE(store(*nodes[0], "key", 1, in(10)));
  EXPECT_EQ(*get(*nodes[0], "key", true)->value(), msgpack::Value(1));
  EXPECT_EQ(nodes[0]->storage_size(), 1u);
}

TEST_F(DhtSwarm, ARecordIsKeptByExactlyItsNearestNodesAndOverwrittenInPlace) {
  add_many(30);
  for (int key = 0; key < 10; ++key) {
    const Key name = "counted " + std::to_string(key);
    std::vector<std::size_t> before;
    for (auto& node : nodes) before.push_back(node->storage_size());
    ASSERT_TRUE(store(*nodes[7], name, 1, in(1000)));
    ASSERT_TRUE(store(*nodes[8], name, 2, in(1001)));
    std::vector<std::size_t> order(nodes.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return nodes[a]->node_id().distance(DhtId::of(name)) < nodes[b]->node_id().distance(DhtId::of(name));
    });
    for (std::size_t rank = 0; rank < order.size(); ++rank)
      EXPECT_EQ(nodes[order[rank]]->storage_size() - before[order[rank]], rank < 5 ? 1u : 0u) << "rank " << rank;
  }
}

TEST_F(DhtSwarm, AnOlderRecordDoesNotReplaceANewerOne) {
  add_many(8);
  ASSERT_TRUE(store(*nodes[1], "key", "new", in(100)));
  EXPECT_FALSE(store(*nodes[2], "key", "old", in(50)));
  EXPECT_EQ(*get(*nodes[3], "key", true)->value(), msgpack::Value("new"));
  EXPECT_FALSE(store(*nodes[2], "key", "expired", in(-1)));
  EXPECT_FALSE(store(*nodes[2], "other", "never", std::nan("")));
  EXPECT_FALSE(store(*nodes[2], "other", "for ever", INFINITY));
}

TEST_F(DhtSwarm, AFewEntriesOfALargeDictionaryAreDrawnByEachReplica) {
  add_many(12);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(store(*nodes[static_cast<std::size_t>(i % 12)], "dict", i, "value", in(100 + i)));
  const auto few = [&](Dht& reader, std::size_t most) {
    return swarm.run(reader.get_sampled("dict", 2, {.most_entries = most})).value();
  };
  Dht* reader = nullptr;
  for (auto& node : nodes)
    if (node->storage_size() == 0) reader = node.get();
  ASSERT_TRUE(reader) << "a node that holds none";
  std::set<std::int64_t> seen;
  for (int draw = 0; draw < 20; ++draw) {
    const GetResult drawn = few(*reader, 10);
    EXPECT_GE(drawn.entries().size(), 10u);
    EXPECT_LE(drawn.entries().size(), 20u) << "earlier calls do not count";
    EXPECT_EQ(drawn.held, 100u);
    for (const auto& [subkey, stored] : drawn.entries()) seen.insert(*subkey.as_int());
  }
  EXPECT_GT(seen.size(), 80u) << "others each time";
  EXPECT_EQ(few(*reader, 100).entries().size(), 100u);
  EXPECT_EQ(few(*reader, 0).held, 100u);
}

TEST_F(DhtSwarm, AReplicaDrawsOfItsOwnEntries) {
  add_many(3);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(store(*nodes[0], "dict", i, "value", in(100 + i)));
  std::set<std::int64_t> seen;
  for (int draw = 0; draw < 30; ++draw) {
    const GetResult drawn = swarm.run(nodes[1]->get_sampled("dict", 2, {.most_entries = 10})).value();
    EXPECT_EQ(drawn.held, 200u);
    EXPECT_LE(drawn.entries().size(), 30u) << "ten of each of three nodes";
    for (const auto& [subkey, stored] : drawn.entries()) seen.insert(*subkey.as_int());
  }
  EXPECT_GT(seen.size(), 160u) << "others each time";
}

TEST_F(DhtSwarm, DrawsHaveNothingOfANodeThatIsNoReplicaAnyMore) {
  add_many(6);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store(*nodes[0], "dict", i, "old", in(1000)));
  const std::size_t before = nodes.size();
  add_many(30);
  swarm.pass(60s);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store(*nodes[0], "dict", i, "new", in(2000)));
  std::size_t readers = 0;
  for (std::size_t i = 0; i < before; ++i) {
    const auto nearer = std::ranges::count_if(nodes, [&](const auto& node) {
      return node->node_id().distance(DhtId::of("dict")) < nodes[i]->node_id().distance(DhtId::of("dict"));
    });
    if (nearer < 8 || nodes[i]->storage_size() == 0) continue;
    ++readers;
    const auto drawn = swarm.run(nodes[i]->get_sampled("dict", 2, {.most_entries = 5})).value();
    EXPECT_LE(drawn.entries().size(), 10u);
    for (const auto& [subkey, stored] : drawn.entries()) EXPECT_EQ(stored.value, msgpack::Value("new"));
  }
  EXPECT_GT(readers, 0u);
}

TEST_F(DhtSwarm, DictionariesMergeSubkeysOfSeveralWriters) {
  add_many(10);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(store(*nodes[static_cast<std::size_t>(i)], "dict", i, "from " + std::to_string(i), in(50 + i)));
  auto result = get(*nodes[9], "dict", true);
  ASSERT_TRUE(result && result->is_dictionary());
  EXPECT_EQ(result->entries().size(), 5u);
  EXPECT_EQ(result->expiration, result->entries().back().second.expiration);
  EXPECT_FALSE(store(*nodes[8], "dict", 3, "older", in(10))) << "an older entry must be refused";
  EXPECT_FALSE(store(*nodes[8], "dict", "plain", in(10))) << "a plain value must be newer than the whole dictionary";
  EXPECT_FALSE(store(*nodes[8], "dict", "plain", in(100))) << "nobody takes away what several wrote";
  EXPECT_EQ(get(*nodes[9], "dict", true)->entries().size(), 5u);
  ASSERT_TRUE(store(*nodes[1], "own", "subkey", 1, in(50)));
  EXPECT_TRUE(store(*nodes[8], "own", "plain", in(100))) << "of one writer, as in hivemind";
  EXPECT_FALSE(get(*nodes[9], "own", true)->is_dictionary());
}

TEST_F(DhtSwarm, AReplicaThatMissedAnEntryDoesNotHideIt) {
  add_many(10, {.cache_locally = false, .cache_nearest = 0});
  ASSERT_TRUE(store(*nodes[1], "dict", "a", 1, in(100)));
  // Half of the swarm is away while the second entry is stored.
  std::set<std::string> left, right;
  for (std::size_t i = 0; i < nodes.size(); ++i) (i < 5 ? left : right).insert(ip_of(i));
  swarm.fabric().partition(left, right);
  ASSERT_TRUE(store(*nodes[1], "dict", "b", 2, in(90)));
  swarm.fabric().heal();
  swarm.pass(60s);
  for (auto& node : nodes) {
    auto result = get(*node, "dict", true);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->entries().size(), 2u);
  }
}

TEST_F(DhtSwarm, RecordsAndEntriesVanishWhenTheyExpire) {
  add_many(5);
  ASSERT_TRUE(store(*nodes[1], "short", 1, in(5)));
  ASSERT_TRUE(store(*nodes[1], "mixed", "short", 1, in(5)));
  ASSERT_TRUE(store(*nodes[1], "mixed", "long", 2, in(50)));
  ASSERT_TRUE(get(*nodes[2], "short"));
  EXPECT_EQ(get(*nodes[2], "mixed")->entries().size(), 2u);
  swarm.pass(6s);
  for (auto& node : nodes) {
    EXPECT_FALSE(get(*node, "short"));
    EXPECT_EQ(get(*node, "mixed")->entries().size(), 1u);
  }
  swarm.pass(50s);
  for (auto& node : nodes) EXPECT_EQ(node->storage_size(), 0u);
}

TEST_F(DhtSwarm, ManyRecordsGoAndComeInOneCall) {
  add_many(20);
  std::vector<StoreItem> items;
  std::vector<Key> keys;
  for (int i = 0; i < 300; ++i) {
    keys.push_back("bulk " + std::to_string(i));
    items.push_back({keys.back(), std::nullopt, i, in(100 + i)});
    if (i % 10 == 0) items.push_back({keys.back(), "sub", i, in(90)});  // older than the plain value: refused
  }
  const double before = served("store");
  const auto stored = swarm.run(nodes[4]->store_many(items));
  EXPECT_LT(served("store") - before, 300) << "replicas get their records together";
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(stored[i].has_value(), !items[i].subkey) << i;
  keys.push_back("missing");
  keys.push_back("bulk 7");
  const auto results = swarm.run(nodes[15]->get_many(keys, true));
  ASSERT_EQ(results.size(), 302u);
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(results[static_cast<std::size_t>(i)]) << i;
    EXPECT_EQ(*results[static_cast<std::size_t>(i)]->value(), msgpack::Value(i));
  }
  EXPECT_EQ(results[300].error(), Errc::not_found);
  EXPECT_EQ(*results[301]->value(), msgpack::Value(7));
}

TEST_F(DhtSwarm, WhatIsTooMuchForOneRequestGoesInSeveral) {
  add_many(3);
  std::vector<StoreItem> items;
  for (int i = 0; i < 1500; ++i) items.push_back({"many subkeys", i, "value " + std::to_string(i), in(100)});
  for (int i = 0; i < 30; ++i) items.push_back({i, std::nullopt, std::string(1000 * 1000, 'x'), in(100)});
  for (const auto& stored : swarm.run(nodes[1]->store_many(items))) EXPECT_TRUE(stored);
  Dht& late = add();
  swarm.pass(10s);
  EXPECT_EQ(late.storage_size(), 31u);
  EXPECT_EQ(get(late, "many subkeys", true)->entries().size(), 1500u);
  std::vector<Key> large;
  for (int i = 0; i < 30; ++i) large.push_back(i);
  for (const auto& result : swarm.run(add({.client_mode = true}).get_many(large, true)))
    EXPECT_TRUE(result) << "more than one reply holds";
}

TEST_F(DhtSwarm, OddKeysSubkeysAndValuesComeBackAsTheyWere) {
  using namespace msgpack;
  add_many(6);
  const std::vector<Value> odd = {
      0, "", false, true, Tuple{}, Tuple{{1, "a"}}, -1, 1.5, Bin{""}, Bin{std::string(300, '\0')}, "é"};
  for (std::size_t i = 0; i < odd.size(); ++i) {
    ASSERT_TRUE(store(*nodes[1], odd[i], odd[i], in(100))) << i;
    ASSERT_TRUE(store(*nodes[1], "subkeys", odd[i], odd[i], in(200 + static_cast<double>(i)))) << i;
  }
  for (const auto& key : odd) EXPECT_EQ(*get(*nodes[5], key, true)->value(), key);
  const auto subkeys = get(*nodes[5], "subkeys", true).value();
  EXPECT_EQ(subkeys.entries().size(), odd.size() - 1) << "0 and false are one";
  for (const auto& [subkey, stored] : subkeys.entries()) EXPECT_EQ(stored.value, subkey);
  ASSERT_TRUE(store(*nodes[2], "list", Array{}, in(100)));
  EXPECT_EQ(*get(*nodes[4], "list")->value(), Value(Array{}));
  EXPECT_EQ(*get(*nodes[4], Value(0))->value(), Value(0));
  EXPECT_FALSE(store(*nodes[2], "bad subkey", Array{{1}}, 1, in(100)));
  EXPECT_FALSE(store(*nodes[2], "bad subkey", Value(), 1, in(100)));
  EXPECT_FALSE(store(*nodes[2], "too large", std::string(2 << 20, 'x'), in(100)));
}

TEST_F(DhtSwarm, ClientsReadAndWriteButAppearInNoTable) {
  add_many(4);
  Dht& client = add({.client_mode = true});
  Dht& other = add({.client_mode = true});
  ASSERT_TRUE(store(client, "from client", 7, in(60)));
  EXPECT_TRUE(get(*nodes[2], "from client"));
  EXPECT_TRUE(get(other, "from client"));
  ASSERT_TRUE(store(*nodes[1], "to client", 8, in(60)));
  EXPECT_TRUE(get(client, "to client", true));
  EXPECT_EQ(client.storage_size(), 0u);
  EXPECT_EQ(client.table_size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(nodes[i]->table_size(), 3u);
  const auto id = swarm.run(client.ping(swarm.host(2).id()));
  ASSERT_TRUE(id);
  EXPECT_EQ(*id, nodes[2]->node_id());
  EXPECT_FALSE(swarm.run(nodes[2]->ping(client.host().id()))) << "it serves nothing";
}

TEST_F(DhtSwarm, ANodeThatIsBackUnderAnotherIdIsFoundThere) {
  add_many(8);
  nodes[3].reset();
  nodes[3] = std::make_unique<Dht>(swarm.host(3));  // and calls nobody
  const DhtId id = nodes[3]->node_id();
  const auto found = swarm.run(nodes[5]->nearest_nodes(id));
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), std::pair(id, swarm.host(3).id()));
  for (std::size_t i = 1; i < found.size(); ++i) EXPECT_NE(found[i].second, swarm.host(3).id()) << "one place";
}

TEST_F(DhtSwarm, EveryoneLearnsOfTheNodesNearItself) {
  add_many(50);
  double known = 0, expected = 0;
  for (auto& node : nodes) {
    std::vector<DhtId> others;
    for (auto& other : nodes)
      if (other != node) others.push_back(other->node_id());
    std::sort(others.begin(), others.end(), [&](const DhtId& a, const DhtId& b) {
      return a.distance(node->node_id()) < b.distance(node->node_id());
    });
    std::set<DhtId> table;
    std::vector<DhtId> gaps;
    for (const auto& [id, peer] : node->known_nodes()) {
      table.insert(id);
      gaps.push_back(id.distance(node->node_id()));
    }
    EXPECT_TRUE(std::is_sorted(gaps.begin(), gaps.end()));
    for (std::size_t i = 0; i < 10; ++i) known += table.contains(others[i]);
    expected += 10;
  }
  EXPECT_GE(known / expected, 0.9);
}

TEST_F(DhtSwarm, GetsSucceedWhileNodesDie) {
  add_many(20);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(store(*nodes[0], "k" + std::to_string(i), i, in(600)));
  swarm.fabric().kill(ip_of(4));
  swarm.fabric().crash(ip_of(5));
  swarm.fabric().crash(ip_of(6));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(get(*nodes[15], "k" + std::to_string(i), true)) << i;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(store(*nodes[16], "k" + std::to_string(i), -i, in(601))) << i;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*get(*nodes[17], "k" + std::to_string(i), true)->value(), msgpack::Value(-i));
}

TEST_F(DhtSwarm, GetsSucceedWhenNodesDieInTheMiddleOfThem) {
  add_many(25);
  std::vector<Key> keys;
  for (int i = 0; i < 20; ++i) {
    keys.push_back("k" + std::to_string(i));
    ASSERT_TRUE(store(*nodes[0], keys.back(), i, in(600)));
  }
  auto getting = swarm.runtime().submit([&] { return nodes[20]->get_many(keys, true); });
  for (std::size_t victim : {3u, 7u, 11u, 15u}) {
    swarm.pass(15ms);
    swarm.fabric().crash(ip_of(victim));
  }
  swarm.pass(60s);
  ASSERT_EQ(getting.wait_for(0s), std::future_status::ready);
  for (const auto& result : getting.get()) EXPECT_TRUE(result);
}

TEST_F(DhtSwarm, AFoundRecordDoesNotWaitForSilentNodes) {
  add_many(20, {.cache_locally = false, .cache_nearest = 0});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  for (std::size_t i = 5; i < 12; ++i) swarm.fabric().crash(ip_of(i));
  const TimePoint start = swarm.runtime().now();
  int quick = 0, found = 0;
  for (std::size_t i = 12; i < 20; ++i) {
    const TimePoint before = swarm.runtime().now();
    found += get(*nodes[i], "key").has_value();
    quick += swarm.runtime().now() - before < 3s;
  }
  EXPECT_EQ(found, 8);
  EXPECT_GE(quick, 6);
  EXPECT_LT(swarm.runtime().now() - start, 30s);
}

TEST_F(DhtSwarm, ADeadPeerIsNotAskedAgainAtOnce) {
  add_many(6);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(6000)));
  swarm.fabric().crash(ip_of(3));
  auto failures = [&] { return CallMetrics(swarm.runtime().metrics(), "find").failed.value(); };
  EXPECT_FALSE(get(*nodes[5], "missing", true));
  const double first = failures();
  EXPECT_GT(first, 0);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(get(*nodes[5], "missing " + std::to_string(i), true));
  EXPECT_EQ(failures(), first);
}

TEST_F(DhtSwarm, ANodeThatSleepsHoldsSearchesUpOnceAndIsAskedAgainWhenItWakesUp) {
  add_many(6);
  const auto look_up = [&](const std::string& key) {
    const TimePoint start = swarm.runtime().now();
    EXPECT_FALSE(get(*nodes[5], key, true));
    return swarm.runtime().now() - start;
  };
  swarm.fabric().partition({ip_of(3)}, {ip_of(0), ip_of(1), ip_of(2), ip_of(4), ip_of(5)});
  EXPECT_GE(look_up("first"), 3s);
  for (const auto pause : {6s, 15s, 40s}) {
    swarm.pass(pause);  // longer than it is left alone
    EXPECT_LE(look_up("after " + std::to_string(pause.count())), 1200ms);
    EXPECT_TRUE(nodes[5]->doubts(nodes[3]->host().id()));
  }
  swarm.fabric().heal();
  (void)get(*nodes[3], "of its own", true);
  swarm.pass(1s);
  EXPECT_FALSE(nodes[5]->doubts(nodes[3]->host().id()));
}

TEST_F(DhtSwarm, ASlowNodeIsNotTakenForOneThatSleeps) {
  add_many(2, kNoCaching);
  ASSERT_TRUE(store(*nodes[0], "key", 1, in(600)));
  swarm.fabric().partition({ip_of(0)}, {ip_of(1)});
  swarm.pass(1s);
  nodes[1]->doubt(nodes[0]->host().id());
  swarm.pass(4s);
  EXPECT_TRUE(nodes[1]->doubts(nodes[0]->host().id()));
  swarm.fabric().heal();
  swarm.fabric().set_default_link({.latency = 700ms});  // and more than a second for an answer
  swarm.pass(10s);
  for (int i = 0; i < 3 && nodes[1]->doubts(nodes[0]->host().id()); ++i) {
    (void)get(*nodes[1], "key", true);
    swarm.pass(6s);
  }
  EXPECT_FALSE(nodes[1]->doubts(nodes[0]->host().id()));
}

TEST_F(DhtSwarm, OneLargeRecordAmongManyKeysCostsAFewCalls) {
  add({.num_replicas = 1});
  ASSERT_TRUE(store(*nodes[0], "large", msgpack::Bin{std::string(600 * 1024, 'x')}, in(600)));
  Dht& reader = add({.client_mode = true});
  std::vector<Key> keys{"large"};
  for (int i = 0; i < 15; ++i) keys.push_back("missing " + std::to_string(i));
  const double before = served("find");
  const auto found = swarm.run(reader.get_many(keys, true));
  EXPECT_TRUE(found[0]);
  EXPECT_LE(served("find") - before, 8);
}

TEST_F(DhtSwarm, ANewcomerReceivesTheRecordsItIsNowNearestTo) {
  add();
  ASSERT_TRUE(store(*nodes[0], "old", 1, in(600)));
  ASSERT_TRUE(store(*nodes[0], "old dictionary", "a", 1, in(600)));
  ASSERT_TRUE(store(*nodes[0], "old dictionary", "b", 1, in(600)));
  Dht& late = add();
  swarm.pass(2s);
  EXPECT_EQ(late.storage_size(), 2u);
  swarm.fabric().kill(ip_of(0));
  EXPECT_TRUE(get(late, "old", true));
  EXPECT_EQ(get(late, "old dictionary", true)->entries().size(), 2u);
}

TEST_F(DhtSwarm, RecordsSurviveAsTheSwarmGrowsAndItsFirstNodesLeave) {
  add_many(6);
  std::vector<Key> keys;
  for (int i = 0; i < 30; ++i) {
    keys.push_back("kept " + std::to_string(i));
    ASSERT_TRUE(store(*nodes[1], keys.back(), i, in(6000)));
  }
  add_many(30);
  swarm.pass(10s);
  for (std::size_t i = 1; i < 5; ++i) swarm.fabric().kill(ip_of(i));
  std::size_t found = 0;
  for (const auto& key : keys) found += get(*nodes[30], key, true).has_value();
  EXPECT_GE(found, 29u);
}

TEST_F(DhtSwarm, AnIdleNodeFillsItsTableAgain) {
  add_many(10, {.refresh_timeout = 60s});
  Dht& lonely = *nodes[9];
  // It loses sight of everybody for a while.
  std::set<std::string> others;
  for (std::size_t i = 0; i < 9; ++i) others.insert(ip_of(i));
  swarm.fabric().partition({ip_of(9)}, others);
  EXPECT_FALSE(get(lonely, "anything", true));
  swarm.fabric().heal();
  EXPECT_LT(lonely.table_size(), 9u);
  const auto first = swarm.host(0).id();
  EXPECT_TRUE(swarm.run(lonely.host().connect(swarm.host(0).visible_addresses().front(), swarm.after(30s))));
  swarm.pass(30s);
  EXPECT_TRUE(swarm.run(lonely.ping(first)));
  swarm.pass(10min);
  EXPECT_EQ(lonely.table_size(), 9u);
}

TEST_F(DhtSwarm, StartingWithUnreachablePeersIsAClearError) {
  auto& host = swarm.add_host();
  Dht lonely(host);
  auto nobody = Multiaddr::from_text("/ip4/10.9.9.9/tcp/1").value().with_peer(KeyPair::generate_ed25519().peer_id());
  auto started = swarm.run(lonely.start({nobody}));
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), make_error_code(Errc::bootstrap_failed));
  EXPECT_NE(started.error().message().find("none of the initial peers answered"), std::string::npos);
  EXPECT_NE(started.error().message().find("10.9.9.9"), std::string::npos);
}

TEST_F(DhtSwarm, ADeadInitialPeerDoesNotDelayTheStart) {
  add();
  auto& host = swarm.add_host();
  Dht node(host);
  auto nobody = Multiaddr::from_text("/ip4/10.9.9.9/tcp/1").value().with_peer(KeyPair::generate_ed25519().peer_id());
  const TimePoint start = swarm.runtime().now();
  auto started = swarm.run(node.start({nobody, swarm.host(0).visible_addresses().front()}));
  ASSERT_TRUE(started) << started.error();
  EXPECT_LT(swarm.runtime().now() - start, 10s);
  EXPECT_EQ(node.table_size(), 1u);
}

TEST_F(DhtSwarm, AClientCannotBeAnInitialPeer) {
  add({.client_mode = true});
  auto& served = swarm.add_host();  // a host without a DHT
  auto& host = swarm.add_host();
  Dht node(host);
  auto started = swarm.run(node.start({served.visible_addresses().front()}));
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code(), make_error_code(Errc::bootstrap_failed));
}

TEST_F(DhtSwarm, AfterClosingEverythingEndsAndNothingIsLeft) {
  add_many(8);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(100)));
  for (std::size_t i = 0; i < 6; ++i) swarm.fabric().crash(ip_of(i));
  auto getting = swarm.runtime().submit([&] { return nodes[7]->get("something else"); });
  auto joining = swarm.runtime().submit([&] { return nodes[7]->get("something else"); });
  auto storing = swarm.runtime().submit([&] { return nodes[7]->store("more", 1, in(10)); });
  swarm.pass(100ms);
  swarm.run(nodes[7]->close());
  swarm.pass(60s);
  ASSERT_EQ(getting.wait_for(0s), std::future_status::ready);
  ASSERT_EQ(joining.wait_for(0s), std::future_status::ready);
  ASSERT_EQ(storing.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(getting.get().error(), Errc::closed);
  EXPECT_EQ(joining.get().error(), Errc::closed);
  EXPECT_EQ(get(*nodes[7], "key").error(), Errc::closed) << "a closed node finds nothing";
  EXPECT_EQ(store(*nodes[7], "key", 1, in(100)).error(), Errc::closed);
  nodes.clear();
  for (const auto& task : swarm.runtime().tasks())
    EXPECT_EQ(task.group.find("dht"), std::string::npos) << task.group << '/' << task.name;
}

TEST_F(DhtSwarm, ADroppedGetLeavesNothingBehind) {
  add_many(8);
  swarm.pass(2min);  // until the connections are at rest
  const auto before = swarm.runtime().task_count();
  {
    TaskGroup group(swarm.runtime(), "caller");
    group.spawn([](Dht& node) -> Task<void> { (void)co_await node.get("missing", true); }(*nodes[3]), "get");
    swarm.pass(5ms);
  }
  swarm.pass(10s);
  EXPECT_EQ(swarm.runtime().task_count(), before);
}

}  // namespace
}  // namespace cohive::dht
