// What a host does with peers that have misbehaved.
#include "cohive/p2p/reputation.hpp"

#include <gtest/gtest.h>

#include "cohive/p2p/errors.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

PeerId offender(int number) {
  const std::string key = "key of offender " + std::to_string(number);
  return PeerId::of_public_key(as_bytes(key));
}

class Reputations : public ::testing::Test {
 protected:
  SimRuntime runtime;
  HostMetrics metrics{runtime.metrics()};
  Reputation reputation{runtime, metrics};
  const PeerId peer = offender(0);
};

TEST_F(Reputations, EachOffenceHasAPeerBannedTwiceAsLongAndAnHourAtMost) {
  for (Duration time = Reputation::kFirstTime; time <= Reputation::kLongestTime; time *= 2) {
    EXPECT_EQ(reputation.report(peer, Offence::lied), time);
    runtime.run_for(time - 1s);
    EXPECT_TRUE(reputation.is_banned(peer));
    EXPECT_EQ(reputation.report(peer, Offence::malformed), 0s) << "banned already";
    runtime.run_for(1s);
    EXPECT_FALSE(reputation.is_banned(peer));
  }
  EXPECT_EQ(reputation.report(peer, Offence::malformed), Reputation::kLongestTime);
}

TEST_F(Reputations, OffencesAreForgottenOneByOne) {
  for (int i = 0; i < 3; ++i) runtime.run_for(reputation.report(peer, Offence::malformed));
  EXPECT_EQ(reputation.offences(peer), 3);
  runtime.run_for(Reputation::kForgotten);
  EXPECT_EQ(reputation.offences(peer), 2);
  EXPECT_EQ(reputation.report(peer, Offence::lied), 4 * Reputation::kFirstTime);
  runtime.run_for(4 * Reputation::kFirstTime + 3 * Reputation::kForgotten);
  EXPECT_EQ(reputation.offences(peer), 0);
  EXPECT_EQ(reputation.report(peer, Offence::lied), Reputation::kFirstTime);
}

TEST_F(Reputations, ManyThatOffendOnceDoNotMakeItForgetThoseThatDoItAgainAndAgain) {
  for (int i = 0; i < 6; ++i) runtime.run_for(reputation.report(peer, Offence::lied));
  reputation.report(peer, Offence::lied);
  for (int i = 1; i <= 12'000; ++i) reputation.report(offender(i), Offence::malformed);
  EXPECT_TRUE(reputation.is_banned(peer));
  EXPECT_LE(reputation.banned(), Reputation::kMaxPeers);
  EXPECT_GE(reputation.banned(), Reputation::kMaxPeers * 3 / 4);
}

TEST_F(Reputations, WhoHasWorkedIsAcquaintedForAnHourUnlessItOffends) {
  EXPECT_FALSE(reputation.has_history(peer));
  reputation.record_success(peer);
  EXPECT_TRUE(reputation.has_history(peer));
  runtime.run_for(Reputation::kAcquainted - 1s);
  EXPECT_TRUE(reputation.has_history(peer));
  runtime.run_for(2s);
  EXPECT_FALSE(reputation.has_history(peer));
  reputation.record_success(peer);
  reputation.report(peer, Offence::lied);
  EXPECT_FALSE(reputation.has_history(peer));
}

TEST_F(Reputations, OffencesAreCountedByReason) {
  reputation.report(peer, Offence::lied);
  reputation.report(peer, Offence::malformed);
  reputation.report(offender(1), Offence::malformed);
  EXPECT_EQ(metrics.offences[static_cast<std::size_t>(Offence::malformed)].value(), 2);
  EXPECT_EQ(metrics.offences[static_cast<std::size_t>(Offence::lied)].value(), 1);
}

TEST(BannedPeers, AreNotDialledOnTheWordOfOthersAndConnectionsToThemServe) {
  sim::Swarm swarm;
  Host &host = swarm.add_host(), &banned = swarm.add_host(), &referrer = swarm.add_host();
  host.learn_addresses(banned.id(), banned.addresses());
  host.reputation().report(banned.id(), Offence::lied);
  const auto refused = swarm.run(host.connect_via(banned.id(), referrer.id(), swarm.after(5s)));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::banned);
  ASSERT_TRUE(swarm.run(banned.connect(address_of(host), swarm.after(5s)))) << "it may come by itself";
  swarm.pass(1s);
  EXPECT_TRUE(swarm.run(host.connect_via(banned.id(), referrer.id(), swarm.after(5s))));
  banned.disconnect(host.id());
  swarm.pass(Reputation::kFirstTime);
  const auto connected = swarm.run(host.connect_via(banned.id(), referrer.id(), swarm.after(5s)));
  EXPECT_TRUE(connected) << connected.error();
}

TEST(BannedPeers, GoFirstWhereAFullHostMakesRoom) {
  sim::Swarm swarm;
  Host& hub = swarm.add_host({.max_connections = 8});
  std::vector<Host*> guests;
  for (int i = 0; i < 7; ++i) {
    guests.push_back(&swarm.add_host({.routing_server = false}));
    ASSERT_TRUE(swarm.run(guests.back()->connect(address_of(hub), swarm.after(5s))));
    swarm.pass(2s);
  }
  hub.reputation().report(guests[5]->id(), Offence::malformed);
  Host& newcomer = swarm.add_host({.routing_server = false});
  ASSERT_TRUE(swarm.run(newcomer.connect(address_of(hub), swarm.after(5s))));
  swarm.pass(1s);
  EXPECT_TRUE(hub.connected(newcomer.id()));
  EXPECT_TRUE(hub.connected(guests[0]->id())) << "idle for longest";
  EXPECT_FALSE(hub.connected(guests[5]->id()));
}

}  // namespace
}  // namespace cohive::p2p
