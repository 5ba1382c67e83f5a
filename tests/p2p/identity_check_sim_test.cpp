#include "cohive/p2p/identity_check.hpp"

#include <gtest/gtest.h>

#include "cohive/p2p/errors.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

struct IdentityCheck : testing::Test {
  Swarm swarm;
  Host& hub = swarm.add_host();
  std::unique_ptr<transport::Network> machine = swarm.fabric().add_machine();

  Host& member() {
    Host& host = swarm.add_host();
    EXPECT_TRUE(swarm.run(host.bootstrap({address_of(hub)}, swarm.after(10s))));
    swarm.pass(2s);
    return host;
  }
  Result<> check(const PeerId& id, std::vector<Multiaddr> initial) {
    return swarm.run(check_identity_is_free(*machine, id, std::move(initial), {.plaintext = true}, swarm.after(5s)));
  }
};

TEST_F(IdentityCheck, AProcessElsewhereThatUsesItIsNamedWithItsAddress) {
  Host& twin = member();
  const auto result = check(twin.id(), {address_of(hub)});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::identity_in_use);
  EXPECT_NE(result.error().message().find(twin.addresses().front().text()), std::string::npos) << result.error();
}

TEST_F(IdentityCheck, OneThatNobodyHasIsFreeAtOnce) {
  member();
  const TimePoint start = swarm.runtime().now();
  EXPECT_TRUE(check(nobody(1).peer_id(), {address_of(hub)}));
  EXPECT_LT(swarm.runtime().now() - start, 1s);
}

TEST_F(IdentityCheck, WhereACrashedProcessWasDoesNotCount) {
  Host& crashed = member();
  swarm.fabric().crash(Swarm::ip(3));
  swarm.pass(1s);
  ASSERT_TRUE(hub.connected(crashed.id())) << "nobody has noticed yet";
  EXPECT_TRUE(check(crashed.id(), {address_of(hub)}));
}

TEST_F(IdentityCheck, WhereAnotherPeerIsNowDoesNotCount) {
  Host& other = member();
  hub.learn_addresses(nobody(1).peer_id(), other.addresses());
  EXPECT_TRUE(check(nobody(1).peer_id(), {address_of(hub)}));
}

TEST_F(IdentityCheck, ASwarmThatDoesNotAnswerKeepsNobodyFromJoining) {
  const TimePoint start = swarm.runtime().now();
  EXPECT_TRUE(check(nobody(1).peer_id(), {nowhere().with_peer(nobody(2).peer_id())}));
  EXPECT_LE(swarm.runtime().now() - start, 5s);
  EXPECT_TRUE(check(nobody(1).peer_id(), {}));
}

TEST_F(IdentityCheck, ADeadInitialPeerCostsLittleTimeWhenAnotherOneLives) {
  const auto dead = address_of(swarm.add_host());
  swarm.fabric().crash(Swarm::ip(3));
  const TimePoint start = swarm.runtime().now();
  EXPECT_TRUE(check(nobody(1).peer_id(), {dead, address_of(hub)}));
  EXPECT_LT(swarm.runtime().now() - start, 2s);
}

TEST_F(IdentityCheck, AListOfInitialPeersMayHoldOurOwnAddress) {
  Host& twin = member();
  EXPECT_TRUE(check(twin.id(), {address_of(twin)})) << "it is what was there before we started";
}

TEST_F(IdentityCheck, LeavesNothingBehind) {
  EXPECT_FALSE(check(member().id(), {address_of(hub)}));
  EXPECT_EQ(swarm.left_behind(), "");
}

}  // namespace
}  // namespace cohive::p2p
