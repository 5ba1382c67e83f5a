#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/proto/dht.pb.h"
#include "support/swarm.hpp"

namespace cohive::dht {
namespace {

class DhtSwarm : public ::testing::Test {
 protected:
  Dht& add(DhtOptions options = {}) {
    p2p::HostOptions host_options;
    host_options.routing_server = !options.client_mode;
    auto& host = swarm.add_host(host_options, !options.client_mode);
    nodes.push_back(std::make_unique<Dht>(host, options));
    std::vector<Multiaddr> initial;
    if (nodes.size() > 1) initial = {swarm.host(0).visible_addresses().front()};
    auto started = swarm.run(nodes.back()->start(initial));
    EXPECT_TRUE(started) << started.error();
    return *nodes.back();
  }
  double in(double seconds) { return nodes[0]->now() + seconds; }
  std::optional<GetResult> get(Dht& node, Key key, bool latest = false) { return swarm.run(node.get(std::move(key), latest)); }

  sim::Swarm swarm{{.seed = 11}};
  std::vector<std::unique_ptr<Dht>> nodes;
};

TEST_F(DhtSwarm, WhatOneStoresEveryoneReads) {
  for (int i = 0; i < 20; ++i) add();
  const double expiration = in(100);
  ASSERT_TRUE(swarm.run(nodes[3]->store("key", msgpack::Array{{1, "two", 3.0}}, expiration)));
  for (auto& node : nodes) {
    auto result = get(*node, "key");
    ASSERT_TRUE(result);
    EXPECT_EQ(*result->value(), (msgpack::Value(msgpack::Array{{1, "two", 3.0}})));
    EXPECT_EQ(result->expiration, expiration);
  }
  EXPECT_FALSE(get(*nodes[5], "another key"));
}

TEST_F(DhtSwarm, ARecordHasExactlyItsReplicas) {
  for (int i = 0; i < 25; ++i) add();
  ASSERT_TRUE(swarm.run(nodes[7]->store("counted", 1, in(100))));
  std::size_t copies = 0;
  for (auto& node : nodes) copies += node->storage_size();
  EXPECT_EQ(copies, 5u);
}

TEST_F(DhtSwarm, DictionariesMergeSubkeysOfSeveralWriters) {
  for (int i = 0; i < 10; ++i) add();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(swarm.run(nodes[static_cast<std::size_t>(i)]->store("dict", i, "from " + std::to_string(i), in(50 + i))));
  auto result = get(*nodes[9], "dict", true);
  ASSERT_TRUE(result && result->is_dictionary());
  EXPECT_EQ(result->entries().size(), 5u);
  EXPECT_FALSE(swarm.run(nodes[8]->store("dict", 3, "older", in(10)))) << "an older entry must be refused";
}

TEST_F(DhtSwarm, RecordsVanishWhenTheyExpire) {
  for (int i = 0; i < 5; ++i) add();
  ASSERT_TRUE(swarm.run(nodes[1]->store("short", 1, in(5))));
  swarm.pass(6s);
  EXPECT_FALSE(get(*nodes[2], "short"));
}

TEST_F(DhtSwarm, ClientsReadAndWriteButAppearInNoTable) {
  for (int i = 0; i < 4; ++i) add();
  Dht& client = add({.client_mode = true});
  ASSERT_TRUE(swarm.run(client.store("from client", 7, in(60))));
  EXPECT_TRUE(get(*nodes[2], "from client"));
  ASSERT_TRUE(swarm.run(nodes[1]->store("to client", 8, in(60))));
  EXPECT_TRUE(get(client, "to client"));
  for (std::size_t i = 0; i < 4; ++i)
    for (const auto& [id, peer] : nodes[i]->known_nodes()) EXPECT_NE(peer, client.host().id());
}

TEST_F(DhtSwarm, GetsSucceedWhileNodesDie) {
  for (int i = 0; i < 20; ++i) add();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(swarm.run(nodes[0]->store("k" + std::to_string(i), i, in(600))));
  swarm.fabric().kill(sim::Swarm::ip(5));
  swarm.fabric().crash(sim::Swarm::ip(6));
  swarm.fabric().crash(sim::Swarm::ip(7));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(get(*nodes[15], "k" + std::to_string(i), true)) << i;
}

TEST_F(DhtSwarm, ANewcomerReceivesTheRecordsItIsNowNearestTo) {
  add();
  ASSERT_TRUE(swarm.run(nodes[0]->store("old", 1, in(600))));
  Dht& late = add();
  swarm.pass(2s);
  EXPECT_EQ(late.storage_size(), 1u);
}

TEST_F(DhtSwarm, OwnedSubkeysCannotBeOverwrittenByOthers) {
  auto owner = std::make_shared<RsaSignatureValidator>();
  for (int i = 0; i < 4; ++i) {
    add();
    nodes.back()->add_validator(i == 1 ? owner : std::make_shared<RsaSignatureValidator>());
  }
  const msgpack::Value subkey = msgpack::Bin{owner->ownership_marker()};
  ASSERT_TRUE(swarm.run(nodes[1]->store("owned", subkey, 42, in(60))));
  EXPECT_FALSE(swarm.run(nodes[2]->store("owned", subkey, 13, in(61))));
  auto result = get(*nodes[3], "owned", true);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->entries().front().second.value, msgpack::Value(42));
}

TEST_F(DhtSwarm, OneUnsignedEntryDoesNotHideTheOthers) {
  add();  // a bootstrap node without validators keeps anything
  auto owner = std::make_shared<RsaSignatureValidator>();
  Dht& trainer = add();
  trainer.add_validator(owner);
  ASSERT_TRUE(swarm.run(nodes[0]->store("progress", msgpack::Bin{owner->ownership_marker()}, 13, in(70))));
  ASSERT_TRUE(swarm.run(nodes[0]->store("progress", "free", 1, in(60))));
  auto result = get(trainer, "progress", true);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->entries().size(), 1u);
}

TEST_F(DhtSwarm, HostileRequestsAreRefusedWithoutHarm) {
  add();
  Dht& attacker = add({.client_mode = true});
  auto call = [&](const std::string& request, const char* method) {
    return swarm.run(rpc::call_unary(attacker.host(), swarm.host(0).id(), method, request, swarm.after(3s)));
  };
  EXPECT_FALSE(call("\xff\xff", "DHTProtocol.rpc_store"));
  proto::StoreRequest uneven;
  uneven.add_keys(std::string(20, 'a'));
  EXPECT_FALSE(call(uneven.SerializeAsString(), "DHTProtocol.rpc_store"));
  proto::StoreRequest odd;
  for (const auto& [key, expiration, value] : {std::tuple{std::string(19, 'a'), in(10), std::string("\x01")},
                                                {std::string(20, 'a'), std::numeric_limits<double>::infinity(), std::string("\x01")},
                                                {std::string(20, 'a'), std::nan(""), std::string("\x01")},
                                                {std::string(20, 'a'), in(10), std::string(2 << 20, 'x')}}) {
    odd.add_keys(key);
    odd.add_subkeys("\xc0");
    odd.add_values(value);
    odd.add_expiration_time(expiration);
    odd.add_in_cache(false);
  }
  proto::StoreResponse reply;
  ASSERT_TRUE(reply.ParseFromString(call(odd.SerializeAsString(), "DHTProtocol.rpc_store").value()));
  for (bool stored : reply.store_ok()) EXPECT_FALSE(stored);
  EXPECT_EQ(nodes[0]->storage_size(), 0u);
}

TEST_F(DhtSwarm, StartingWithUnreachablePeersIsAClearError) {
  auto& host = swarm.add_host();
  Dht lonely(host);
  auto nobody = Multiaddr::from_text("/ip4/10.9.9.9/tcp/1").value().with_peer(KeyPair::generate_ed25519().peer_id());
  auto started = swarm.run(lonely.start({nobody}));
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().message().find("none of the initial peers answered"), std::string::npos);
}

}  // namespace
}  // namespace cohive::dht
