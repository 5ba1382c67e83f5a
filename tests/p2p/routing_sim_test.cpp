#include <gtest/gtest.h>

#include "cohive/core/crypto.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/signed_record.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/transport/stream_transport.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

/// Names of which no name server knows anything: each question takes all the time that there is.
class UnansweredNames final : public transport::Resolver {
 public:
  explicit UnansweredNames(Runtime& runtime) : runtime_(runtime) {}
  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline deadline) override {
    co_await runtime_.sleep_until(deadline.at());
    co_return Error(cohive::Errc::timeout, address.text());
  }

 private:
  Runtime& runtime_;
};

struct PeerRouting : testing::Test {
  Swarm swarm;
  HostMetrics counted{swarm.runtime().metrics()};

  Host& join(Host& hub, HostOptions options = {}, bool listening = true) {
    Host& host = swarm.add_host(std::move(options), listening);
    EXPECT_TRUE(swarm.run(host.bootstrap({address_of(hub)}, swarm.after(10s))));
    return host;
  }
  std::vector<PeerId> told(const proto::KadMessage& reply) {
    std::vector<PeerId> result;
    for (const auto& entry : reply.closer_peers()) result.push_back(*PeerId::from_bytes(as_bytes(entry.id())));
    return result;
  }
  bool tells_of(Host& from, Host& to, const PeerId& about, const PeerId& key) {
    const auto peers = told(swarm.run(find_node(from, to.id(), key.binary())).value());
    return std::find(peers.begin(), peers.end(), about) != peers.end();
  }
};

// ---- Lookups

TEST_F(PeerRouting, ALookupThroughPeersThatAreAllDeadStartsNoOtherLookup) {
  auto& liar = add_liar(swarm, [number = 0u](const proto::KadMessage& request) mutable {
    proto::KadMessage reply;
    reply.set_type(request.type());
    for (int i = 0; i < 20; ++i, ++number)
      name(reply, nobody(number).peer_id(), {nowhere(number), nowhere(number + 9000)});
    return reply;
  });
  auto& alice = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.bootstrap({address_of(liar)}, swarm.after(10s))));
  swarm.pass(5min);
  const double dials = counted.dials_failed.value(), queries = counted.lookup_queries.value();
  EXPECT_FALSE(swarm.run(alice.connect(nobody(1'000'000).peer_id(), swarm.after(2min))));
  EXPECT_EQ(counted.lookups_not_found.value(), 1);
  EXPECT_LE(counted.lookup_queries.value() - queries, 101);
  EXPECT_LE(counted.dials_failed.value() - dials, 100);
  EXPECT_GE(counted.dials_failed.value() - dials, 20);  // it did try
  EXPECT_EQ(counted.lookups_active.value(), 0);
}

TEST_F(PeerRouting, InventedNeighboursAreDialledAFewTimesAtAThirdMachineWhateverTheirPorts) {
  auto& liar = add_liar(swarm, [number = 0u](const proto::KadMessage& request) mutable {
    proto::KadMessage reply;
    reply.set_type(request.type());
    for (int i = 0; i < 20; ++i, ++number) {
      std::vector<Multiaddr> ports;
      for (std::uint32_t k = 0; k < 8; ++k)
        ports.push_back(parsed("/ip4/10.200.0.9/tcp/" + std::to_string(8 * number % 60000 + k + 1)));
      name(reply, nobody(number).peer_id(), ports);
    }
    return reply;
  });
  auto& alice = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.bootstrap({address_of(liar)}, swarm.after(10s))));
  swarm.pass(1min);
  const double before = counted.dials_failed.value();
  EXPECT_FALSE(swarm.run(alice.connect(nobody(1'000'000).peer_id(), swarm.after(1min))));
  EXPECT_LE(counted.dials_failed.value() - before, 10);
  for (std::uint32_t i = 0; i < 20; ++i)
    (void)swarm.run(alice.connect_via(nobody(i).peer_id(), liar.id(), swarm.after(3s)));
  EXPECT_LE(counted.dials_failed.value() - before, 20);
}

TEST_F(PeerRouting, WhoeverNamedAPeerTellsWhereItIsAndPeerRoutingIsLeftAlone) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  swarm.pass(2s);
  auto& alice = swarm.add_host();
  alice.learn_addresses(hub.id(), hub.addresses());
  const double queries = counted.lookup_queries.value();
  EXPECT_TRUE(swarm.run(alice.connect_via(carol.id(), hub.id(), swarm.after(5s))));
  EXPECT_TRUE(alice.connected(carol.id()));
  // An address that no longer works is no reason to search the swarm either, if the referrer knows another.
  alice.learn_addresses(bob.id(), {nowhere()});
  EXPECT_TRUE(swarm.run(alice.connect_via(bob.id(), hub.id(), swarm.after(5s))));
  EXPECT_EQ(counted.lookup_queries.value(), queries);
}

TEST_F(PeerRouting, APeerWhoseTellerKnowsNothingIsLookedUp) {
  auto& hub = swarm.add_host();
  auto& carol = join(hub);
  auto& alice = join(hub);
  auto& referrer = swarm.add_host();
  swarm.pass(2s);
  alice.learn_addresses(referrer.id(), referrer.addresses());
  EXPECT_TRUE(swarm.run(alice.connect_via(carol.id(), referrer.id(), swarm.after(10s))));
  EXPECT_GT(counted.lookups_found.value(), 0);
}

TEST_F(PeerRouting, AStaleAddressDoesNotHideWhereAPeerIsNow) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  swarm.pass(2s);
  bob.learn_addresses(carol.id(), {nowhere()});
  EXPECT_TRUE(swarm.run(bob.connect(carol.id(), swarm.after(30s))));
}

TEST_F(PeerRouting, AfterAFailedDialThePeersAddressesAreLookedUpAgain) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  const auto ghost = nobody(1).peer_id();
  bob.learn_addresses(carol.id(), {nowhere()});
  bob.learn_addresses(ghost, {nowhere(1)});
  EXPECT_EQ(swarm.run(bob.find_peer(ghost, swarm.after(30s))).value(), std::vector{nowhere(1)});
  EXPECT_FALSE(swarm.run(bob.connect(ghost, swarm.after(30s))));
  EXPECT_EQ(swarm.run(bob.find_peer(ghost, swarm.after(30s))).error().code(), make_error_code(Errc::no_addresses));
  swarm.run(hub.close());
}

TEST_F(PeerRouting, APeerWhoseProcessHasEndedIsSoonGivenUpThoughThoseWhoMayKnowItSleep) {
  auto& hub = swarm.add_host();
  auto& alice = join(hub);
  auto& bob = join(hub);
  std::set<std::string> sleepers{Swarm::ip(1)};
  for (std::size_t number = 4; number <= 9; ++number) {
    join(hub);
    sleepers.insert(Swarm::ip(number));
  }
  swarm.pass(30s);
  ASSERT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(5s))));
  const PeerId gone = bob.id();
  swarm.fabric().kill(Swarm::ip(3));
  swarm.fabric().partition({Swarm::ip(2)}, sleepers);
  swarm.pass(1s);
  const TimePoint began = swarm.runtime().now();
  EXPECT_FALSE(swarm.run(alice.connect(gone, swarm.after(30s))));
  EXPECT_LE(swarm.runtime().now() - began, 4s);
}

TEST_F(PeerRouting, APeerIsFoundThoughALiarNamesWrongAddressesForIt) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& liar = add_liar(swarm, [target = bob.id()](const proto::KadMessage& request) {
    proto::KadMessage reply;
    reply.set_type(request.type());
    std::vector<Multiaddr> wrong;
    for (std::uint32_t i = 0; i < 30; ++i) wrong.push_back(nowhere(i));
    name(reply, target, wrong);
    return reply;
  });
  auto& alice = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.bootstrap({address_of(liar), address_of(hub)}, swarm.after(10s))));
  swarm.fabric().set_link(Swarm::ip(1), Swarm::ip(4), {.latency = 200ms});  // the liar answers first
  swarm.pass(5min);
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(60s))));
}

TEST_F(PeerRouting, ANameWithoutAnAnswerHoldsUpNoAddressThatALookupFinds) {
  auto& bob = swarm.add_host();
  auto& referrer = add_liar(swarm, [&bob](const proto::KadMessage& request) {
    proto::KadMessage reply;
    reply.set_type(request.type());
    if (request.key() == bob.id().binary())
      name(reply, bob.id(), {parsed("/dns4/lost.example/tcp/4001"), bob.addresses().front()});
    return reply;
  });
  const auto machine = swarm.fabric().add_machine();
  Connectivity ways;
  ways.transports.push_back(transport::stream_transport(*machine));
  ways.resolver = std::make_unique<UnansweredNames>(swarm.runtime());
  Host alice(swarm.runtime(), std::move(ways), nobody(1), {.transport = {.plaintext = true}});
  alice.start().value();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(referrer), swarm.after(10s))));
  swarm.pass(1s);
  const TimePoint began = swarm.runtime().now();
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(30s))));
  EXPECT_LE(swarm.runtime().now() - began, 2s);
}

TEST_F(PeerRouting, ALookupWithoutAnEndSaysWhomItWasFor) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  swarm.pass(5s);
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
  const PeerId ghost = nobody(1).peer_id();
  const auto found = swarm.run(bob.find_peer(ghost, swarm.after(2s)));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error(), cohive::Errc::timeout);
  ASSERT_TRUE(found.error().peer());
  EXPECT_EQ(*found.error().peer(), ghost);
}

TEST_F(PeerRouting, CallersWhoLookForOnePeerShareTheLookup) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  swarm.pass(5min);
  std::vector<Task<Result<>>> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(bob.connect(carol.id(), swarm.after(30s)));
  bool all = true;
  TaskGroup group(swarm.runtime());
  auto run = [](Task<Result<>> call, bool& good) -> Task<void> { good &= (co_await std::move(call)).has_value(); };
  for (auto& call : calls) group.spawn(run(std::move(call), all));
  swarm.pass(30s);
  EXPECT_TRUE(all && group.empty());
  EXPECT_LE(counted.lookups_found.value(), 1);
}

TEST_F(PeerRouting, OneAnswerAddsOnlyAFewPeersToTheBook) {
  auto& liar = add_liar(swarm, [](const proto::KadMessage& request) {
    proto::KadMessage reply;
    reply.set_type(request.type());
    std::vector<Multiaddr> addresses;
    for (std::uint32_t i = 0; i < 30; ++i) addresses.push_back(nowhere(i));
    for (std::uint32_t i = 0; i < 60; ++i) name(reply, nobody(i).peer_id(), addresses);
    return reply;
  });
  auto& alice = swarm.add_host();
  ASSERT_TRUE(swarm.run(alice.connect(address_of(liar), swarm.after(10s))));
  swarm.pass(1s);
  EXPECT_FALSE(swarm.run(alice.find_peer(nobody(5000).peer_id(), swarm.after(5s))));
  std::size_t known = 0, most = 0;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const auto peer = alice.peer(nobody(i).peer_id());
    known += peer.has_value();
    if (peer) most = std::max(most, peer->addresses.size());
  }
  EXPECT_EQ(known, 32u);
  EXPECT_EQ(most, 16u);
}

TEST_F(PeerRouting, AnAnswerThatIsTooLongOrNoMessageEndsTheQueryOnly) {
  for (const bool too_long : {false, true}) {
    auto& liar = swarm.add_host({.routing_server = false});
    liar.set_handler(kKad, [too_long](transport::StreamPtr stream) {
      return [](transport::StreamPtr s, std::size_t size) -> Task<void> {
        (void)co_await transport::write_message(*s, Bytes(size, 0xff), s->runtime().after(1min));
        co_await s->runtime().sleep_for(1min);
      }(std::move(stream), too_long ? 100'000 : 100);
    });
    auto& alice = swarm.add_host();
    ASSERT_TRUE(swarm.run(alice.connect(address_of(liar), swarm.after(10s))));
    swarm.pass(1s);
    EXPECT_FALSE(swarm.run(alice.find_peer(nobody(1).peer_id(), swarm.after(20s))));
    EXPECT_TRUE(swarm.run(ping(alice, liar.id(), swarm.after(5s))));
  }
}

TEST_F(PeerRouting, WhileHostsComeAndGoThoseWhoStayFindEachOther) {
  auto& hub = swarm.add_host();
  std::vector<std::size_t> living;
  const auto come = [&] {
    living.push_back(swarm.size());
    Host& host = swarm.add_host();
    EXPECT_TRUE(swarm.run(host.bootstrap({address_of(hub)}, swarm.after(10s))));
  };
  for (int i = 0; i < 25; ++i) come();
  for (int minute = 0; minute < 20; ++minute) {
    for (int i = 0; i < 2; ++i) {
      const std::size_t leaving = swarm.runtime().random()() % living.size();
      swarm.fabric().crash(Swarm::ip(living[leaving] + 1));
      if (i == 0) swarm.remove_host(living[leaving]);
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(leaving));
      come();
    }
    const std::size_t partitioned = living[swarm.runtime().random()() % living.size()];
    swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(partitioned + 1)});
    swarm.pass(1min);
    swarm.fabric().heal();
  }
  swarm.pass(10min);
  for (std::size_t from : living) {
    for (std::size_t to : living) {
      if (from == to) continue;
      auto connected = swarm.run(swarm.host(from).connect(swarm.host(to).id(), swarm.after(60s)));
      EXPECT_TRUE(connected) << from << " to " << to << ": " << connected.error();
    }
  }
  EXPECT_EQ(swarm.left_behind(), "");
}

// ---- The table

TEST_F(PeerRouting, APeerThatNoLongerAnswersLeavesTheTable) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  swarm.pass(5s);
  ASSERT_TRUE(tells_of(bob, hub, carol.id(), nobody(1).peer_id()));
  swarm.fabric().crash(Swarm::ip(3));
  swarm.pass(1min);
  ASSERT_TRUE(tells_of(bob, hub, carol.id(), nobody(1).peer_id()));  // nobody has noticed
  EXPECT_FALSE(swarm.run(hub.find_peer(nobody(2).peer_id(), swarm.after(60s))));
  EXPECT_FALSE(tells_of(bob, hub, carol.id(), nobody(1).peer_id()));
}

TEST_F(PeerRouting, APeerThatAnswersALookupEntersTheTable) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  auto& carol = join(hub);
  swarm.pass(5s);
  EXPECT_FALSE(swarm.run(bob.find_peer(nobody(1).peer_id(), swarm.after(60s))));
  EXPECT_TRUE(tells_of(hub, bob, carol.id(), nobody(2).peer_id()));
}

// ---- Answers

TEST_F(PeerRouting, PeersWithoutAddressesTakeNobodysPlaceInAnAnswer) {
  auto& hub = swarm.add_host();
  for (int i = 0; i < 25; ++i) {
    Host& host = join(hub);
    swarm.pass(1s);
    proto::Identify nothing;  // such peers have come into the table and have taken their addresses back
    nothing.set_signed_peer_record(make_signed_peer_record(host.identity(), 1, {}));
    swarm.run(push_identify(host, hub.id(), nothing.SerializeAsString()));
  }
  std::vector<PeerId> listening;
  for (int i = 0; i < 15; ++i) listening.push_back(join(hub).id());
  auto& asker = swarm.add_host({.routing_server = false});
  ASSERT_TRUE(swarm.run(asker.connect(address_of(hub), swarm.after(5s))));
  swarm.pass(10s);
  auto peers = told(swarm.run(find_node(asker, hub.id(), nobody(1).peer_id().binary())).value());
  std::sort(peers.begin(), peers.end());
  std::sort(listening.begin(), listening.end());
  EXPECT_EQ(peers, listening);
}

TEST_F(PeerRouting, AnAnswerStaysBelow16KiBAndNamesTheOneAskedFor) {
  auto& hub = swarm.add_host();
  std::vector<Multiaddr> announced;
  for (int i = 0; i < 15; ++i)
    announced.push_back(parsed("/dns4/" + std::string(60, 'a') + "." + std::string(60, 'b') + "." +
                               std::string(60, 'c') + ".example/tcp/" + std::to_string(4001 + i)));
  std::vector<Host*> hosts;
  for (int i = 0; i < 25; ++i) hosts.push_back(&join(hub, {.announce = announced}));
  swarm.pass(10s);
  for (const Host* target : {hosts[0], hosts[12], hosts[24]}) {
    const auto reply = swarm.run(find_node(*hosts[5], hub.id(), target->id().binary())).value();
    EXPECT_LE(reply.ByteSizeLong(), 16u * 1024);
    EXPECT_GE(reply.closer_peers_size(), 8);
    const auto peers = told(reply);
    EXPECT_NE(std::find(peers.begin(), peers.end(), target->id()), peers.end());
  }
}

TEST_F(PeerRouting, NobodyIsToldAddressesOfOthersThatAreOfNoUseToHim) {
  const auto outside = parsed("/ip4/8.8.8.8/tcp/4001"), own = parsed("/ip4/127.0.0.1/tcp/4001");
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  const auto carol = nobody(1).peer_id();
  hub.learn_addresses(carol, {own, outside});
  const auto reply = swarm.run(find_node(bob, hub.id(), carol.binary())).value();
  ASSERT_GE(reply.closer_peers_size(), 1);
  ASSERT_EQ(reply.closer_peers(0).id(), carol.binary());
  ASSERT_EQ(reply.closer_peers(0).addrs_size(), 1);
  EXPECT_EQ(reply.closer_peers(0).addrs(0), outside.binary());
}

TEST_F(PeerRouting, AHostAskedForItselfAlwaysTellsItsAddresses) {
  const auto own = parsed("/ip4/127.0.0.1/tcp/4001");
  auto& hub = swarm.add_host({.announce = {own}});
  auto& bob = swarm.add_host();
  bob.learn_addresses(hub.id(), {parsed("/ip4/" + Swarm::ip(1) + "/tcp/4001")});
  ASSERT_TRUE(swarm.run(bob.connect(hub.id(), swarm.after(5s))));
  const auto reply = swarm.run(find_node(bob, hub.id(), hub.id().binary())).value();
  ASSERT_EQ(reply.closer_peers_size(), 1);
  EXPECT_EQ(reply.closer_peers(0).addrs(0), own.binary());
}

TEST_F(PeerRouting, TheAskerIsNeverPartOfTheAnswer) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  join(hub);
  swarm.pass(5s);
  EXPECT_FALSE(tells_of(bob, hub, bob.id(), nobody(1).peer_id()));
  EXPECT_FALSE(tells_of(bob, hub, bob.id(), bob.id()));
}

TEST_F(PeerRouting, QueriesWithoutAKeyOrWithAnAbsurdOneAreReset) {
  auto& hub = swarm.add_host();
  auto& bob = join(hub);
  swarm.pass(1s);
  EXPECT_FALSE(swarm.run(find_node(bob, hub.id(), "")));
  EXPECT_FALSE(swarm.run(find_node(bob, hub.id(), std::string(5000, 'k'))));
  EXPECT_TRUE(swarm.run(find_node(bob, hub.id(), "any key")));
}

TEST_F(PeerRouting, PeersOfOneNetworkBlockGetAFewPlacesInTheTable) {
  auto& hub = swarm.add_host_at("9.9.9.9", {.max_routing_peers_per_block = 3});
  std::set<PeerId> block, others;
  for (int i = 1; i <= 8; ++i) {
    Host& host = swarm.add_host_at("8.8.8." + std::to_string(i));
    ASSERT_TRUE(swarm.run(host.bootstrap({address_of(hub)}, swarm.after(10s))));
    block.insert(host.id());
  }
  for (int i = 1; i <= 4; ++i) {
    Host& host = swarm.add_host_at("8.8." + std::to_string(100 + i) + ".1");
    ASSERT_TRUE(swarm.run(host.bootstrap({address_of(hub)}, swarm.after(10s))));
    others.insert(host.id());
  }
  swarm.pass(5s);
  auto& asker = swarm.add_host_at("7.7.7.7");
  ASSERT_TRUE(swarm.run(asker.bootstrap({address_of(hub)}, swarm.after(10s))));
  const auto reply = swarm.run(find_node(asker, hub.id(), nobody(1).peer_id().binary()));
  ASSERT_TRUE(reply);
  std::size_t from_block = 0;
  for (const PeerId& peer : told(*reply)) {
    from_block += block.contains(peer);
    others.erase(peer);
  }
  EXPECT_EQ(from_block, 3u);
  EXPECT_TRUE(others.empty()) << "peers of other networks are told of";
}

}  // namespace
}  // namespace cohive::p2p
