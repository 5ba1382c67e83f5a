// Which connections a host gives up when it has more than it wants.
#include <gtest/gtest.h>

#include "cohive/core/metrics.hpp"
#include "cohive/p2p/metrics.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

Task<void> hold(transport::StreamPtr stream) {
  for (;;) {
    auto bytes = co_await stream->read(Deadline::never());
    if (!bytes || bytes->empty()) co_return;
  }
}

struct Trimming : testing::Test {
  Swarm swarm;
  HostMetrics counted{swarm.runtime().metrics()};
  Host& hub = swarm.add_host({.high_water = 10, .low_water = 6, .trim_grace = 1min});
  std::vector<Host*> guests;

  /// A guest that serves no routing, so that it is worth nothing to the host; and that does not come back by itself.
  Host& come_to(Host& host) {
    Host& guest = swarm.add_host({.routing_server = false});
    guest.learn_addresses(host.id(), host.addresses());
    EXPECT_TRUE(swarm.run(guest.connect(host.id(), swarm.after(5s))));
    swarm.pass(1s);
    return guest;
  }
  Host& come() {
    guests.push_back(&come_to(hub));
    return *guests.back();
  }
  void come(int count) {
    for (int i = 0; i < count; ++i) come();
  }
  std::size_t present() { return hub.peers().size(); }
};

TEST_F(Trimming, AboveTheHighMarkTheLongestUnusedGoUntilTheLowMark) {
  come(10);
  swarm.pass(10min);
  EXPECT_EQ(present(), 10u);
  ASSERT_TRUE(swarm.run(ping(*guests[0], hub.id(), swarm.after(5s))));
  come();
  swarm.pass(30s);
  EXPECT_EQ(present(), 6u);
  EXPECT_TRUE(hub.connected(guests[0]->id())) << "it was in use a moment ago";
  EXPECT_TRUE(hub.connected(guests[10]->id())) << "it has just come";
  EXPECT_FALSE(hub.connected(guests[1]->id()));
  EXPECT_EQ(counted.closed_trimmed.value(), 5);
}

TEST_F(Trimming, NewcomersHaveTheirTime) {
  come(14);
  swarm.pass(20s);
  EXPECT_EQ(present(), 14u);
  swarm.pass(2min);
  EXPECT_LE(present(), 10u);
}

TEST_F(Trimming, ConnectionsWithCallsInFlightStay) {
  hub.set_handler("/hold/1", hold);
  std::vector<transport::StreamPtr> calls;
  for (int i = 0; i < 12; ++i) {
    calls.push_back(swarm.run(come().open_stream(hub.id(), "/hold/1", swarm.after(5s))).value());
    ASSERT_TRUE(swarm.run(calls.back()->write(Bytes{1}, swarm.after(5s))));
  }
  swarm.pass(10min);
  EXPECT_EQ(present(), 12u);
  for (int i = 0; i < 8; ++i) calls[i]->reset();
  swarm.pass(1min);
  EXPECT_EQ(present(), 6u);
  for (int i = 8; i < 12; ++i) EXPECT_TRUE(hub.connected(guests[i]->id()));
}

TEST_F(Trimming, APingThatNeverEndsIsNoCall) {
  std::vector<transport::StreamPtr> pings;
  for (int i = 0; i < 12; ++i) {
    pings.push_back(swarm.run(come().open_stream(hub.id(), "/ipfs/ping/1.0.0", swarm.after(5s))).value());
    ASSERT_TRUE(swarm.run(pings.back()->write(Bytes(32, 1), swarm.after(5s))));
  }
  for (int second = 0; second < 120; ++second) {
    for (auto& stream : pings) (void)swarm.run(stream->write(Bytes(32, 1), swarm.after(5s)));
    swarm.pass(1s);
  }
  EXPECT_EQ(present(), 6u);
}

TEST_F(Trimming, ProtectedPeersStayForAsLongAsTheyAre) {
  come(3);
  std::vector<Subscription> protections;
  for (Host* guest : guests) protections.push_back(hub.protect(guest->id()));
  const auto twice = hub.protect(guests[0]->id());
  come(9);
  swarm.pass(5min);
  EXPECT_EQ(present(), 6u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(hub.connected(guests[i]->id()));
  protections.clear();
  come(5);
  swarm.pass(5min);
  EXPECT_TRUE(hub.connected(guests[0]->id())) << "somebody else still wants it";
  EXPECT_FALSE(hub.connected(guests[1]->id()));
}

TEST_F(Trimming, PeersOfTheRoutingTableStay) {
  std::vector<Host*> routers;
  for (int i = 0; i < 4; ++i) {
    routers.push_back(&swarm.add_host());
    ASSERT_TRUE(swarm.run(routers.back()->connect(address_of(hub), swarm.after(5s))));
    swarm.pass(1s);
  }
  come(8);
  swarm.pass(5min);
  EXPECT_EQ(present(), 6u);
  for (Host* router : routers) EXPECT_TRUE(hub.connected(router->id()));
}

TEST_F(Trimming, WhereAllAreOfTheRoutingTableTheLongestUnusedGo) {
  std::vector<Host*> routers;
  for (int i = 0; i < 12; ++i) {
    routers.push_back(&swarm.add_host());
    ASSERT_TRUE(swarm.run(routers.back()->connect(address_of(hub), swarm.after(5s))));
    if (i > 0) ASSERT_TRUE(swarm.run(routers.back()->connect(address_of(*routers[i - 1]), swarm.after(5s))));
    swarm.pass(1s);
  }
  const auto protection = hub.protect(routers[0]->id());
  swarm.pass(90s);
  EXPECT_LE(present(), 10u);
  EXPECT_TRUE(hub.connected(routers[0]->id())) << "it is protected";
}

TEST_F(Trimming, AProtectionMayOutliveItsHost) {
  const auto protection = hub.protect(come().id());
  swarm.remove_host(0);
}

TEST_F(Trimming, AtTheLimitAProtectedPeerIsTheLastToGo) {
  Host& small = swarm.add_host({.max_connections = 8, .high_water = 8, .low_water = 8});
  std::vector<Host*> early;
  std::vector<Subscription> protections;
  for (int i = 0; i < 7; ++i) {
    early.push_back(&come_to(small));
    swarm.pass(1s);
    if (i < 2) protections.push_back(small.protect(early[i]->id()));
  }
  for (int i = 0; i < 3; ++i) {
    come_to(small);
    swarm.pass(1s);
  }
  EXPECT_TRUE(small.connected(early[0]->id()) && small.connected(early[1]->id()));
  EXPECT_FALSE(small.connected(early[2]->id()));
}

}  // namespace
}  // namespace cohive::p2p
