// Hosts that close their connections, on the simulated network.
#include "closing.hpp"

#include <gtest/gtest.h>

#include "cohive/core/errors.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

TEST(Closing, WhoIsStillReceivingTheAnswerOfAPeerThatLeavesGetsAllOfIt) {
  Swarm swarm({.link = transport::SimLink{.latency = 20ms, .bandwidth = 5e6}});
  auto &alice = swarm.add_host(), &bob = swarm.add_host();
  Event answered(swarm.runtime());
  closing::serve(bob, answered);
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  TaskGroup group(swarm.runtime());
  group.spawn(closing::chatter(alice, bob.id()));
  group.spawn(closing::leave_after(bob, answered));
  const auto heard = swarm.run(closing::ask(alice, bob.id()));
  EXPECT_EQ(heard.bytes, closing::kAnswer);
  EXPECT_FALSE(heard.failure) << *heard.failure;
  swarm.run(group.join());
  EXPECT_FALSE(alice.connected(bob.id()));
}

TEST(Closing, TakesARoundTripWhenPeersAnswerHoweverManyThereAre) {
  Swarm swarm({.latency = 50ms});
  auto& hub = swarm.add_host();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(swarm.run(swarm.add_host().connect(address_of(hub), swarm.after(10s))));
  swarm.pass(5s);
  const TimePoint start = swarm.runtime().now();
  swarm.run(hub.close());
  EXPECT_EQ(swarm.runtime().now() - start, 100ms);
  EXPECT_EQ(swarm.fabric().open_connections(), 0u);
}

TEST(Closing, PeersThatHaveFallenSilentAreLeftAfterTwoSecondsInAll) {
  Swarm swarm;
  auto& hub = swarm.add_host();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(swarm.run(swarm.add_host().connect(address_of(hub), swarm.after(10s))));
  swarm.pass(5s);
  for (std::size_t number = 2; number <= 6; ++number) swarm.fabric().crash(Swarm::ip(number));
  const TimePoint start = swarm.runtime().now();
  swarm.run(hub.close());
  EXPECT_EQ(swarm.runtime().now() - start, 2s);
  EXPECT_EQ(swarm.left_behind(), "");
}

TEST(Closing, AHandlerThatIsCutOffIsSeenAsAReset) {
  Swarm swarm;
  auto &alice = swarm.add_host(), &bob = swarm.add_host();
  bob.set_handler("/drain/1", [](transport::StreamPtr stream) { return closing::drain(std::move(stream)); });
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  auto stream = swarm.run(alice.open_stream(bob.id(), "/drain/1", swarm.after(10s))).value();
  ASSERT_TRUE(swarm.run(stream->write(as_bytes("words"), swarm.after(10s))));
  swarm.pass(1s);
  swarm.run(bob.close());
  EXPECT_EQ(swarm.run(stream->read(swarm.after(10s))).error(), cohive::Errc::reset);
}

TEST(Closing, APeerThatIsKilledIsLostAndOneThatEndsItsConnectionIsNot) {
  Swarm swarm;
  auto &alice = swarm.add_host(), &bob = swarm.add_host();
  std::vector<PeerId> lost;
  const auto subscription = alice.on_lost([&](const PeerId& peer) { lost.push_back(peer); });
  for (auto* const ends : {&alice, &bob}) {
    ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
    ends->disconnect((ends == &alice ? bob : alice).id());
    EXPECT_FALSE(ends->connected((ends == &alice ? bob : alice).id()));
    swarm.pass(5s);
    EXPECT_TRUE(lost.empty());
  }
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  swarm.fabric().kill(Swarm::ip(2));
  swarm.pass(5s);
  EXPECT_EQ(lost, std::vector{bob.id()});
}

TEST(Closing, AHostMayGoWhileItWaitsForThePeersEnd) {
  Swarm swarm;
  auto &alice = swarm.add_host(), &bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
  swarm.fabric().crash(Swarm::ip(2));
  alice.disconnect(bob.id());
  EXPECT_FALSE(alice.connected(bob.id()));
  swarm.pass(1s);
  EXPECT_EQ(swarm.left_behind(), "");
}

}  // namespace
}  // namespace cohive::p2p
