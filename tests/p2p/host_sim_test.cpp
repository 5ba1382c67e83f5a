#include <gtest/gtest.h>

#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

TEST(Host, PingMeasuresTheRoundTripOfTheLink) {
  Swarm swarm({.seed = 7, .latency = 30ms});
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  auto rtt = swarm.run(ping(alice, bob.id(), swarm.after(5s)));
  ASSERT_TRUE(rtt) << rtt.error();
  EXPECT_EQ(*rtt, 60ms);
}

/// How many bytes a peer that floods the hub with requests is answered with before another one, who asks at the same
/// moment, hears anything.
std::size_t answered_before_others(const std::string& protocol, ByteView request) {
  Swarm swarm;
  auto& hub = swarm.add_host();
  std::vector<transport::StreamPtr> streams;
  for (int i = 0; i < 2; ++i) {
    auto& guest = swarm.add_host();
    EXPECT_TRUE(swarm.run(guest.connect(address_of(hub), swarm.after(10s))));
    streams.push_back(swarm.run(guest.open_stream(hub.id(), protocol, swarm.after(10s))).value());
    EXPECT_TRUE(swarm.run(streams[i]->write(request, swarm.after(10s))));
    EXPECT_TRUE(swarm.run(streams[i]->read(swarm.after(10s))));
    swarm.pass(5s);
  }
  std::size_t to_flooder = 0;
  std::optional<std::size_t> before;
  swarm.fabric().set_tap([&](const std::string& from, const std::string& to, ByteView bytes) {
    if (from == Swarm::ip(1) && to == Swarm::ip(2)) to_flooder += bytes.size();
    if (from == Swarm::ip(1) && to == Swarm::ip(3) && !before) before = to_flooder;
    return true;
  });
  Bytes many;
  for (int i = 0; i < 4000; ++i) many.insert(many.end(), request.begin(), request.end());
  EXPECT_TRUE(swarm.run(streams[0]->write(many, swarm.after(10s))));
  EXPECT_TRUE(swarm.run(streams[1]->write(request, swarm.after(10s))));
  swarm.pass(1s);
  return before.value();
}

TEST(Host, WhoAsksWithoutPauseDoesNotKeepOthersWaiting) {
  EXPECT_LT(answered_before_others("/ipfs/ping/1.0.0", Bytes(32, 7)), 4 * 1024u);
  proto::KadMessage request;
  request.set_type(proto::KadMessage::PING);
  const std::string message = request.SerializeAsString();
  EXPECT_LT(answered_before_others(kKad, to_bytes(static_cast<char>(message.size()) + message)), 4 * 1024u);
}

TEST(Host, PeersIdentifyEachOtherAfterConnecting) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  swarm.pass(1s);
  const auto seen = bob.peer(alice.id());
  ASSERT_TRUE(seen && seen->connected);
  EXPECT_EQ(seen->agent, "cohive/0.1");
  EXPECT_EQ(seen->addresses, alice.addresses());
  EXPECT_NE(std::find(seen->protocols.begin(), seen->protocols.end(), "/ipfs/ping/1.0.0"), seen->protocols.end());
  EXPECT_EQ(alice.observed_addresses().size(), 1u);
}

TEST(Host, AWrongPeerIdInTheAddressIsRefusedAndNamed) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  auto& carol = swarm.add_host();
  auto result = swarm.run(alice.connect(bob.addresses().front().with_peer(carol.id()), swarm.after(10s)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), transport::make_error_code(transport::Errc::peer_mismatch));
  EXPECT_NE(result.error().message().find(bob.id().text()), std::string::npos);
  EXPECT_FALSE(alice.connected(bob.id()));
}

TEST(Host, DiallingItselfOrNobodyIsAnError) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  EXPECT_EQ(swarm.run(alice.connect(address_of(alice), swarm.after(5s))).error().code(),
            make_error_code(Errc::dial_to_self));
  const auto stranger = KeyPair::ed25519_from_seed(Bytes(32, 99)).peer_id();
  EXPECT_EQ(swarm.run(alice.connect(stranger, swarm.after(5s))).error().code(), make_error_code(Errc::no_addresses));
  auto nobody = Multiaddr::from_text("/ip4/10.9.9.9/tcp/1").value().with_peer(stranger);
  EXPECT_FALSE(swarm.run(alice.connect(nobody, swarm.after(5s))));
}

TEST(Host, FindsAThirdPeerThroughRoutingById) {
  Swarm swarm;
  auto& hub = swarm.add_host();
  auto& bob = swarm.add_host();
  auto& carol = swarm.add_host({.routing_server = false});
  ASSERT_TRUE(swarm.run(bob.bootstrap({address_of(hub)}, swarm.after(10s))));
  ASSERT_TRUE(swarm.run(carol.bootstrap({address_of(hub)}, swarm.after(10s))));
  swarm.pass(2s);
  auto stream = swarm.run(bob.open_stream(carol.id(), "/ipfs/ping/1.0.0", swarm.after(10s)));
  ASSERT_TRUE(stream) << stream.error();
  EXPECT_EQ((*stream)->peer(), carol.id());
}

TEST(Host, ResolvesEveryPairOfALargerSwarm) {
  Swarm swarm({.seed = 3});
  auto& hub = swarm.add_host();
  std::vector<Host*> hosts;
  for (int i = 0; i < 30; ++i) {
    hosts.push_back(&swarm.add_host());
    ASSERT_TRUE(swarm.run(hosts.back()->bootstrap({address_of(hub)}, swarm.after(10s))));
  }
  swarm.pass(30s);
  for (std::size_t i = 0; i < hosts.size(); i += 5)
    for (std::size_t j = 0; j < hosts.size(); j += 7)
      if (i != j) EXPECT_TRUE(swarm.run(hosts[i]->connect(hosts[j]->id(), swarm.after(10s)))) << i << " to " << j;
}

TEST(Host, ANewHandlerIsPushedToConnectedPeers) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  swarm.pass(1s);
  bob.set_handler("/late/1", [](transport::StreamPtr) -> Task<void> { co_return; });
  swarm.pass(1s);
  const auto protocols = alice.peer(bob.id())->protocols;
  EXPECT_NE(std::find(protocols.begin(), protocols.end(), "/late/1"), protocols.end());
  EXPECT_THROW(bob.set_handler("/late/1", nullptr), std::invalid_argument);
}

TEST(Host, SimultaneousDialsLeaveOneUsableConnectionInTheEnd) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  alice.learn_addresses(bob.id(), bob.addresses());
  bob.learn_addresses(alice.id(), alice.addresses());
  TaskGroup group(swarm.runtime());
  auto dial = [](Host& from, PeerId to, Deadline deadline) -> Task<void> { (void)co_await from.connect(to, deadline); };
  group.spawn(dial(alice, bob.id(), swarm.after(10s)));
  group.spawn(dial(bob, alice.id(), swarm.after(10s)));
  swarm.pass(2min);
  EXPECT_TRUE(swarm.run(ping(alice, bob.id(), swarm.after(5s))));
  EXPECT_TRUE(swarm.run(ping(bob, alice.id(), swarm.after(5s))));
  EXPECT_LE(swarm.fabric().open_connections(), 2u);
}

TEST(Host, AFailedAddressIsNotDialledAgainAtOnce) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  const auto ghost = KeyPair::ed25519_from_seed(Bytes(32, 98)).peer_id();
  alice.learn_addresses(ghost, {Multiaddr::from_text("/ip4/10.9.9.9/tcp/1").value()});
  EXPECT_EQ(swarm.run(alice.connect(ghost, swarm.after(20s))).error().code(),
            transport::make_error_code(transport::Errc::refused));
  EXPECT_EQ(swarm.run(alice.connect(ghost, swarm.after(20s))).error().code(), make_error_code(Errc::dial_backoff));
}

Task<void> send_garbage(transport::Network& network, Multiaddr address, std::size_t size) {
  auto raw = co_await network.dial(address, network.runtime().after(5s));
  Bytes garbage(size, 0xff);
  const ByteView parts[] = {garbage};
  (void)co_await (*raw)->write_all(parts);
  co_await network.runtime().sleep_for(20s);
}

TEST(Host, StrangersSendingGarbageAreDroppedAndLeaveNothing) {
  Swarm swarm({.plaintext = false});
  auto& alice = swarm.add_host();
  auto machine = swarm.fabric().add_machine();
  const auto tasks_before = swarm.runtime().task_count();
  swarm.run(send_garbage(*machine, alice.addresses().front(), 5000));
  swarm.pass(20s);
  EXPECT_EQ(swarm.fabric().open_connections(), 0u);
  EXPECT_EQ(swarm.runtime().task_count(), tasks_before);
}

TEST(Host, ClosingLeavesNoConnectionAndNoTask) {
  Swarm swarm;
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  swarm.pass(1s);
  swarm.run(alice.close());
  swarm.run(bob.close());
  swarm.pass(5s);
  EXPECT_EQ(swarm.fabric().open_connections(), 0u);
  EXPECT_EQ(swarm.runtime().task_count(), 0u);
}

TEST(Host, ListeningOnATakenPortNamesTheAddress) {
  Swarm swarm;
  auto machine = swarm.fabric().add_machine();
  HostOptions options{.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()}};
  Host first(*machine, KeyPair::generate_ed25519(), options);
  Host second(*machine, KeyPair::generate_ed25519(), options);
  ASSERT_TRUE(first.start());
  auto result = second.start();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("/ip4/0.0.0.0/tcp/4001"), std::string::npos);
}

}  // namespace
}  // namespace cohive::p2p
