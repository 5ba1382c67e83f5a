// Addresses with names, which are looked up before they are dialled.
#include <gtest/gtest.h>

#include "cohive/transport/stream_transport.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

struct Names : testing::Test {
  Host& host_with_names(std::map<std::string, std::vector<Multiaddr>> names) {
    network = std::make_unique<NotingNetwork>(swarm.fabric().add_machine());
    Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*network));
    ways.resolver = std::make_unique<FewNames>(std::move(names));
    host = std::make_unique<Host>(swarm.runtime(), std::move(ways), nobody(1000),
                                  HostOptions{.transport = {.plaintext = true}});
    host->start().value();
    return *host;
  }
  Swarm swarm;
  std::unique_ptr<NotingNetwork> network;
  std::unique_ptr<Host> host;
};

TEST_F(Names, ADnsaddrOfManyPeersLeadsToTheOneAskedFor) {
  auto& bob = swarm.add_host();
  auto& carol = swarm.add_host();
  auto& alice = host_with_names({{"/dnsaddr/boot.example", {address_of(bob), address_of(carol), address_of(carol)}}});
  auto result = swarm.run(alice.connect(parsed("/dnsaddr/boot.example").with_peer(carol.id()), swarm.after(10s)));
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(*result, carol.id());
  EXPECT_EQ(network->dialled.size(), 1u);
  swarm.fabric().partition({Swarm::ip(2)}, {Swarm::ip(3)});
  swarm.pass(2h);  // what it led to is forgotten
  swarm.fabric().heal();
  swarm.pass(10min);
  EXPECT_TRUE(alice.connected(carol.id()));
  for (const auto& address : network->dialled) EXPECT_EQ(address, carol.addresses().front().text());
}

TEST_F(Names, ADnsaddrWithoutAPeerLeadsToTheFirstThatAnswers) {
  auto& bob = swarm.add_host();
  auto& alice =
      host_with_names({{"/dnsaddr/boot.example", {nowhere().with_peer(nobody(1).peer_id()), address_of(bob)}}});
  auto result = swarm.run(alice.connect(parsed("/dnsaddr/boot.example"), swarm.after(20s)));
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(*result, bob.id());
}

TEST_F(Names, ANameThatWasGivenIsResolvedAgainWhenThePeerHasMoved) {
  auto& bob = swarm.add_host();
  std::map<std::string, std::vector<Multiaddr>> names{{"/dns4/bob.example/tcp/4001", {bob.addresses().front()}}};
  auto& alice = host_with_names(names);
  ASSERT_TRUE(swarm.run(alice.connect(parsed("/dns4/bob.example/tcp/4001").with_peer(bob.id()), swarm.after(10s))));
  alice.disconnect(bob.id());
  swarm.pass(2h);
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(10s))));
}

TEST_F(Names, ANameThatAStrangerToldDoesNotLeadInside) {
  auto& bob = swarm.add_host();
  auto& alice = host_with_names({{"/dns4/inside.example/tcp/80", {parsed("/ip4/127.0.0.1/tcp/80")}},
                                 {"/dnsaddr/bomb.example", {parsed("/ip4/10.0.0.9/tcp/80")}}});
  auto& liar = add_liar(swarm, [](const proto::KadMessage& request) {
    proto::KadMessage reply;
    reply.set_type(request.type());
    name(reply, nobody(7).peer_id(), {parsed("/dns4/inside.example/tcp/80"), parsed("/dnsaddr/bomb.example")});
    return reply;
  });
  ASSERT_TRUE(swarm.run(alice.bootstrap({address_of(liar), address_of(bob)}, swarm.after(10s))));
  swarm.pass(2s);
  network->dialled.clear();
  EXPECT_FALSE(swarm.run(alice.connect(nobody(7).peer_id(), swarm.after(30s))));
  EXPECT_TRUE(network->dialled.empty()) << network->dialled.front();
}

}  // namespace
}  // namespace cohive::p2p
