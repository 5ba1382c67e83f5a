// Hosts that find out whether they can be reached, and hosts that help others to find out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/metrics.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/metrics.hpp"
#include "p2p/autonat_client.hpp"
#include "p2p/identify.hpp"
#include "strangers.hpp"
#include "transport/detail/forwarding_network.hpp"

namespace cohive::p2p {
namespace {

using proto::AutoNat;
using sim::Swarm;
using testing::Contains;
using testing::Not;

struct Reaching : testing::Test {
  Swarm swarm;
  HostMetrics counted{swarm.runtime().metrics()};

  /// A host outside, in a network of its own.
  Host& outside(int number, HostOptions options = {}) {
    return swarm.add_host_at("9." + std::to_string(number) + ".9.9", std::move(options));
  }
  /// A host behind an address translator, which other hosts see at `seen_at`.
  Host& behind_nat(bool lets_in, const std::string& seen_at = "8.8.4.4", HostOptions options = {}) {
    swarm.fabric().set_nat("192.168.1.5", seen_at, lets_in);
    return swarm.add_host_at("192.168.1.5", std::move(options));
  }
  void join(Host& host, Host& hub) { ASSERT_TRUE(swarm.run(host.connect(address_of(hub), swarm.after(20s)))); }
  /// One request as the peer sends it, and the answer.
  Result<DialBackResponse> ask(Host& from, Host& server, std::string message) {
    return swarm.run(request(from, server.id(), std::move(message)));
  }
  Result<DialBackResponse> ask(Host& from, Host& server, std::vector<Multiaddr> addresses) {
    return ask(from, server, encode(DialBackRequest{from.id(), std::move(addresses)}));
  }
  static Task<Result<DialBackResponse>> request(Host& from, PeerId server, std::string message) {
    const Deadline deadline = from.runtime().after(1min);
    auto stream = co_await from.open_stream(server, kAutoNatProtocol, deadline);
    if (!stream) co_return stream.error();
    (void)co_await transport::write_message(**stream, as_bytes(message), deadline);
    transport::StreamReader reader(**stream);
    auto bytes = co_await reader.read_message(kMaxAutoNatMessage, deadline);
    if (!bytes) co_return bytes.error();
    if (!*bytes) co_return Error(cohive::Errc::end_of_stream);
    co_return parse_dial_back_response(**bytes);
  }
  /// Has a host say in identify that it sees all others at one address.
  void sees(Host& host, const std::string& address) {
    host.remove_handler(kIdentifyProtocol);
    host.set_handler(kIdentifyProtocol, [this, seen = parsed(address)](transport::StreamPtr stream) {
      ++lies;
      return [](transport::StreamPtr s, Multiaddr observed) -> Task<void> {
        proto::Identify message;
        message.set_agent_version("liar");
        message.add_protocols(kAutoNatProtocol);
        message.set_observed_addr(observed.binary());
        (void)co_await transport::write_message(*s, as_bytes(message.SerializeAsString()), s->runtime().after(10s));
        s->close_write();
      }(std::move(stream), seen);
    });
  }
  int lies = 0;
  /// A host that answers every request to be dialled back with `response`.
  Host& says(int number, DialBackResponse response) {
    Host& host = outside(number, {.autonat = false});
    host.set_handler(kAutoNatProtocol, [response](transport::StreamPtr stream) {
      return [](transport::StreamPtr s, DialBackResponse answer) -> Task<void> {
        transport::StreamReader reader(*s);
        (void)co_await reader.read_message(kMaxAutoNatMessage, s->runtime().after(10s));
        (void)co_await transport::write_message(*s, as_bytes(encode(answer)), s->runtime().after(10s));
        s->close_write();
      }(std::move(stream), response);
    });
    return host;
  }
};

// ---- What a host concludes

TEST_F(Reaching, AHostThatPeersOutsideReachIsPublic) {
  Host& hub = outside(1);
  Host& host = outside(2);
  EXPECT_EQ(host.reachability(), Reachability::unknown);
  join(host, hub);
  EXPECT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  EXPECT_EQ(swarm.run(hub.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  EXPECT_EQ(counted.reachability_public.value(), 2);
  EXPECT_EQ(counted.reachability_unknown.value(), 0);
  EXPECT_EQ(counted.dial_backs_ok.value(), 2);
}

TEST_F(Reaching, AHostBehindATranslatorThatLetsNothingInIsPrivate) {
  Host& hub = outside(1);
  Host& host = behind_nat(false);
  std::vector<Reachability> told;
  const auto subscription = host.on_reachability([&](Reachability now) { told.push_back(now); });
  join(host, hub);
  EXPECT_EQ(swarm.run(host.wait_for_reachability(swarm.after(1min))).value(), Reachability::private_);
  EXPECT_EQ(told, std::vector{Reachability::private_});
  EXPECT_THAT(host.addresses(), Not(Contains(parsed("/ip4/8.8.4.4/tcp/4001"))));
  swarm.pass(1s);
  const auto seen = hub.peer(host.id());
  ASSERT_TRUE(seen);
  EXPECT_THAT(seen->protocols, Not(Contains(kAutoNatProtocol))) << "it says nothing about other hosts either";
}

TEST_F(Reaching, AHostBehindAForwardedPortAnnouncesWhereItWasReached) {
  Host& hub = outside(1);
  Host& host = behind_nat(true);
  join(host, hub);
  EXPECT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  const auto outside_address = parsed("/ip4/8.8.4.4/tcp/4001");
  EXPECT_THAT(host.addresses(), Contains(outside_address));
  swarm.pass(1s);  // peers are told
  EXPECT_THAT(hub.peer(host.id())->addresses, Contains(outside_address));
  Host& newcomer = outside(2);
  join(newcomer, hub);
  EXPECT_TRUE(swarm.run(newcomer.connect(host.id(), swarm.after(20s))));
}

TEST_F(Reaching, TwoNodesInOneHomeAreToldSoByAThirdOutside) {
  Host& hub = outside(1);
  Host& one = behind_nat(false);
  swarm.fabric().set_nat("192.168.1.6", "8.8.4.4");
  Host& other = swarm.add_host_at("192.168.1.6");
  join(one, hub);
  join(other, hub);
  swarm.pass(1min);
  EXPECT_EQ(one.reachability(), Reachability::private_);
  EXPECT_EQ(other.reachability(), Reachability::private_);
  EXPECT_TRUE(swarm.run(one.connect(address_of(other), swarm.after(5s))));
}

TEST_F(Reaching, OnAPrivateNetworkNothingIsAskedAndNothingConcluded) {
  Host& hub = swarm.add_host();
  Host& host = swarm.add_host();
  join(host, hub);
  EXPECT_EQ(swarm.run(host.wait_for_reachability(swarm.after(10min))).error().code(),
            make_error_code(cohive::Errc::timeout));
  EXPECT_EQ(host.reachability(), Reachability::unknown);
  EXPECT_EQ(counted.probes_unanswered.value(), 0);
}

TEST_F(Reaching, AHostThatDoesNotListenIsPrivate) {
  Host& client = swarm.add_host({}, false);
  EXPECT_EQ(client.reachability(), Reachability::private_);
}

TEST_F(Reaching, WhatOurUserSaysIsNotAskedAbout) {
  Host& hub = outside(1);
  Host& host = behind_nat(false, "8.8.4.4", {.force_reachability = Reachability::public_});
  EXPECT_EQ(host.reachability(), Reachability::public_);
  join(host, hub);
  swarm.pass(10min);
  EXPECT_EQ(host.reachability(), Reachability::public_);
  EXPECT_EQ(counted.dial_backs_failed.value(), 0);
}

TEST_F(Reaching, OneLiarAmongHonestPeersDecidesNothing) {
  Host& liar = says(1, {AutoNat::OK, "", parsed("/ip4/8.8.4.4/tcp/4001")});
  Host& host = behind_nat(false);
  join(host, liar);
  swarm.pass(10s);
  EXPECT_EQ(host.reachability(), Reachability::public_) << "nobody else has said anything";
  for (int i = 2; i < 6; ++i) join(host, outside(i));
  swarm.pass(20min);
  EXPECT_EQ(host.reachability(), Reachability::private_);
  EXPECT_THAT(host.addresses(), Not(Contains(parsed("/ip4/8.8.4.4/tcp/4001"))));
}

TEST_F(Reaching, AnAddressElsewhereIsNotAnnouncedBecauseAPeerClaimsToHaveReachedUsThere) {
  Host& liar = says(1, {AutoNat::OK, "", parsed("/ip4/5.5.5.5/tcp/25")});
  Host& host = outside(2);
  join(host, liar);
  swarm.pass(10s);
  EXPECT_EQ(host.addresses(), std::vector{parsed("/ip4/9.2.9.9/tcp/4001")});
}

TEST_F(Reaching, APortThatWasNotAskedAboutIsNotAnnouncedEither) {
  Host& liar = says(1, {AutoNat::OK, "", parsed("/ip4/8.8.4.4/tcp/25")});
  Host& host = behind_nat(true);
  join(host, liar);
  swarm.pass(10s);
  EXPECT_EQ(host.reachability(), Reachability::public_);
  EXPECT_THAT(host.addresses(), Not(Contains(parsed("/ip4/8.8.4.4/tcp/25"))));
}

TEST_F(Reaching, PortsThatLiarsNamedGiveWayToTheOneWhereTheHostIsReached) {
  Host& host = behind_nat(true);
  for (int i = 1; i <= 4; ++i) {
    const std::string lie = "/ip4/8.8.4.4/tcp/" + std::to_string(i);
    Host& liar = says(i, {AutoNat::OK, "", parsed(lie)});
    sees(liar, lie);
    join(host, liar);
  }
  swarm.pass(1h);
  EXPECT_THAT(host.addresses(), Contains(parsed("/ip4/8.8.4.4/tcp/4"))) << "each liar has been asked";
  join(host, outside(5));
  swarm.pass(20min);
  EXPECT_THAT(host.addresses(), Contains(parsed("/ip4/8.8.4.4/tcp/4001")));
}

TEST_F(Reaching, APeerThatRefusesProvesNothing) {
  Host& shy = says(1, {AutoNat::E_DIAL_REFUSED, "\x1b[31m", std::nullopt});
  Host& host = outside(2);
  join(host, shy);
  swarm.pass(10min);
  EXPECT_EQ(host.reachability(), Reachability::unknown);
  EXPECT_GT(counted.probes_unanswered.value(), 1);
  join(host, outside(3));
  EXPECT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
}

TEST_F(Reaching, AHostThatMovesFindsOutAgain) {
  Host& hub = outside(1);
  Host& host = behind_nat(true);
  join(host, hub);
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  // Another provider, whose router lets nothing in.
  swarm.fabric().set_nat("192.168.1.5", "7.7.7.7", false);
  host.disconnect(hub.id());
  swarm.pass(5s);
  join(host, hub);
  for (int i = 2; i < 4; ++i) join(host, outside(i));
  swarm.pass(5min);
  EXPECT_EQ(host.reachability(), Reachability::private_);
  EXPECT_THAT(host.addresses(), Not(Contains(parsed("/ip4/8.8.4.4/tcp/4001"))));
}

/// The many that saw it at its old place are gone.
TEST_F(Reaching, AHostThatMovesToWhereFewerSeeItFindsOutAgain) {
  Host& host = behind_nat(true);
  for (int i = 1; i <= 6; ++i) join(host, outside(i));
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  swarm.pass(1min);
  swarm.fabric().set_nat("192.168.1.5", "7.7.7.7", false);
  for (int i = 1; i <= 6; ++i) swarm.fabric().kill("9." + std::to_string(i) + ".9.9");
  swarm.pass(5s);
  for (int i = 7; i <= 8; ++i) join(host, outside(i));
  swarm.pass(5min);
  EXPECT_EQ(host.reachability(), Reachability::private_);
  EXPECT_THAT(host.addresses(), Not(Contains(parsed("/ip4/8.8.4.4/tcp/4001"))));
}

/// A machine whose interface has another address at each place. The simulated one keeps its own below.
class Laptop final : public transport::ForwardingNetwork {
 public:
  using ForwardingNetwork::ForwardingNetwork;
  Result<std::unique_ptr<transport::Listener>> listen(const Multiaddr& address) override {
    auto listener = ForwardingNetwork::listen(address);
    if (!listener) return listener.error();
    return std::unique_ptr<transport::Listener>(std::make_unique<Socket>(std::move(*listener), interface));
  }
  Multiaddr interface;

 private:
  class Socket final : public transport::Listener {
   public:
    Socket(std::unique_ptr<transport::Listener> below, const Multiaddr& at) : below_(std::move(below)), at_(at) {}
    Task<Result<std::unique_ptr<transport::RawConnection>>> accept() override { return below_->accept(); }
    const Multiaddr& address() const override { return below_->address(); }
    std::vector<Multiaddr> dialable_addresses() const override { return {at_}; }
    void close() noexcept override { below_->close(); }

   private:
    std::unique_ptr<transport::Listener> below_;
    const Multiaddr& at_;
  };
};

TEST_F(Reaching, AHostThatMovesAwayFromItsTranslatorNeedsNoRelaysAnyMore) {
  Host& hub = outside(1, {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions{}});
  const auto machine = swarm.fabric().add_machine("192.168.1.5");
  Laptop laptop(*machine);
  HostOptions options{.listen = {parsed("/ip4/192.168.1.5/tcp/4001")}};
  options.transport.plaintext = true;
  Host host(laptop, nobody(1), options);
  const auto move = [&](const std::string& interface, const std::string& seen_at) {
    laptop.interface = parsed("/ip4/" + interface + "/tcp/4001");
    swarm.fabric().set_nat("192.168.1.5", seen_at, true);
    host.disconnect(hub.id());
    swarm.pass(5s);
    join(host, hub);
    swarm.pass(5min);
    EXPECT_EQ(host.reachability(), Reachability::public_) << seen_at;
  };
  laptop.interface = parsed("/ip4/192.168.1.5/tcp/4001");
  host.start().value();
  move("192.168.1.5", "8.8.4.4");
  EXPECT_EQ(host.relays().size(), 1u);
  move("192.168.1.5", "6.6.6.6");
  EXPECT_EQ(host.relays().size(), 1u) << "the next translator may let in nobody else either";
  move("7.7.7.7", "7.7.7.7");
  EXPECT_TRUE(host.relays().empty());
  move("192.168.1.5", "8.8.4.4");
  EXPECT_EQ(host.relays().size(), 1u);
}

TEST(Verdicts, OneSuccessOutweighsTwoFailuresAndNotThree) {
  ReachabilityVerdicts verdicts;
  const TimePoint now{1h};
  EXPECT_EQ(verdicts.conclusion(now), Reachability::unknown);
  verdicts.add(1, false, now);
  EXPECT_EQ(verdicts.conclusion(now), Reachability::private_);
  verdicts.add(2, true, now);
  verdicts.add(3, false, now);
  EXPECT_EQ(verdicts.conclusion(now), Reachability::public_);
  for (int i = 0; i < 10; ++i) verdicts.add(3, false, now);
  EXPECT_EQ(verdicts.conclusion(now), Reachability::public_) << "a network has one voice";
  verdicts.add(4, false, now);
  EXPECT_EQ(verdicts.conclusion(now), Reachability::private_);
  EXPECT_EQ(verdicts.conclusion(now + 2h), Reachability::unknown) << "verdicts grow old";
}

// ---- Addresses that peers see

TEST_F(Reaching, AnAddressThatPeersOfFourNetworksSeeIsAnnounced) {
  Host& host = behind_nat(true, "8.8.4.4", {.force_reachability = Reachability::unknown});
  const auto seen = parsed("/ip4/8.8.4.4/tcp/4001");
  for (int i = 1; i <= 3; ++i) join(host, outside(i));
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Not(Contains(seen)));
  for (int i = 10; i < 20; ++i) join(host, swarm.add_host_at("9.3.9." + std::to_string(i)));
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Not(Contains(seen))) << "neighbours of one who has said so already";
  join(host, outside(4));
  swarm.pass(1s);
  EXPECT_THAT(host.addresses(), Contains(seen));
  EXPECT_THAT(host.observed_addresses(), Contains(seen));
}

TEST_F(Reaching, WhatOneNetworkReportsChangesNothing) {
  Host& host = swarm.add_host_at("8.8.8.8", {.force_reachability = Reachability::unknown});
  for (int i = 1; i <= 3; ++i) join(host, outside(i));
  Host& liar = outside(4);
  join(liar, host);
  for (int i = 0; i < 20; ++i) {
    proto::Identify message;
    message.set_agent_version("liar");
    message.set_observed_addr(parsed("/ip4/5.5.5.5/tcp/25").binary());
    swarm.run(push_identify(liar, host.id(), message.SerializeAsString()));
    swarm.pass(1s);
  }
  EXPECT_EQ(host.addresses(), std::vector{parsed("/ip4/8.8.8.8/tcp/4001")});
}

/// Peers say how they see a host when they connect. Where nobody new has come for long, that still holds.
TEST_F(Reaching, OneLiarMovesNobodyAfterQuietHours) {
  Host& host = behind_nat(true);
  for (int i = 1; i <= 3; ++i) join(host, outside(i));
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  swarm.pass(2h);
  Host& liar = outside(4);
  sees(liar, "/ip4/5.5.5.5/tcp/25");
  join(host, liar);
  swarm.pass(5s);
  EXPECT_EQ(lies, 1);
  EXPECT_EQ(host.reachability(), Reachability::public_);
  EXPECT_THAT(host.addresses(), Contains(parsed("/ip4/8.8.4.4/tcp/4001")));
}

TEST_F(Reaching, OneLiarWhoReportsAnIPv4AddressMovesNoHostOfIPv6) {
  Host& host = swarm.add_host_at("2600:9::1");
  for (int i = 1; i <= 3; ++i) join(host, swarm.add_host_at("2600:" + std::to_string(i) + "::1"));
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  std::vector<Reachability> told;
  const auto subscription = host.on_reachability([&](Reachability now) { told.push_back(now); });
  Host& liar = swarm.add_host_at("2600:4::1");
  sees(liar, "/ip4/5.5.5.5/tcp/25");
  join(host, liar);
  swarm.pass(5s);
  EXPECT_EQ(lies, 1);
  EXPECT_THAT(told, testing::IsEmpty());
}

TEST_F(Reaching, AHostOfBothFamiliesHasNotMovedWhereMorePeersSeeTheOther) {
  Host& host = swarm.add_host_at("8.8.8.8", {}, "2600:9::1");
  for (int i = 1; i <= 2; ++i) join(host, swarm.add_host_at("2600:" + std::to_string(i) + "::1"));
  ASSERT_EQ(swarm.run(host.wait_for_reachability(swarm.after(30s))).value(), Reachability::public_);
  std::vector<Reachability> told;
  const auto subscription = host.on_reachability([&](Reachability now) { told.push_back(now); });
  for (int i = 1; i <= 4; ++i) join(host, outside(i));
  swarm.pass(5s);
  EXPECT_THAT(told, testing::IsEmpty());
}

// ---- What a host does for others

TEST_F(Reaching, ADialBackGoesToTheObservedHostAlone) {
  Host& server = outside(1);
  Host& asker = outside(2, {.autonat = false});
  swarm.add_host_at("5.5.5.5");
  join(asker, server);
  swarm.pass(1s);
  std::set<std::string> spoken_to;
  swarm.fabric().set_tap([&](const std::string& from, const std::string& to, ByteView) {
    if (from == "9.1.9.9") spoken_to.insert(to);
    return true;
  });
  const auto answer = ask(asker, server, {parsed("/ip4/5.5.5.5/tcp/4001"), parsed("/ip4/127.0.0.1/tcp/22")});
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->status, AutoNat::OK);
  EXPECT_EQ(answer->address, parsed("/ip4/9.2.9.9/tcp/4001"));
  EXPECT_EQ(spoken_to, std::set<std::string>{"9.2.9.9"});
}

TEST_F(Reaching, AFailureTakesAsLongAsTheLongestDial) {
  Host& server = outside(1);
  Host& asker = swarm.add_host_at("9.2.9.9", {.listen = {parsed("/ip4/0.0.0.0/tcp/7")}, .autonat = false});
  join(asker, server);
  swarm.pass(1s);
  // The port is closed, as is known at once; and the connection comes from a port where nobody listens for others.
  swarm.fabric().set_nat("9.2.9.9", "6.6.6.6", false);
  asker.disconnect(server.id());
  swarm.pass(5s);
  const TimePoint start = swarm.runtime().now();
  const auto answer = ask(asker, server, {parsed("/ip4/9.2.9.9/tcp/9")});
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->status, AutoNat::E_DIAL_ERROR);
  EXPECT_GE(swarm.runtime().now() - start, 5s);
  EXPECT_LT(swarm.runtime().now() - start, 6s);
}

TEST_F(Reaching, FewAddressesOfARequestAreDialledAtATime) {
  const auto machine = swarm.fabric().add_machine("9.1.9.9");
  NotingNetwork noting(*machine);
  HostOptions options{.listen = {parsed("/ip4/9.1.9.9/tcp/4001")}};
  options.transport.plaintext = true;
  Host server(noting, nobody(1), options);
  server.start().value();
  Host& asker = behind_nat(false, "8.8.4.4", {.autonat = false});
  join(asker, server);
  swarm.pass(1s);
  std::vector<Multiaddr> ports;
  for (int port = 1; port <= 15; ++port) ports.push_back(parsed("/ip4/8.8.4.4/tcp/" + std::to_string(port)));
  const auto answer = ask(asker, server, ports);
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->status, AutoNat::E_DIAL_ERROR);
  const auto dials =
      std::ranges::count_if(noting.dialled, [](const auto& one) { return one.find("/8.8.4.4/") != one.npos; });
  EXPECT_EQ(dials, 4) << "all the time went into them";
}

TEST_F(Reaching, RequestsThatMakeNoSenseAreAnsweredSo) {
  Host& server = outside(1);
  Host& asker = outside(2, {.autonat = false});
  join(asker, server);
  swarm.pass(1s);
  const auto status = [&](std::string message) { return ask(asker, server, std::move(message)).value().status; };
  EXPECT_EQ(status("\xff\xff"), AutoNat::E_BAD_REQUEST);
  AutoNat no_peer;
  no_peer.set_type(AutoNat::DIAL);
  EXPECT_EQ(status(no_peer.SerializeAsString()), AutoNat::E_BAD_REQUEST);
  EXPECT_EQ(status(encode(DialBackRequest{nobody(1).peer_id(), {}})), AutoNat::E_BAD_REQUEST);
  EXPECT_FALSE(ask(asker, server, std::string(5000, 'x'))) << "too long a request is cut off";
  EXPECT_EQ(status(encode(DialBackRequest{asker.id(), {}})), AutoNat::OK);
}

TEST_F(Reaching, PeersOfPrivateNetworksAndNeighboursAreNotDialledBack) {
  Host& server = swarm.add_host();
  Host& asker = swarm.add_host({.autonat = false});
  join(asker, server);
  swarm.pass(1s);
  EXPECT_EQ(ask(asker, server, asker.addresses()).value().status, AutoNat::E_DIAL_REFUSED);

  Host& public_server = swarm.add_host_at("9.9.9.9", {.announce = {parsed("/ip4/8.8.8.8/tcp/4001")}});
  Host& neighbour = swarm.add_host_at("8.8.8.8", {.autonat = false});
  ASSERT_TRUE(
      swarm.run(neighbour.connect(parsed("/ip4/9.9.9.9/tcp/4001").with_peer(public_server.id()), swarm.after(10s))));
  swarm.pass(1s);
  EXPECT_EQ(ask(neighbour, public_server, neighbour.addresses()).value().status, AutoNat::E_DIAL_REFUSED);
}

TEST_F(Reaching, PeersAndNetworksAreDialledBackNowAndThenOnly) {
  Host& server = outside(1);
  const auto granted = [&](Host& asker, int wanted) {
    join(asker, server);
    swarm.pass(1s);
    int count = 0;
    for (int i = 0; i < wanted; ++i) count += ask(asker, server, asker.addresses()).value().status == AutoNat::OK;
    return count;
  };
  EXPECT_EQ(granted(outside(2, {.autonat = false}), 10), 3) << "of one peer";
  int of_network = 0;
  for (int i = 0; i < 6; ++i) {
    // Many peers of one machine.
    auto machine = swarm.fabric().add_machine("9.3.9." + std::to_string(10 + i));
    of_network += granted(swarm.add_host_at("9.3.9." + std::to_string(20 + i), {.autonat = false}), 3);
  }
  EXPECT_LE(of_network, 18);
  int in_all = 3 + of_network;
  for (int i = 4; i < 20; ++i) in_all += granted(outside(i, {.autonat = false}), 3);
  EXPECT_LE(in_all, 60) << "thirty in each window";
  EXPECT_GT(counted.dial_backs_refused.value(), 10);
}

TEST_F(Reaching, HostsLeaveNothingBehind) {
  Host& hub = outside(1);
  Host& host = behind_nat(false);
  join(host, hub);
  swarm.pass(10s);  // a dial-back is under way
  EXPECT_EQ(swarm.left_behind(), "");
  EXPECT_EQ(counted.reachability_unknown.value() + counted.reachability_private.value(), 0);
}

}  // namespace
}  // namespace cohive::p2p
