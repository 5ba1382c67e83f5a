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

TEST_F(IdentityCheck, WhoAnswersAtAnAddressOfTheListThatNamesThisIdentityIsAnotherProcess) {
  Host& original = member();
  const auto result = check(original.id(), {address_of(original)});
  ASSERT_FALSE(result) << "the copy does not listen yet";
  EXPECT_EQ(result.error(), Errc::identity_in_use);
}

TEST_F(IdentityCheck, AListOfInitialPeersMayHoldOurOwnAddress) {
  const auto own = nowhere().with_peer(nobody(1).peer_id());
  EXPECT_TRUE(check(nobody(1).peer_id(), {own, address_of(hub)}));
  EXPECT_TRUE(check(nobody(1).peer_id(), {own}));
  EXPECT_TRUE(check(nobody(1).peer_id(), {hub.addresses().front().with_peer(nobody(1).peer_id())}))
      << "another peer is there";
  std::vector<Multiaddr> list{own, address_of(hub)};
  EXPECT_EQ(take_own_addresses(list, nobody(1).peer_id()), std::vector{own});
  EXPECT_EQ(list, std::vector{address_of(hub)});
}

/// A host that knows from the start that a list names it.
struct OwnAddressInList : IdentityCheck {
  std::unique_ptr<transport::Network> ours = swarm.fabric().add_machine();
  std::unique_ptr<Host> host = made(*ours);
  OwnAddressCheck own{*ours, *host};

  static std::unique_ptr<Host> made(transport::Network& network) {
    return std::make_unique<Host>(
        network, nobody(1), HostOptions{.listen = {parsed("/ip4/0.0.0.0/tcp/4001")}, .transport = {.plaintext = true}});
  }
  Result<bool> leads_here(Host& to) { return swarm.run(own.leads_here(address_of(to), swarm.after(5s))); }
  static Task<void> keep(Task<Error> task, std::optional<Error>& result) { result = co_await std::move(task); }
};

TEST_F(OwnAddressInList, LeadToThisProcessOrToAnotherOne) {
  ASSERT_TRUE(host->start());
  EXPECT_EQ(leads_here(*host).value(), true);
  EXPECT_EQ(swarm.run(own.leads_here(nowhere().with_peer(host->id()), swarm.after(5s))).value(), false) << "no hairpin";
  const auto copy = made(*machine);
  ASSERT_TRUE(copy->start());
  EXPECT_EQ(leads_here(*copy).error(), Errc::identity_in_use) << "one that knows no such question";
  OwnAddressCheck of_copy(*machine, *copy);
  EXPECT_EQ(leads_here(*copy).error(), Errc::identity_in_use) << "one with a number of its own";
}

TEST_F(OwnAddressInList, ACopyThatComesLaterIsFoundAndOurselvesAreNot) {
  ASSERT_TRUE(host->start());
  const auto copy = made(*machine);
  const auto there = parsed("/ip4/" + Swarm::ip(2) + "/tcp/4001").with_peer(host->id());
  std::optional<Error> found;
  TaskGroup watching(swarm.runtime(), "watching");
  watching.spawn(keep(own.find_another({address_of(*host), there}), found), "watch");
  swarm.pass(30s);
  EXPECT_FALSE(found);
  ASSERT_TRUE(copy->start());
  swarm.pass(1min);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, Errc::identity_in_use);
}

TEST_F(IdentityCheck, LeavesNothingBehind) {
  EXPECT_FALSE(check(member().id(), {address_of(hub)}));
  EXPECT_EQ(swarm.left_behind(), "");
}

}  // namespace
}  // namespace cohive::p2p
