// Newcomers that ask to be called back: who is let in, and what those cost that do not answer.
#include <gtest/gtest.h>

#include "hostile_swarm.hpp"

namespace cohive::dht {
namespace {

/// Asks to be called back.
proto::PingRequest newcomers_ping() {
  proto::PingRequest request;
  request.mutable_peer()->set_node_id(std::string(20, 'x'));
  request.set_validate(true);
  return request;
}

TEST_F(HostileSwarm, ANodeThatCannotBeCalledBackIsNotAdmitted) {
  add();
  Dht& liar = add({.client_mode = true});
  const proto::PingRequest request = newcomers_ping();
  proto::PingResponse reply;
  ASSERT_TRUE(reply.ParseFromString(call(liar, 0, "DHTProtocol.rpc_ping", request.SerializeAsString()).value()));
  EXPECT_FALSE(reply.available());
  EXPECT_EQ(reply.peer().node_id(), nodes[0]->node_id().binary());
  EXPECT_NEAR(reply.dht_time(), nodes[0]->now(), 1);
  EXPECT_EQ(nodes[0]->table_size(), 0u);
}

TEST_F(HostileSwarm, CallersWhoNeverAnswerWhenCalledBackDoNotHoldUpTheNodesOwnCalls) {
  add_many(2, {.num_replicas = 1, .cache_on_store = false});
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  auto& attacker = swarm.add_host();
  rpc::Server silent(attacker);
  silent.add_unary("DHTProtocol.rpc_ping", [&](PeerId, std::string) { return answer_after(swarm.runtime(), 1h, ""); });
  ASSERT_TRUE(swarm.run(attacker.connect(swarm.host(0).visible_addresses().front(), swarm.after(5s))));
  const proto::PingRequest request = newcomers_ping();
  TaskGroup pings(swarm.runtime(), "pings");
  for (int i = 0; i < 300; ++i)
    pings.spawn([](p2p::Host& host, PeerId peer, std::string ping) -> Task<void> {
      (void)co_await rpc::call_unary(host, peer, "DHTProtocol.rpc_ping", ping, Deadline::never());
    }(attacker, swarm.host(0).id(), request.SerializeAsString()));
  swarm.pass(1s);
  ASSERT_EQ(nodes[0]->storage_size(), 0u) << "it has to ask";
  const TimePoint start = swarm.runtime().now();
  EXPECT_TRUE(get(*nodes[0], "key", true));
  EXPECT_LT(swarm.runtime().now() - start, 500ms);
}

Task<void> ask_for_welcome(p2p::Host& from, PeerId peer, std::string ping, Deadline deadline, int& welcome) {
  const auto bytes = co_await rpc::call_unary(from, peer, "DHTProtocol.rpc_ping", ping, deadline);
  proto::PingResponse reply;
  welcome += bytes && reply.ParseFromString(*bytes) && reply.available();
}

TEST_F(HostileSwarm, NewcomersWhoComeAllAtOnceAreAllCalledBack) {
  add();
  const proto::PingRequest request = newcomers_ping();
  proto::PingResponse answer;
  *answer.mutable_peer() = request.peer();
  std::vector<std::unique_ptr<rpc::Server>> newcomers;
  for (int i = 0; i < 150; ++i) {
    newcomers.push_back(std::make_unique<rpc::Server>(swarm.add_host()));
    newcomers.back()->add_unary("DHTProtocol.rpc_ping", [&](PeerId, std::string) {
      return answer_after(swarm.runtime(), 200ms, answer.SerializeAsString());
    });
    p2p::Host& host = newcomers.back()->host();
    ASSERT_TRUE(swarm.run(host.connect(swarm.host(0).visible_addresses().front(), swarm.after(5s))));
  }
  int welcome = 0;
  TaskGroup pings(swarm.runtime(), "pings");
  for (const auto& newcomer : newcomers)
    pings.spawn(
        ask_for_welcome(newcomer->host(), swarm.host(0).id(), request.SerializeAsString(), swarm.after(3s), welcome));
  swarm.pass(3s);
  EXPECT_EQ(welcome, 150);
}

Task<void> ask_for_welcome_again_and_again(p2p::Host& from, PeerId peer, std::string ping) {
  for (;; co_await from.runtime().sleep_for(10ms))
    (void)co_await rpc::call_unary(from, peer, "DHTProtocol.rpc_ping", ping, from.runtime().after(10s));
}

TEST_F(HostileSwarm, NewcomersOfOneNetworkThatDoNotAnswerKeepNobodyElseOut) {
  add();
  std::vector<std::unique_ptr<rpc::Server>> silent;
  TaskGroup pings(swarm.runtime(), "pings");
  for (int i = 0; i < 130; ++i) {
    p2p::Host& host = swarm.add_host_at("8.8.8." + std::to_string(i + 1));
    silent.push_back(std::make_unique<rpc::Server>(host));
    silent.back()->add_unary("DHTProtocol.rpc_ping",
                             [&](PeerId, std::string) { return answer_after(swarm.runtime(), 1h, ""); });
    ASSERT_TRUE(swarm.run(host.connect(swarm.host(0).visible_addresses().front(), swarm.after(5s))));
    pings.spawn(ask_for_welcome_again_and_again(host, swarm.host(0).id(), newcomers_ping().SerializeAsString()));
  }
  swarm.pass(10s);
  Dht newcomer(swarm.add_host());
  const TimePoint start = swarm.runtime().now();
  const auto joined = swarm.run(newcomer.start({swarm.host(0).visible_addresses().front()}));
  EXPECT_TRUE(joined) << joined.error();
  EXPECT_LT(swarm.runtime().now() - start, 1s);
}

}  // namespace
}  // namespace cohive::dht
