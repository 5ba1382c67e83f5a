// From which port a host dials, which decides what an address translator makes of it.
#include <gtest/gtest.h>

#include "p2p/circuit_message.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

struct SourcePortTest : testing::Test {
  sim::Swarm swarm;

  /// The port from which a new host dials a peer of which it has heard these addresses.
  std::string dialled_from(const std::string& ip, Host& peer, const std::vector<Multiaddr>& addresses) {
    Host& host = swarm.add_host_at(ip);
    host.learn_addresses(peer.id(), addresses);
    const auto connected = swarm.run(host.connect(peer.id(), swarm.after(10s)));
    EXPECT_TRUE(connected) << connected.error();
    swarm.pass(1s);
    return peer.remote_address(host.id()).value_or(Multiaddr()).value(Multiaddr::tcp).value_or("none");
  }
};

TEST_F(SourcePortTest, PeersAreDialledFromTheListeningPortSoThatTheySeeWhereItIs) {
  Host& peer = swarm.add_host_at("9.1.1.1");
  EXPECT_EQ(dialled_from("9.2.1.1", peer, {parsed("/ip4/9.1.1.1/tcp/4001")}), "4001");
}

TEST_F(SourcePortTest, APeerThatNeedsARelayIsDialledFromAnotherPortWhichKeepsTheListeningOneForHolePunching) {
  Host& relay = swarm.add_host_at("9.3.1.1", {.relay_service = RelayServiceOptions()});
  Host& peer = swarm.add_host_at("9.1.1.1");
  const Multiaddr circuit = circuit_through(relay.addresses().front(), relay.id());
  const std::string port = dialled_from("9.2.1.1", peer, {parsed("/ip4/9.1.1.1/tcp/4001"), circuit});
  EXPECT_NE(port, "4001");
  EXPECT_NE(port, "none");
}

TEST_F(SourcePortTest, ARelayForPeersWithIpv6AloneSaysNothingAboutAPeersIpv4) {
  Host& relay = swarm.add_host_at("9.3.1.1", {.relay_service = RelayServiceOptions()});
  Host& peer = swarm.add_host_at("9.1.1.1");
  const Multiaddr circuit = circuit_through(parsed("/ip6/2d00:9::1/tcp/4001"), relay.id());
  EXPECT_EQ(dialled_from("9.2.1.1", peer, {parsed("/ip4/9.1.1.1/tcp/4001"), circuit}), "4001");
}

}  // namespace
}  // namespace cohive::p2p
