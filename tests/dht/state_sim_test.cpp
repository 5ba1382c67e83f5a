// A node that goes and comes back with what it kept.
#include "cohive/dht/state.hpp"

#include <malloc.h>
#include <unistd.h>

#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

/// What a node writes, as it is read again.
struct Saved : SavedState {
  std::vector<WireRecord> records;
};
Saved saved_by(sim::Swarm& swarm, Dht& node, StateLimits limits = {}) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("cohive_dht_state_" + std::to_string(::getpid()));
  std::vector<SavedPeer> peers;
  EXPECT_TRUE(swarm.run(node.save(path, peers, limits)));
  auto reader = StateReader::open(path).value();
  Saved state{reader.state(), {}};
  for (auto records = reader.next(); !records.empty(); records = reader.next())
    state.records.insert(state.records.end(), records.begin(), records.end());
  EXPECT_FALSE(reader.damaged());
  EXPECT_EQ(peers.size(), state.peers.size());
  std::filesystem::remove(path);
  return state;
}

TEST_F(DhtSwarm, ANodeThatComesBackServesItsRecordsAtItsOldPlace) {
  add_many(4);
  ASSERT_TRUE(store(*nodes[1], "plain", 1, in(600)));
  ASSERT_TRUE(store(*nodes[1], "dictionary", "a", 2, in(600)));
  ASSERT_TRUE(store(*nodes[1], "dictionary", "b", 3, in(6)));
  ASSERT_TRUE(store(*nodes[1], "short", 4, in(5)));
  Saved state = saved_by(swarm, *nodes[0]);
  EXPECT_EQ(state.peer, swarm.host(0).id());
  EXPECT_EQ(state.node_id, nodes[0]->node_id());
  EXPECT_EQ(state.peers.size(), 3u);
  for (const auto& peer : state.peers) EXPECT_FALSE(peer.addresses.empty());

  // All others die, and time passes before it is back.
  for (std::size_t i = 1; i < 4; ++i) swarm.fabric().kill(ip_of(i));
  nodes[0].reset();
  swarm.pass(10s);
  Dht again(swarm.host(0), {.node_id = state.node_id});
  EXPECT_EQ(again.node_id(), state.node_id);
  EXPECT_EQ(swarm.run(again.restore(state.records)), 1u) << "what has expired, in whole or in part, does not count";
  EXPECT_EQ(*get(again, "plain")->value(), msgpack::Value(1));
  EXPECT_EQ(get(again, "dictionary")->entries().size(), 1u);
  EXPECT_FALSE(get(again, "short"));
  auto& newcomer_host = swarm.add_host();
  Dht newcomer(newcomer_host);
  ASSERT_TRUE(swarm.run(newcomer.start({swarm.host(0).visible_addresses().front()})));
  EXPECT_TRUE(get(newcomer, "plain", true));
}

TEST_F(DhtSwarm, RestoredRecordsAreNotTheFirstToGo) {
  Dht& node = add({.max_records = 1000});
  std::vector<WireRecord> records;
  for (int i = 0; i < 900; ++i) records.push_back({DhtId::of(i), std::string(1, '\xc0'), "\x01", in(100), false});
  ASSERT_EQ(swarm.run(node.restore(records)), 900u);
  Dht& greedy = add({.client_mode = true});
  std::vector<StoreItem> flood;
  for (int i = 0; i < 2000; ++i) flood.push_back({"flood " + std::to_string(i), {}, 1, in(600'000)});
  swarm.run(greedy.store_many(flood));
  std::size_t kept = 0;
  for (int i = 0; i < 900; ++i) kept += get(node, i).has_value();
  EXPECT_GE(kept, 700u);
}

TEST_F(DhtSwarm, AStateKeepsWithinItsBoundsWhatLivesLongest) {
  add();
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(store(*nodes[0], "key " + std::to_string(i), std::string(1000, 'x'), in(100 + i)));
  const Saved state = saved_by(swarm, *nodes[0], {.max_bytes = 20'000});
  EXPECT_LT(state.records.size(), 20u);
  EXPECT_GT(state.records.size(), 10u);
  for (const auto& record : state.records) EXPECT_GT(record.expiration, in(170));
}

TEST_F(DhtSwarm, AHundredThousandRecordsOfAnySizeComeBack) {
  constexpr std::size_t kMany = 100'000;
  Dht& node = add();
  std::vector<WireRecord> records;
  for (std::size_t i = 0; i < kMany; ++i) {
    // One byte mostly, and every size that there is up to the largest value.
    const std::size_t size = i % 100 == 0 ? i / 8 : i % 10 == 0 ? 300 : 1;
    records.push_back({DhtId::of(i), std::string(1, '\xc0'), std::string(std::min<std::size_t>(size, 1 << 13), '\x01'),
                       in(1000.0 + static_cast<double>(i % 500)), i % 1000 == 7});
  }
  records[5].value = std::string(1 << 20, '\x01');
  ASSERT_EQ(swarm.run(node.restore(records)), kMany);
  Saved state = saved_by(swarm, node);
  ASSERT_EQ(state.records.size(), kMany);
  nodes[0].reset();
  nodes[0] = std::make_unique<Dht>(swarm.host(0), DhtOptions{.node_id = state.node_id});
  EXPECT_EQ(swarm.run(nodes[0]->restore(std::move(state.records))), kMany);
  EXPECT_EQ(nodes[0]->storage_size() + nodes[0]->cache_size(), kMany);
}

TEST_F(DhtSwarm, TheMemoryForRecordsFollowsTheBudgetOfTheHost) {
  p2p::HostOptions host_options;
  host_options.memory_budget = 16 << 20;
  auto& host = swarm.add_host(host_options);
  nodes.push_back(std::make_unique<Dht>(host, DhtOptions{}));
  const auto fill = [&](bool cached) {
    std::vector<WireRecord> records;
    for (int i = 0; i < 40'000; ++i) records.push_back({DhtId::of(i), std::string(1, '\xc0'), "\x01", in(100), cached});
    swarm.run(nodes[0]->restore(std::move(records)));
  };
  const std::size_t before = ::mallinfo2().uordblks;
  fill(true);
  fill(false);
  const std::size_t taken = ::mallinfo2().uordblks - before;
  EXPECT_LE(taken, 8u << 20) << "half of the budget, storage and cache together";
  EXPECT_GT(nodes[0]->storage_size(), 10'000u);
  EXPECT_GT(nodes[0]->cache_size(), 3'000u);
}

TEST_F(DhtSwarm, RestoredRecordsAreCheckedLikeThoseOfStrangers) {
  add();
  Dht& node = *nodes[0];
  std::vector<WireRecord> records;
  const auto put = [&](const char* key, std::string tag, std::string value, double expiration) {
    records.push_back({DhtId::of(key), std::move(tag), std::move(value), expiration, false});
  };
  put("good", std::string(1, '\xc0'), msgpack::encode(1), in(10));
  put("expired", std::string(1, '\xc0'), msgpack::encode(1), in(-10));
  put("for ever", std::string(1, '\xc0'), msgpack::encode(1), in(1e9));
  put("bad tag", "\xc1", msgpack::encode(1), in(10));
  put("bad dictionary", "", "no dictionary", in(10));
  put("large", std::string(1, '\xc0'), std::string((1 << 20) + 1, 'x'), in(10));
  EXPECT_EQ(swarm.run(node.restore(records)), 1u);
  EXPECT_EQ(node.storage_size(), 1u);
}

}  // namespace
}  // namespace cohive::dht
