// Nodes that answer searches with neighbours that do not exist, are not what they are called, or are in league.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>

#include "cohive/rpc/rpc.hpp"
#include "hostile_swarm.hpp"

namespace cohive::dht {
namespace {

/// Answers finds with ever new neighbours that are nearer and nearer to the key, all of them itself.
class Labyrinth {
 public:
  Labyrinth(p2p::Host& host) : host_(host), server_(host) {
    server_.add_unary("DHTProtocol.rpc_ping", [this](PeerId, std::string) { return ping(); });
    server_.add_unary("DHTProtocol.rpc_find", [this](PeerId, std::string request) { return find(std::move(request)); });
  }
  int asked = 0;

 private:
  Task<Result<std::string>> ping() {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'l'));
    reply.set_dht_time(host_.runtime().wall_time());
    reply.set_available(true);
    co_return reply.SerializeAsString();
  }
  Task<Result<std::string>> find(std::string bytes) {
    ++asked;
    proto::FindRequest request;
    request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'l'));
    for (const auto& key : request.keys()) {
      auto* result = reply.add_results();
      for (int i = 0; i < 50; ++i) {
        std::string id = key;
        id[19] = static_cast<char>(asked);
        id[18] = static_cast<char>(i);
        Bytes fake(36, static_cast<std::uint8_t>(i));
        std::memcpy(fake.data(), &asked, sizeof asked);
        result->add_nearest_node_ids(id);
        result->add_nearest_peer_ids(i % 2 ? host_.id().binary() : PeerId::of_public_key(fake).binary());
      }
    }
    co_return reply.SerializeAsString();
  }
  p2p::Host& host_;
  rpc::Server server_;
};

TEST_F(HostileSwarm, InventedNeighboursDoNotHoldASearchForEver) {
  auto& host = swarm.add_host();
  Labyrinth labyrinth(host);
  Dht node(swarm.add_host());
  ASSERT_TRUE(swarm.run(node.start({host.visible_addresses().front()})));
  const TimePoint start = swarm.runtime().now();
  EXPECT_FALSE(swarm.run(node.get("key", true)));
  EXPECT_LE(swarm.runtime().now() - start, 65s);
  EXPECT_LE(labyrinth.asked, 10);
  EXPECT_TRUE(swarm.run(node.store("key", 1, node.now() + 100)));
}

TEST_F(HostileSwarm, InventedNeighboursDoNotCrowdOutTheNodesThatExist) {
  add_many(12, {.cache_nearest = 0});
  auto& host = swarm.add_host();
  Labyrinth labyrinth(host);
  const DhtId key = DhtId::of("key");
  proto::FindRequest hello;  // the liar is nearest to the key, and known to the writer
  hello.mutable_peer()->set_node_id(key.binary());
  Dht& writer = *nodes[3];
  const auto greeted = [&]() -> Task<bool> {
    if (!co_await host.connect(writer.host().visible_addresses().front(), swarm.after(5s))) co_return false;
    const auto found = co_await rpc::call_unary(host, writer.host().id(), "DHTProtocol.rpc_find",
                                                hello.SerializeAsString(), swarm.after(5s));
    co_return found.has_value();
  };
  ASSERT_TRUE(swarm.run(greeted()));
  ASSERT_EQ(writer.known_nodes().size(), 12u);
  swarm.run(writer.store("key", 1, in(600)));
  std::size_t holders = 0;
  for (auto& node : nodes) holders += node->storage_size();
  EXPECT_GE(holders, 4u);
}

/// Names peers that exist under ids that they do not have.
class Misnamer {
 public:
  Misnamer(p2p::Host& host, const DhtId& id, std::vector<std::pair<DhtId, PeerId>> names)
      : id_(id), names_(std::move(names)), server_(host) {
    server_.add_unary("DHTProtocol.rpc_find", [this](PeerId, std::string request) { return find(std::move(request)); });
  }
  /// Becomes known to a node.
  Task<bool> greet(p2p::Host& node) {
    p2p::Host& host = server_.host();
    const Deadline deadline = host.runtime().after(5s);
    if (!co_await host.connect(node.visible_addresses().front(), deadline)) co_return false;
    proto::FindRequest hello;
    hello.mutable_peer()->set_node_id(id_.binary());
    const auto found =
        co_await rpc::call_unary(host, node.id(), "DHTProtocol.rpc_find", hello.SerializeAsString(), deadline);
    co_return found.has_value();
  }

 private:
  Task<Result<std::string>> find(std::string bytes) {
    proto::FindRequest request;
    request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(id_.binary());
    for (int i = 0; i < request.keys_size(); ++i) {
      auto* result = reply.add_results();
      for (const auto& [id, peer] : names_) {
        result->add_nearest_node_ids(id.binary());
        result->add_nearest_peer_ids(peer.binary());
      }
    }
    co_return reply.SerializeAsString();
  }
  DhtId id_;
  std::vector<std::pair<DhtId, PeerId>> names_;
  rpc::Server server_;
};

TEST_F(HostileSwarm, PeersNamedUnderIdsThatTheyDoNotHaveTakeNoRecordFromItsReplicas) {
  constexpr std::size_t kReplicas = 5, kNamed = 5;
  add_many(40, {.cache_nearest = 0});
  const DhtId key = DhtId::of("key");
  std::vector<std::size_t> ranks(nodes.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  std::ranges::sort(ranks, {}, [&](std::size_t i) { return nodes[i]->node_id().distance(key); });
  // A little nearer than the nearest node, but not so near that a crowd is noticed.
  const auto nearer = [&](std::size_t number) {
    DhtId gap = nodes[ranks[0]]->node_id().distance(key);
    const auto first = std::ranges::find_if(gap.bytes, [](std::uint8_t byte) { return byte > 0; });
    --*first;
    *std::next(first) = static_cast<std::uint8_t>(255 - number);
    return key.distance(gap);
  };
  std::vector<std::pair<DhtId, PeerId>> names;
  for (std::size_t i = 1; i <= kNamed; ++i) names.emplace_back(nearer(i), swarm.host(ranks[ranks.size() - 1 - i]).id());
  Misnamer liar(swarm.add_host(), nearer(0), names);
  const std::size_t writer = ranks.back();
  ASSERT_TRUE(swarm.run(liar.greet(swarm.host(writer))));
  (void)swarm.run(nodes[writer]->store("key", 1, in(600)));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    EXPECT_EQ(nodes[ranks[rank]]->storage_size(), rank < kReplicas ? 1u : 0u) << rank;
}

/// Nodes of many networks beside one key. They name each other alone, take what is stored and keep nothing.
class Crowd {
 public:
  Crowd(sim::Swarm& swarm, const DhtId& key, std::size_t size) : swarm_(swarm), key_(key) {
    for (std::size_t i = 0; i < size; ++i) {
      auto& server = servers_.emplace_back(swarm.add_host_at(std::to_string(20 + i) + ".1.1.1"));
      server.add_unary("DHTProtocol.rpc_ping", [this, i](PeerId, std::string) { return ping(i); });
      server.add_unary("DHTProtocol.rpc_find",
                       [this, i](PeerId, std::string request) { return find(i, std::move(request)); });
      server.add_unary("DHTProtocol.rpc_store",
                       [this](PeerId, std::string request) { return store(std::move(request)); });
    }
  }
  /// Becomes known to a node.
  void greet(p2p::Host& node) {
    for (std::size_t i = 0; i < servers_.size(); ++i) swarm_.run(greet_as(i, node));
  }
  int swallowed = 0;

 private:
  std::string id(std::size_t sybil) const {
    std::string bytes = key_.binary();
    bytes.back() = static_cast<char>(bytes.back() ^ (sybil + 2));
    return bytes;
  }
  Task<void> greet_as(std::size_t sybil, p2p::Host& node) {
    proto::FindRequest hello;
    hello.mutable_peer()->set_node_id(id(sybil));
    p2p::Host& host = servers_[sybil].host();
    (void)co_await host.connect(node.visible_addresses().front(), swarm_.after(5s));
    (void)co_await rpc::call_unary(host, node.id(), "DHTProtocol.rpc_find", hello.SerializeAsString(),
                                   swarm_.after(5s));
  }
  Task<Result<std::string>> ping(std::size_t sybil) {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(id(sybil));
    reply.set_dht_time(swarm_.runtime().wall_time());
    reply.set_available(true);
    co_return reply.SerializeAsString();
  }
  Task<Result<std::string>> find(std::size_t sybil, std::string bytes) {
    proto::FindRequest request;
    request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(id(sybil));
    for (int i = 0; i < request.keys_size(); ++i) {
      auto* result = reply.add_results();
      for (std::size_t other = 0; other < servers_.size(); ++other) {
        result->add_nearest_node_ids(id(other));
        result->add_nearest_peer_ids(servers_[other].host().id().binary());
      }
    }
    co_return reply.SerializeAsString();
  }
  Task<Result<std::string>> store(std::string bytes) {
    ++swallowed;
    proto::StoreRequest request;
    request.ParseFromString(bytes);
    proto::StoreResponse reply;
    for (int i = 0; i < request.keys_size(); ++i) reply.add_store_ok(true);
    co_return reply.SerializeAsString();
  }
  sim::Swarm& swarm_;
  DhtId key_;
  std::deque<rpc::Server> servers_;
};

TEST_F(HostileSwarm, ACrowdOfManyNetworksAroundAKeyHidesNoRecord) {
  add_many(40, {.cache_locally = false, .cache_nearest = 0, .cache_on_store = false});
  Crowd crowd(swarm, DhtId::of("key"), 20);
  for (std::size_t i = 0; i < nodes.size(); ++i) crowd.greet(swarm.host(i));
  std::vector<Dht*> writers{nodes[3].get(), nodes[17].get(), nodes[31].get()};
  for (std::size_t i = 0; i < writers.size(); ++i) {
    Dht& writer = *writers[i];
    ASSERT_TRUE(swarm.run(writer.store("key", std::to_string(i), 1, in(600))));
  }
  EXPECT_GE(crowd.swallowed, 6) << "else the crowd is not one that is nearest";
  for (const std::size_t reader : {0u, 9u, 22u, 39u}) {
    const auto found = get(*nodes[reader], "key", true);
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(found->entries().size(), 3u);
  }
  EXPECT_GT(DhtMetrics(swarm.runtime().metrics()).searches_crowded.value(), 0);
}

}  // namespace
}  // namespace cohive::dht
