// Hosts with a second transport in their list: what works over TCP works over it, and nothing is asked of it that it
// does not offer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/transport/errors.hpp"
#include "cohive/transport/stream_transport.hpp"
#include "relay_fixture.hpp"
#include "toy_transport.hpp"

namespace cohive::p2p {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// A router that forwards nothing, and which ports it was asked for.
class NotingMapper final : public PortMapper {
 public:
  explicit NotingMapper(std::vector<std::uint16_t>& asked) : asked_(asked) {}
  std::string_view protocol() const override { return kUpnp; }
  Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t, Duration) override {
    asked_.push_back(inside);
    co_return Error(cohive::Errc::not_found);
  }
  Task<Result<>> unmap(PortMapping) override { co_return ok(); }

 private:
  std::vector<std::uint16_t>& asked_;
};

const char* const kTcpPort = "/tcp/4001";
const char* const kToyPort = "/udp/4002/quic-v1";

class TwoTransports : public Relay {
 protected:
  /// A host of both transports that listens at these ports of its machine.
  Host& add(const std::string& ip, const std::vector<std::string>& ports, HostOptions options = {}) {
    networks_.push_back(std::make_unique<NotingNetwork>(*machines_.emplace_back(swarm.fabric().add_machine(ip))));
    for (const auto& port : ports) options.listen.push_back(parsed("/ip4/" + ip + port));
    options.transport.plaintext = true;
    Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*networks_.back()));
    ways.transports.push_back(toy_transport(*networks_.back()));
    ways.resolver = transport::make_resolver(swarm.runtime());
    ways.port_mappers.push_back(std::make_unique<NotingMapper>(asked_of_routers));
    const auto number = static_cast<std::uint32_t>(hosts_.size());
    hosts_.push_back(std::make_unique<Host>(swarm.runtime(), std::move(ways), nobody(number), options));
    hosts_.back()->start().value();
    return *hosts_.back();
  }
  /// A host behind an address translator that punching gets through, reached through a relay.
  Host& add_behind(const std::string& inside, const std::string& outside, const Host& relay) {
    swarm.fabric().set_nat(inside, outside);
    swarm.fabric().let_punch(inside);
    return add(
        inside, {kToyPort},
        {.force_reachability = Reachability::private_, .trusted_relays = {toy_at("9.1.1.1").with_peer(relay.id())}});
  }
  static Multiaddr toy_at(const std::string& ip) { return parsed("/ip4/" + ip + kToyPort); }
  Result<PeerId> connect(Host& from, const Multiaddr& to) { return swarm.run(from.connect(to, swarm.after(10s))); }
  /// What the hosts have dialled so far, below their transports.
  std::vector<std::string> dialled() const {
    std::vector<std::string> all;
    for (const auto& network : networks_) all.insert(all.end(), network->dialled.begin(), network->dialled.end());
    return all;
  }

  std::vector<std::uint16_t> asked_of_routers;

 private:
  std::vector<std::unique_ptr<transport::Network>> machines_;
  std::vector<std::unique_ptr<NotingNetwork>> networks_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

TEST_F(TwoTransports, AreListenedOnAnnouncedAndDialledAlike) {
  Host& alice = add("9.1.1.1", {kTcpPort, kToyPort});
  Host& bob = add("9.2.1.1", {kToyPort});
  EXPECT_THAT(alice.addresses(), UnorderedElementsAre(parsed("/ip4/9.1.1.1/tcp/4001"), toy_at("9.1.1.1")));
  const auto connected = connect(bob, toy_at("9.1.1.1").with_peer(alice.id()));
  ASSERT_TRUE(connected) << connected.error();
  EXPECT_EQ(bob.remote_address(alice.id()), toy_at("9.1.1.1"));
  EXPECT_TRUE(swarm.run(ping(bob, alice.id(), swarm.after(5s))));
  swarm.pass(1s);
  EXPECT_THAT(alice.peer(bob.id())->addresses, ElementsAre(toy_at("9.2.1.1"))) << "by identify";
  ASSERT_EQ(bob.observed_addresses().size(), 1u);
  EXPECT_TRUE(bob.observed_addresses().front().has(Multiaddr::quic_v1));

  Host& carol = add("9.3.1.1", {});
  carol.learn_addresses(bob.id(), bob.addresses());
  EXPECT_TRUE(swarm.run(carol.connect(bob.id(), swarm.after(10s))));
  Host& old = swarm.add_host_at("9.4.1.1");
  EXPECT_EQ(connect(old, toy_at("9.1.1.1").with_peer(alice.id())).error(), transport::Errc::address_unsupported);
  EXPECT_TRUE(connect(old, address_of(alice)));
}

TEST_F(TwoTransports, PortZeroOfAnAnnouncedAddressIsThatOfTheListenerOfItsKind) {
  Host& alice = add("9.1.1.1", {kTcpPort, kToyPort},
                    {.announce = {parsed("/ip4/8.8.8.8/udp/0/quic-v1"), parsed("/ip4/8.8.8.8/tcp/0")}});
  EXPECT_THAT(alice.addresses(), ElementsAre(toy_at("8.8.8.8"), parsed("/ip4/8.8.8.8/tcp/4001")));
}

TEST_F(TwoTransports, PeersOfOneNetworkReportWhereTheySeeEither) {
  swarm.fabric().set_nat("192.168.1.5", "5.6.7.8", true);
  Host& alice = add("192.168.1.5", {kTcpPort, kToyPort}, {.autonat = false});
  for (const std::string network : {"9.1.1.", "9.2.1.", "9.3.1.", "9.4.1."}) {
    int number = 0;
    for (const Multiaddr& seen : {parsed("/ip4/5.6.7.8/tcp/4001"), toy_at("5.6.7.8")})
      ASSERT_TRUE(connect(add(network + std::to_string(++number), {}), seen.with_peer(alice.id())));
  }
  swarm.pass(1s);
  EXPECT_THAT(alice.addresses(), testing::IsSupersetOf({parsed("/ip4/5.6.7.8/tcp/4001"), toy_at("5.6.7.8")}));
}

TEST_F(TwoTransports, DialBacksFindAHostOfTheOtherTransportAloneReachable) {
  Host& alice = add("9.1.1.1", {kToyPort});
  for (const std::string ip : {"9.2.1.1", "9.3.1.1", "9.4.1.1"}) {
    const Host& server = add(ip, {kToyPort});
    ASSERT_TRUE(connect(alice, toy_at(ip).with_peer(server.id())));
  }
  EXPECT_EQ(swarm.run(alice.wait_for_reachability(swarm.after(1min))).value(), Reachability::public_);
}

TEST_F(TwoTransports, WhatPeersFillOverEitherCountsAgainstTheBudgetOfTheHost) {
  Host& alice = add("9.1.1.1", {kTcpPort, kToyPort});
  std::vector<StreamPtr> unread;
  alice.set_handler(kEcho, [&unread](StreamPtr stream) -> Task<void> {
    unread.push_back(std::move(stream));
    co_return;
  });
  for (const Multiaddr& address : alice.addresses()) {
    Host& peer = add(address.has(Multiaddr::udp) ? "9.2.1.1" : "9.3.1.1", {});
    ASSERT_TRUE(connect(peer, address.with_peer(alice.id())));
    const std::size_t before = alice.memory().held();
    auto stream = swarm.run(peer.open_stream(alice.id(), kEcho, swarm.after(5s))).value();
    ASSERT_TRUE(swarm.run(stream->write(Bytes(100'000, 1), swarm.after(5s))));
    swarm.pass(1s);
    EXPECT_GE(alice.memory().held(), before + 100'000) << address;
    EXPECT_LT(alice.memory().held(), before + 200'000) << address;
  }
  unread.clear();
}

TEST_F(TwoTransports, RoutersAreAskedForThePortsAloneThatTheyForward) {
  add("192.168.1.5", {kTcpPort, kToyPort});
  add("192.168.1.6", {kToyPort});
  swarm.pass(30min);
  EXPECT_THAT(asked_of_routers, Contains(4001));
  EXPECT_THAT(asked_of_routers, testing::Not(Contains(4002)));
}

TEST_F(TwoTransports, ACircuitIsReplacedByADirectConnectionOfEither) {
  Host& relay =
      add("9.1.1.1", {kToyPort}, {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions()});
  Host& hidden = add_behind("192.168.7.1", "5.6.7.1", relay);
  swarm.pass(10s);
  const Multiaddr circuit = circuit_through(toy_at("9.1.1.1"), relay.id());
  EXPECT_THAT(hidden.addresses(), Contains(circuit));
  Host& caller = add("9.2.1.1", {kToyPort});
  ASSERT_TRUE(connect(caller, circuit.with_peer(hidden.id())));
  swarm.pass(1min);
  EXPECT_EQ(hidden.remote_address(caller.id()), toy_at("9.2.1.1"));
}

TEST_F(TwoTransports, NoHoleIsPunchedForATransportThatGetsThroughNone) {
  Host& relay =
      add("9.1.1.1", {kToyPort}, {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions()});
  Host& called = add_behind("192.168.7.1", "5.6.7.1", relay);
  Host& caller = add_behind("192.168.7.2", "5.6.7.2", relay);
  swarm.pass(10s);
  ASSERT_TRUE(connect(caller, circuit_through(toy_at("9.1.1.1"), relay.id()).with_peer(called.id())));
  swarm.pass(1min);
  EXPECT_TRUE(caller.remote_address(called.id())->is_circuit());
  for (const std::string& address : dialled()) EXPECT_EQ(address, "/ip4/9.1.1.1/tcp/4002") << "only the relay is";
}

}  // namespace
}  // namespace cohive::p2p
