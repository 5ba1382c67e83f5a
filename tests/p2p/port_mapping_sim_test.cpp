// Hosts whose router forwards a port when it is asked to, and routers that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/metrics.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/p2p/port_mapper.hpp"
#include "cohive/transport/stream_transport.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using testing::Contains;
using testing::Not;

constexpr std::uint16_t kPort = 4001;

/// How a router behaves, and what was asked of it.
struct Router {
  std::string outside = "8.8.4.4";
  Duration delay = 10ms;      // of each answer
  Duration lifetime = 10min;  // granted at most
  std::uint16_t shift = 0;    // of the outer port against the wanted one
  bool refuses = false;
  std::vector<std::uint16_t> wanted;  // outer ports, of each request
  std::size_t mapped = 0;
  int moves = 0;                          // of the machine, of which the mapper was told
  std::function<void()> forward = [] {};  // what it does about it
};

class FakeMapper final : public PortMapper {
 public:
  FakeMapper(Runtime& runtime, Router& router, std::string_view protocol)
      : runtime_(runtime), router_(router), protocol_(protocol) {}
  std::string_view protocol() const override { return protocol_; }
  Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) override {
    router_.wanted.push_back(wanted);
    co_await runtime_.sleep_for(router_.delay);
    if (router_.refuses) co_return Error(cohive::Errc::cancelled, "no");
    ++router_.mapped;
    router_.forward();
    const auto port = static_cast<std::uint16_t>(wanted + router_.shift);
    co_return PortMapping{inside, Multiaddr::from_ip_tcp(router_.outside, port).value(),
                          std::min(lifetime, router_.lifetime)};
  }
  Task<Result<>> unmap(PortMapping) override {
    co_await runtime_.sleep_for(router_.delay);
    router_.mapped = 0;
    co_return ok();
  }
  void moved() override { ++router_.moves; }

 private:
  Runtime& runtime_;
  Router& router_;
  std::string_view protocol_;
};

/// Says that it is bound at other addresses, if there are any.
class RoamingListener final : public transport::Listener {
 public:
  RoamingListener(std::unique_ptr<transport::Listener> inner, const std::vector<Multiaddr>& elsewhere)
      : inner_(std::move(inner)), elsewhere_(elsewhere) {}
  Task<Result<std::unique_ptr<transport::RawConnection>>> accept() override { return inner_->accept(); }
  const Multiaddr& address() const override { return inner_->address(); }
  std::vector<Multiaddr> dialable_addresses() const override {
    return elsewhere_.empty() ? inner_->dialable_addresses() : elsewhere_;
  }
  void close() noexcept override { inner_->close(); }

 private:
  std::unique_ptr<transport::Listener> inner_;
  const std::vector<Multiaddr>& elsewhere_;
};

/// A machine that may come to another network.
class RoamingMachine final : public transport::ForwardingNetwork {
 public:
  RoamingMachine(std::unique_ptr<transport::Network> inner, const std::vector<Multiaddr>& elsewhere)
      : ForwardingNetwork(std::move(inner)), elsewhere_(elsewhere) {}
  Result<std::unique_ptr<transport::Listener>> listen(const Multiaddr& address) override {
    auto listener = ForwardingNetwork::listen(address);
    if (!listener) return listener.error();
    return std::unique_ptr<transport::Listener>(std::make_unique<RoamingListener>(std::move(*listener), elsewhere_));
  }

 private:
  const std::vector<Multiaddr>& elsewhere_;
};

class PortMappingTest : public testing::Test {
 protected:
  /// A host at home, behind a router that lets nothing in by itself.
  Host& home(HostOptions options = {}, bool listening = true) {
    swarm.fabric().set_nat(inside, router.outside);
    router.forward = [this] { swarm.fabric().set_nat(inside, router.outside, true); };
    machine_ = std::make_unique<RoamingMachine>(swarm.fabric().add_machine(inside), elsewhere);
    if (listening && options.listen.empty()) options.listen = {parsed("/ip4/192.168.1.5/tcp/4001")};
    options.transport.plaintext = true;
    Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*machine_));
    ways.resolver = transport::make_resolver(swarm.runtime());
    if (first) ways.port_mappers.push_back(std::make_unique<FakeMapper>(swarm.runtime(), *first, kNatPmp));
    ways.port_mappers.push_back(std::make_unique<FakeMapper>(swarm.runtime(), router, kUpnp));
    host_ = std::make_unique<Host>(swarm.runtime(), std::move(ways), nobody(1), options);
    host_->start().value();
    return *host_;
  }
  static Multiaddr at(const std::string& ip, std::uint16_t port = kPort) {
    return Multiaddr::from_ip_tcp(ip, port).value();
  }

  sim::Swarm swarm;
  PortMappingMetrics counted{swarm.runtime().metrics()};
  std::string inside = "192.168.1.5";  ///< the host's address at home
  Router router;
  std::optional<Router> first;       // another one that is asked before
  std::vector<Multiaddr> elsewhere;  ///< where the machine is now, if it has moved

 private:
  std::unique_ptr<transport::Network> machine_;
  std::unique_ptr<Host> host_;
};

TEST_F(PortMappingTest, AMappedPortIsAnnouncedAndPeersConnectThere) {
  Host& host = home();
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
  EXPECT_EQ(counted.upnp.value(), 1);
  EXPECT_EQ(counted.nat_pmp.value(), 0);
  Host& peer = swarm.add_host_at("9.1.1.1");
  EXPECT_TRUE(swarm.run(peer.connect(at("8.8.4.4").with_peer(host.id()), swarm.after(10s))));
}

TEST_F(PortMappingTest, AMappingIsRenewedAtHalfOfItsLifetime) {
  router.lifetime = 4min;
  home();
  swarm.pass(1min + 59s);
  EXPECT_EQ(router.wanted.size(), 1U);
  swarm.pass(2s);
  EXPECT_EQ(router.wanted.size(), 2U);
  swarm.pass(8min);
  EXPECT_EQ(router.wanted.size(), 6U);
  EXPECT_EQ(counted.upnp.value(), 1);
}

TEST_F(PortMappingTest, TheOuterPortThatWasGrantedIsAskedForAgain) {
  router.shift = 7;
  Host& host = home();
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4", kPort + 7)));
  router.shift = 0;
  swarm.pass(6min);
  EXPECT_EQ(router.wanted, (std::vector<std::uint16_t>{kPort, kPort + 7}));
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4", kPort + 7)));
}

TEST_F(PortMappingTest, ARouterThatAnswersLateHoldsNothingUp) {
  router.delay = 20s;
  Host& host = home();
  Host& hub = swarm.add_host_at("9.1.1.1");
  EXPECT_TRUE(swarm.run(host.connect(address_of(hub), swarm.after(5s))));
  EXPECT_THAT(host.addresses(), Not(Contains(at("8.8.4.4"))));
  swarm.pass(20s);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
  swarm.pass(1s);  // peers are told
  EXPECT_THAT(hub.peer(host.id())->addresses, Contains(at("8.8.4.4")));
}

TEST_F(PortMappingTest, AnOuterAddressThatChangesIsReplaced) {
  Host& host = home();
  swarm.pass(1s);
  router.outside = "7.7.7.7";
  swarm.pass(6min);
  EXPECT_THAT(host.addresses(), Contains(at("7.7.7.7")));
  EXPECT_THAT(host.addresses(), Not(Contains(at("8.8.4.4"))));
  EXPECT_EQ(counted.upnp.value(), 1);
}

TEST_F(PortMappingTest, ARouterThatRefusesIsAskedAgainLaterAndLessOften) {
  router.refuses = true;
  Host& host = home();
  swarm.pass(30s);
  EXPECT_EQ(host.addresses(), std::vector{at("192.168.1.5")});
  EXPECT_EQ(counted.upnp.value(), 0);
  swarm.pass(1h);
  EXPECT_GT(router.wanted.size(), 2U);
  EXPECT_LT(router.wanted.size(), 10U);
  router.refuses = false;
  swarm.pass(30min);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
}

TEST_F(PortMappingTest, AMappingThatCannotBeRenewedIsAnnouncedUntilItsEnd) {
  Host& host = home();
  swarm.pass(1s);
  router.refuses = true;
  swarm.pass(9min);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
  swarm.pass(1min + 1s);
  EXPECT_THAT(host.addresses(), Not(Contains(at("8.8.4.4"))));
  EXPECT_EQ(counted.upnp.value(), 0);
}

/// The loop's clock stands still while the machine sleeps, and the router's goes on.
TEST_F(PortMappingTest, AfterASleepTheRouterIsAskedAtOnceAndTheMappingHasEndedUnlessItIsRenewed) {
  Host& host = home();
  swarm.pass(1s);
  swarm.runtime().shift_wall_clock(1h);
  swarm.pass(1min);
  EXPECT_EQ(router.wanted.size(), 2U);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
  router.refuses = true;
  swarm.runtime().shift_wall_clock(1h);
  swarm.pass(1min + 1s);
  EXPECT_EQ(router.wanted.size(), 3U);
  EXPECT_THAT(host.addresses(), Not(Contains(at("8.8.4.4"))));
}

TEST_F(PortMappingTest, OnAnotherNetworkAMappingHasEndedUnlessItsRouterMapsThePortToo) {
  Host& host = home();
  swarm.pass(1s);
  elsewhere = {at("192.168.43.7")};
  router.outside = "7.7.7.7";
  swarm.pass(1min);
  EXPECT_THAT(host.addresses(), Contains(at("7.7.7.7")));
  EXPECT_THAT(host.addresses(), Not(Contains(at("8.8.4.4"))));
  EXPECT_EQ(router.moves, 1) << "what it knew about the router may be about another one";
  elsewhere = {at("192.168.44.7")};
  router.refuses = true;
  swarm.pass(1min + 1s);
  EXPECT_EQ(router.wanted.size(), 3U);
  EXPECT_THAT(host.addresses(), Not(Contains(at("7.7.7.7"))));
}

/// As where IPv6 gets a new prefix, or a VPN begins.
TEST_F(PortMappingTest, PeersThatStayConnectedAreToldOfAnAddressThatTheMachineGets) {
  Host& host = home({.nat_port_map = false});
  Host& hub = swarm.add_host_at("9.1.1.1");
  ASSERT_TRUE(swarm.run(host.connect(address_of(hub), swarm.after(5s))));
  swarm.pass(1s);
  elsewhere = {at("192.168.1.5"), at("2d00:7::1")};
  swarm.pass(1min);
  EXPECT_TRUE(hub.connected(host.id()));
  EXPECT_THAT(hub.peer(host.id())->addresses, Contains(at("2d00:7::1")));
}

TEST_F(PortMappingTest, AnotherProtocolIsTriedWhenOneFails) {
  first.emplace().refuses = true;
  Host& host = home();
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Contains(at("8.8.4.4")));
  EXPECT_EQ(counted.upnp.value(), 1);
  swarm.pass(11min);
  EXPECT_EQ(first->wanted.size(), 1U) << "the one that works is asked first";
}

TEST_F(PortMappingTest, AnOuterAddressThatIsNotPublicIsOfNoUse) {
  router.outside = "100.64.0.9";
  Host& host = home();
  swarm.pass(10s);
  EXPECT_EQ(host.addresses(), std::vector{at("192.168.1.5")});
  EXPECT_EQ(router.mapped, 0U) << "it is taken back";
  EXPECT_EQ(counted.upnp.value(), 0);
}

TEST_F(PortMappingTest, AtTheEndTheMappingIsTakenBack) {
  Host& host = home();
  swarm.pass(1s);
  EXPECT_EQ(router.mapped, 1U);
  swarm.run(host.close());
  EXPECT_EQ(router.mapped, 0U);
  EXPECT_EQ(counted.upnp.value(), 0);
}

TEST_F(PortMappingTest, ASilentRouterDelaysTheEndForAMomentOnly) {
  Host& host = home();
  swarm.pass(1s);
  router.delay = 1h;
  const TimePoint start = swarm.runtime().now();
  swarm.run(host.close());
  EXPECT_LE(swarm.runtime().now() - start, 3s);
}

TEST_F(PortMappingTest, NoMappingIsAskedForThatNobodyCouldUse) {
  home({}, false);
  swarm.pass(1min);
  EXPECT_TRUE(router.wanted.empty()) << "it does not listen";
}

TEST_F(PortMappingTest, AHostForThisMachineAloneNeedsNoMapping) {
  inside = "127.0.0.1";
  home({.listen = {parsed("/ip4/127.0.0.1/tcp/4001")}});
  swarm.pass(1min);
  EXPECT_TRUE(router.wanted.empty());
}

TEST_F(PortMappingTest, OurUserMayForbidIt) {
  home({.nat_port_map = false});
  swarm.pass(1min);
  EXPECT_TRUE(router.wanted.empty());
}

TEST_F(PortMappingTest, AHostThatWasFoundPrivateIsAskedAboutAgainOnceItsPortIsMapped) {
  router.delay = 20s;
  Host& host = home();
  for (int i = 1; i < 4; ++i) {
    Host& hub = swarm.add_host_at("9." + std::to_string(i) + ".1.1");
    ASSERT_TRUE(swarm.run(host.connect(address_of(hub), swarm.after(5s))));
  }
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(19s))).value(), Reachability::private_);
  swarm.pass(1min);
  EXPECT_EQ(host.reachability(), Reachability::public_);
}

}  // namespace
}  // namespace cohive::p2p
