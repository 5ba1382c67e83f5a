// Nodes that have served a peer enough for now: it asks them again a little later and loses nothing.
#include <gtest/gtest.h>

#include "cohive/dht/errors.hpp"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

class BusySwarm : public DhtSwarm {
 protected:
  double busy_answers(const char* kind) { return CallMetrics(swarm.runtime().metrics(), kind).busy.value(); }
  double failed_calls(const char* kind) { return CallMetrics(swarm.runtime().metrics(), kind).failed.value(); }
};

constexpr int kKeys = 3000;

TEST_F(BusySwarm, WhoStoresMoreThanNodesServeAtOnceSlowsDownUntilAllIsStored) {
  add_many(5, {.max_keys_per_second = 300});
  swarm.pass(1min);
  std::vector<StoreItem> items;
  for (int i = 0; i < kKeys; ++i) items.push_back({"key" + std::to_string(i), std::nullopt, i, in(3600)});
  const auto stored = swarm.run(nodes[1]->store_many(std::move(items)));
  EXPECT_EQ(std::count_if(stored.begin(), stored.end(), [](const auto& one) { return one.has_value(); }), kKeys);
  for (const auto& node : nodes) {
    EXPECT_EQ(node->storage_size(), static_cast<std::size_t>(kKeys)) << "on every replica";
    EXPECT_EQ(node->table_size(), 4u) << "nobody was given up";
  }
  EXPECT_GT(busy_answers("store"), 0) << "or this test shows nothing";
  EXPECT_EQ(failed_calls("store") + failed_calls("find"), 0);
}

TEST_F(BusySwarm, ASearchInASwarmThatIsBusyForAMomentFindsWhatIsThere) {
  add_many(5, {.num_replicas = 1, .cache_nearest = 0, .max_keys_per_second = 100});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(store(*nodes[0], "key" + std::to_string(i), i, in(3600)));
  swarm.pass(1min);
  Dht& reader = add({.client_mode = true});
  std::vector<DhtId> many;
  for (int i = 0; i < 550; ++i) many.push_back(DhtId::of(i));
  for (std::size_t i = 0; i < 5; ++i)  // the reader has asked for more than it is due
    for (int round = 0; round < 2; ++round) (void)swarm.run(reader.ask(swarm.host(i).id(), many));
  std::vector<Key> keys;
  for (int i = 0; i < 20; ++i) keys.emplace_back("key" + std::to_string(i));
  const auto found = swarm.run(reader.get_many(keys, true));
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i]) << i;
    EXPECT_EQ(*found[i]->value(), msgpack::Value(static_cast<int>(i)));
  }
  EXPECT_GT(busy_answers("find"), 0) << "or this test shows nothing";
  EXPECT_EQ(failed_calls("find"), 0);
}

TEST_F(BusySwarm, ANodeThatIsAlwaysBusyStaysKnownAndDelaysOnlyOnce) {
  auto& host = swarm.add_host();
  rpc::Server server(host);
  const auto answer = [](Result<std::string> result) -> Task<Result<std::string>> { co_return result; };
  server.add_unary("DHTProtocol.rpc_ping", [&](PeerId, std::string) {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'b'));
    reply.set_dht_time(swarm.runtime().wall_time());
    reply.set_available(true);
    return answer(reply.SerializeAsString());
  });
  for (const char* method : {"DHTProtocol.rpc_find", "DHTProtocol.rpc_store"})
    server.add_unary(method, [&](PeerId, std::string) { return answer(Error(rpc::Errc::busy)); });
  Dht node(swarm.add_host());
  ASSERT_TRUE(swarm.run(node.start({host.visible_addresses().front()})));
  EXPECT_EQ(node.table_size(), 1u);
  const TimePoint start = swarm.runtime().now();
  EXPECT_TRUE(swarm.run(node.store("key", 1, node.now() + 60))) << "at home";
  EXPECT_EQ(swarm.run(node.get("another", true)).error(), Errc::unreachable);
  EXPECT_LE(swarm.runtime().now() - start, 4s) << "one patience at most";
  EXPECT_EQ(node.table_size(), 1u);
}

TEST_F(BusySwarm, CallsToNodesThatHangKeepNoOtherCallForLonger) {
  Dht& node = add({.parallel_rpc = 1});
  Dht& good = add();
  std::vector<std::unique_ptr<rpc::Server>> silent;
  std::vector<PeerId> peers;
  for (int i = 0; i < 5; ++i) {
    auto& host = swarm.add_host();
    silent.push_back(std::make_unique<rpc::Server>(host));
    silent.back()->add_unary("DHTProtocol.rpc_ping", [this](PeerId, std::string) -> Task<Result<std::string>> {
      return [](Runtime& runtime) -> Task<Result<std::string>> {
        co_await runtime.sleep_for(std::chrono::hours(1));
        co_return std::string();
      }(swarm.runtime());
    });
    peers.push_back(host.id());
    swarm.host(0).learn_addresses(host.id(), host.addresses());
    ASSERT_TRUE(swarm.run(swarm.host(0).connect(host.id(), swarm.after(5s))));
  }
  const TimePoint start = swarm.runtime().now();
  Nursery pings(swarm.runtime());
  for (const PeerId& peer : peers)
    pings.spawn([](Dht& from, PeerId to) -> Task<void> { EXPECT_FALSE(co_await from.ping(to)); }(node, peer));
  pings.spawn([](Dht& from, PeerId to) -> Task<void> { (void)co_await from.ping(to); }(node, good.host().id()));
  swarm.run(pings.join());
  EXPECT_LE(swarm.runtime().now() - start, 2 * node.options().wait_timeout + 1s);
  EXPECT_EQ(node.table_size(), 1u) << "a call that was not made is no sign that a node is gone";
  EXPECT_TRUE(swarm.run(node.ping(good.host().id())));
}

}  // namespace
}  // namespace cohive::dht
