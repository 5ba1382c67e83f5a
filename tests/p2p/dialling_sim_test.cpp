// Which of a peer's addresses are dialled, in which order and how long after each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/stream_transport.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;
using testing::ElementsAre;

struct Dialling : testing::Test {
  Swarm swarm;

  /// How long it takes, and at which address the peer is then.
  std::pair<Duration, std::string> connect(Host& from, const PeerId& to) {
    const TimePoint start = swarm.runtime().now();
    const auto result = swarm.run(from.connect(to, swarm.after(30s)));
    EXPECT_TRUE(result) << result.error();
    return {swarm.runtime().now() - start, result ? from.remote_address(to)->text() : std::string()};
  }
};

// ---- Two families of addresses

TEST_F(Dialling, HostsOfVersion6AloneMakeASwarm) {
  auto& hub = swarm.add_host_at("2600::1");
  auto& bob = swarm.add_host_at("2600:1::1");
  auto& carol = swarm.add_host_at("2600:2::1");
  EXPECT_THAT(hub.addresses(), ElementsAre(parsed("/ip6/2600::1/tcp/4001")));
  for (Host* host : {&bob, &carol}) ASSERT_TRUE(swarm.run(host->bootstrap({address_of(hub)}, swarm.after(10s))));
  swarm.pass(2s);
  EXPECT_EQ(connect(bob, carol.id()).second, "/ip6/2600:2::1/tcp/4001");
  EXPECT_TRUE(swarm.run(ping(bob, carol.id(), swarm.after(5s))));
  EXPECT_THAT(carol.observed_addresses(), testing::Contains(parsed("/ip6/2600:2::1/tcp/4001")));
}

TEST_F(Dialling, AHostOfBothFamiliesIsReachedByEither) {
  auto& both = swarm.add_host_at("9.9.9.9", {}, "2600::1");
  auto& four = swarm.add_host_at("8.8.8.8");
  auto& six = swarm.add_host_at("2600:1::1");
  for (Host* host : {&four, &six}) host->learn_addresses(both.id(), both.addresses());
  EXPECT_EQ(connect(four, both.id()).second, "/ip4/9.9.9.9/tcp/4001");
  EXPECT_EQ(connect(six, both.id()).second, "/ip6/2600::1/tcp/4001");
  // and each is found by the other's family through it, but not dialled: there is no way
  EXPECT_FALSE(swarm.run(four.connect(six.id(), swarm.after(20s))));
}

TEST_F(Dialling, Version6GoesFirstAndVersion4AQuarterOfASecondLater) {
  auto& alice = swarm.add_host_at("8.8.8.8", {}, "2600:1::1");
  auto& bob = swarm.add_host_at("9.9.9.9", {}, "2600::1");
  alice.learn_addresses(bob.id(), {parsed("/ip4/9.9.9.9/tcp/4001"), parsed("/ip6/2600::1/tcp/4001")});
  EXPECT_EQ(connect(alice, bob.id()).second, "/ip6/2600::1/tcp/4001");
  alice.disconnect(bob.id());
  swarm.pass(1h);

  swarm.fabric().crash("2600::1");  // whatever is sent there gets lost
  alice.learn_addresses(bob.id(), {parsed("/ip4/9.9.9.9/tcp/4001"), parsed("/ip6/2600::1/tcp/4001")});
  const auto [took, where] = connect(alice, bob.id());
  EXPECT_EQ(where, "/ip4/9.9.9.9/tcp/4001");
  EXPECT_GE(took, 250ms);
  EXPECT_LT(took, 400ms);
}

TEST_F(Dialling, AFamilyThatTheMachineLacksCostsNoTime) {
  auto& alice = swarm.add_host_at("8.8.8.8");
  auto& bob = swarm.add_host_at("9.9.9.9");
  alice.learn_addresses(bob.id(), {parsed("/ip6/2600::1/tcp/4001"), parsed("/ip4/9.9.9.9/tcp/4001")});
  EXPECT_LT(connect(alice, bob.id()).first, 100ms);
}

TEST_F(Dialling, AFamilyThatTheMachineLacksIsNotListenedOn) {
  const std::vector listen{parsed("/ip4/0.0.0.0/tcp/4001"), parsed("/ip6/::/tcp/4001")};
  EXPECT_THAT(swarm.add_host_at("9.9.9.9", {.listen = listen}).addresses(),
              ElementsAre(parsed("/ip4/9.9.9.9/tcp/4001")));
  EXPECT_THAT(swarm.add_host_at("2600::1", {.listen = listen}).addresses(),
              ElementsAre(parsed("/ip6/2600::1/tcp/4001")));
  const auto machine = swarm.fabric().add_machine();
  Host host(*machine, nobody(1), {.listen = {parsed("/ip6/::/tcp/4001")}});
  EXPECT_EQ(host.start().error().code(), make_error_code(transport::Errc::address_unsupported));
}

// ---- Names and other kinds of addresses

struct OtherTransports : Dialling {
  /// A transport that knows circuits, and notes when they are dialled.
  class Circuits final : public transport::Transport {
   public:
    explicit Circuits(Runtime& runtime) : runtime_(runtime) {}
    bool handles(const Multiaddr& address) const override { return address.is_circuit(); }
    Task<Result<transport::ConnectionPtr>> dial(Multiaddr address, transport::DialOptions) override {
      dialled.emplace_back(runtime_.now(), address.text());
      co_return Error(transport::Errc::dial_failed, address.text());
    }
    Result<std::unique_ptr<transport::ConnectionListener>> listen(const Multiaddr& address) override {
      return Error(transport::Errc::address_unsupported, address.text());
    }
    std::vector<std::pair<TimePoint, std::string>> dialled;

   private:
    Runtime& runtime_;
  };

  Host& host(FewNames::Names names = {}) {
    machine_ = swarm.fabric().add_machine("8.8.8.8", "2600:1::1");
    network = std::make_unique<NotingNetwork>(*machine_);
    Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*network));
    ways.transports.push_back([this](const transport::Upgrader&) {
      auto made = std::make_unique<Circuits>(swarm.runtime());
      circuits = made.get();
      return made;
    });
    ways.resolver = std::make_unique<FewNames>(std::move(names));
    host_ = std::make_unique<Host>(swarm.runtime(), std::move(ways), nobody(1000),
                                   HostOptions{.transport = {.plaintext = true}});
    host_->start().value();
    return *host_;
  }
  std::unique_ptr<transport::Network> machine_;
  std::unique_ptr<NotingNetwork> network;
  Circuits* circuits = nullptr;
  std::unique_ptr<Host> host_;
};

TEST_F(OtherTransports, EachAddressGoesToTheTransportThatHandlesItAndCircuitsGoLast) {
  Host& alice = host();
  const PeerId peer = nobody(7).peer_id();
  const auto circuit = parsed("/ip4/9.9.9.9/tcp/1").with_peer(nobody(8).peer_id()).encapsulate(parsed("/p2p-circuit"));
  alice.learn_addresses(peer, {circuit, parsed("/ip4/7.7.7.7/tcp/1"), parsed("/ip6/2600::7/tcp/1")});
  swarm.fabric().crash("7.7.7.7");
  swarm.fabric().crash("2600::7");
  const TimePoint start = swarm.runtime().now();
  EXPECT_FALSE(swarm.run(alice.connect(peer, swarm.after(20s))));
  EXPECT_THAT(network->dialled, ElementsAre("/ip6/2600::7/tcp/1", "/ip4/7.7.7.7/tcp/1"));
  ASSERT_EQ(circuits->dialled.size(), 1u);
  EXPECT_EQ(circuits->dialled[0].second, circuit.text());
  EXPECT_EQ(circuits->dialled[0].first - start, 500ms) << "two direct dials have their head starts";
}

TEST_F(OtherTransports, ANameLeadsToAddressesOfBothFamiliesAtOnce) {
  auto& bob = swarm.add_host_at("9.9.9.9", {}, "2600::1");
  Host& alice = host({{"/dns/bob.example/tcp/4001", bob.addresses()},
                      {"/dns6/bob.example/tcp/4001", {parsed("/ip6/2600::1/tcp/4001")}}});
  swarm.fabric().crash("2600::1");
  const TimePoint start = swarm.runtime().now();
  ASSERT_TRUE(swarm.run(alice.connect(parsed("/dns/bob.example/tcp/4001").with_peer(bob.id()), swarm.after(10s))));
  EXPECT_LT(swarm.runtime().now() - start, 400ms);
  EXPECT_EQ(alice.remote_address(bob.id())->text(), "/ip4/9.9.9.9/tcp/4001");
  alice.disconnect(bob.id());
  swarm.pass(5s);
  EXPECT_FALSE(swarm.run(alice.connect(parsed("/dns6/bob.example/tcp/4001").with_peer(bob.id()), swarm.after(3s))));
}

TEST_F(OtherTransports, WhatNoTransportHandlesIsNeitherResolvedNorDialled) {
  Host& alice = host({{"/dns4/bob.example/udp/1/quic-v1", {parsed("/ip4/9.9.9.9/udp/1/quic-v1")}}});
  const PeerId peer = nobody(7).peer_id();
  alice.learn_addresses(peer, {parsed("/ip4/7.7.7.7/udp/1/quic-v1"), parsed("/dns4/bob.example/udp/1/quic-v1")});
  EXPECT_EQ(swarm.run(alice.connect(peer, swarm.after(10s))).error().code(), make_error_code(Errc::no_addresses));
  EXPECT_EQ(
      swarm.run(alice.connect(parsed("/ip4/7.7.7.7/udp/1/quic-v1").with_peer(peer), swarm.after(10s))).error().code(),
      make_error_code(transport::Errc::address_unsupported));
  EXPECT_TRUE(network->dialled.empty());
}

}  // namespace
}  // namespace cohive::p2p
