// Addresses with names, which are looked up before they are dialled.
#include <gtest/gtest.h>

#include "cohive/transport/stream_transport.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

/// A resolver that takes its time.
class LateNames final : public transport::Resolver {
 public:
  LateNames(Runtime& runtime, Duration delay, FewNames::Names names)
      : runtime_(runtime), delay_(delay), names_(std::move(names)) {}
  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline deadline) override {
    co_await runtime_.sleep_for(delay_);
    co_return co_await names_.resolve(std::move(address), deadline);
  }

 private:
  Runtime& runtime_;
  Duration delay_;
  FewNames names_;
};

struct Names : testing::Test {
  Host& host_with_names(FewNames::Names names) { return host_with(std::make_unique<FewNames>(std::move(names))); }
  Host& host_with(std::unique_ptr<transport::Resolver> resolver) {
    network = std::make_unique<NotingNetwork>(swarm.fabric().add_machine());
    Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*network));
    ways.resolver = std::move(resolver);
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

/// Any peer may name a name, and the DHT waits for three seconds only.
TEST_F(Names, ANameWithoutAnAnswerHoldsUpNoAddressThatIsKnown) {
  auto& bob = swarm.add_host();
  auto& alice = host_with(std::make_unique<LateNames>(swarm.runtime(), 1h, FewNames::Names{}));
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  alice.disconnect(bob.id());
  swarm.pass(1s);
  alice.learn_addresses(bob.id(), {parsed("/dns4/black-hole.example/tcp/1")});
  const auto result = swarm.run(alice.connect_via(bob.id(), {}, swarm.after(1s)));
  EXPECT_TRUE(result) << result.error();
}

TEST_F(Names, AnAnswerThatComesAfterAllAddressesHaveFailedIsDialled) {
  auto& bob = swarm.add_host();
  auto& alice = host_with(std::make_unique<LateNames>(
      swarm.runtime(), 5s, FewNames::Names{{"/dns4/bob.example/tcp/4001", {bob.addresses().front()}}}));
  const auto closed = Multiaddr::from_ip_tcp(bob.addresses().front().tcp_endpoint()->host, 1).value();
  alice.learn_addresses(bob.id(), {closed, parsed("/dns4/bob.example/tcp/4001")});
  const auto result = swarm.run(alice.connect(bob.id(), swarm.after(10s)));
  EXPECT_TRUE(result) << result.error();
  EXPECT_EQ(network->dialled.size(), 2u);
}

}  // namespace
}  // namespace cohive::p2p
