#include <gtest/gtest.h>

#include <cerrno>

#include "cohive/core/errors.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/transport/errors.hpp"
#include "strangers.hpp"
#include "transport/detail/forwarding_network.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

Task<void> dial(Host& from, PeerId to, Deadline deadline) {
  (void)co_await from.connect(to, deadline);
}
/// Holds the result of a call that runs beside the test.
template <class T>
Task<void> keep(Task<T> call, std::optional<T>& result) {
  result.emplace(co_await std::move(call));
}
Task<void> echo(transport::StreamPtr stream) {
  for (;;) {
    auto bytes = co_await stream->read(Deadline::never());
    if (!bytes || bytes->empty()) break;
    (void)co_await stream->write(bytes->view(), stream->runtime().after(5s));
  }
  stream->close_write();
}
Task<std::string> say(transport::Stream& stream, std::string words) {
  (void)co_await stream.write(as_bytes(words), stream.runtime().after(5s));
  auto heard = co_await stream.read(stream.runtime().after(5s));
  co_return heard ? std::string(as_text(heard->view())) : heard.error().message();
}

/// A machine whose network may be away.
class OfflineNetwork final : public transport::ForwardingNetwork {
 public:
  using ForwardingNetwork::dial, ForwardingNetwork::ForwardingNetwork;
  Task<Result<std::unique_ptr<transport::RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                               Deadline deadline) override {
    if (offline) co_return system_error(transport::Errc::unreachable, ENETUNREACH, address.text());
    co_return co_await ForwardingNetwork::dial(std::move(address), std::move(from), deadline);
  }

  bool offline = false;
};

struct Connections : testing::Test {
  Swarm swarm;
  HostMetrics counted{swarm.runtime().metrics()};
  std::vector<std::unique_ptr<transport::Network>> machines;
  std::vector<transport::ConnectionPtr> held;

  void lose_and_find_again(Host& lost, Host& hub);
  /// A connection from a new machine, or from machine `index`.
  bool knock_at(Host& host, const KeyPair& identity, std::optional<std::size_t> index = std::nullopt) {
    if (!index) {
      machines.push_back(swarm.fabric().add_machine());
      index = machines.size() - 1;
    }
    auto result = swarm.run(knock(*machines[*index], identity, host.addresses().front()));
    swarm.pass(1s);
    if (!result || (*result)->closed()) return false;
    held.push_back(std::move(*result));
    return true;
  }
};

/// For the first two hosts of the swarm.
void Connections::lose_and_find_again(Host& lost, Host& hub) {
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
  swarm.pass(2h);
  ASSERT_FALSE(lost.connected(hub.id()));
  swarm.fabric().heal();
  swarm.pass(10min);
  EXPECT_TRUE(lost.connected(hub.id()));
}

// ---- Two links between the same peers

TEST_F(Connections, OfSimultaneousDialsTheOneOfTheSmallerIdRemains) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  alice.learn_addresses(bob.id(), bob.addresses());
  bob.learn_addresses(alice.id(), alice.addresses());
  TaskGroup group(swarm.runtime());
  group.spawn(dial(alice, bob.id(), swarm.after(10s)));
  group.spawn(dial(bob, alice.id(), swarm.after(10s)));
  swarm.pass(1s);
  EXPECT_EQ(swarm.fabric().open_connections(), 2u);
  swarm.pass(2min);
  EXPECT_EQ(swarm.fabric().open_connections(), 1u);
  Host& smaller = alice.id() < bob.id() ? alice : bob;
  Host& larger = alice.id() < bob.id() ? bob : alice;
  EXPECT_TRUE(smaller.peer(larger.id())->outbound);
  EXPECT_FALSE(larger.peer(smaller.id())->outbound);
  EXPECT_TRUE(swarm.run(ping(alice, bob.id(), swarm.after(5s))));
  EXPECT_TRUE(swarm.run(ping(bob, alice.id(), swarm.after(5s))));
}

TEST_F(Connections, ASurplusLinkInUseLivesUntilItsLastStreamEnds) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  Host& smaller = alice.id() < bob.id() ? alice : bob;
  Host& larger = alice.id() < bob.id() ? bob : alice;
  smaller.set_handler("/echo/1", echo);
  smaller.learn_addresses(larger.id(), larger.addresses());
  larger.learn_addresses(smaller.id(), smaller.addresses());
  TaskGroup group(swarm.runtime());
  std::optional<Result<transport::StreamPtr>> opened;
  group.spawn(keep(larger.open_stream(smaller.id(), "/echo/1", swarm.after(5s)), opened));
  group.spawn(dial(smaller, larger.id(), swarm.after(10s)));
  swarm.pass(1s);
  ASSERT_TRUE(opened && *opened);
  const auto stream = std::move(**opened);
  swarm.pass(5min);
  EXPECT_EQ(swarm.fabric().open_connections(), 2u);
  EXPECT_EQ(swarm.run(say(*stream, "still here")), "still here");
  stream->reset();
  swarm.pass(2min);
  EXPECT_EQ(swarm.fabric().open_connections(), 1u);
  EXPECT_TRUE(smaller.peer(larger.id())->outbound);
}

TEST_F(Connections, APeerThatCameBackIsReachedByItsNewLinkAtOnce) {
  auto& alice = swarm.add_host();
  const auto bob = nobody(1);
  ASSERT_TRUE(knock_at(alice, bob));
  swarm.pass(1min);
  ASSERT_TRUE(knock_at(alice, bob));  // bob's machine was reset and never told us
  auto stream = alice.open_stream(bob.peer_id(), "/any/1", swarm.after(1s));
  auto opened = held[1]->accept_stream();
  TaskGroup group(swarm.runtime());
  std::optional<Result<transport::StreamPtr>> asked, came;
  group.spawn(keep(std::move(stream), asked));
  group.spawn(keep(std::move(opened), came));
  swarm.pass(500ms);
  EXPECT_TRUE(came && *came);
}

// ---- Limits

/// A machine that lets a process have few connections.
class SmallMachine final : public transport::ForwardingNetwork {
 public:
  SmallMachine(std::unique_ptr<transport::Network> inner, std::size_t most)
      : ForwardingNetwork(std::move(inner)), most_(most) {}
  std::size_t max_connections() const override { return most_; }

 private:
  std::size_t most_;
};

TEST_F(Connections, OnASmallMachineAHostHasFewerAndStillTakesNewcomersIn) {
  SmallMachine machine(swarm.fabric().add_machine(), 40);
  Host alice(machine, KeyPair::ed25519_from_seed(Bytes(32, 7)),
             {.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()}, .transport = {.plaintext = true}});
  ASSERT_TRUE(alice.start());
  for (std::uint32_t i = 0; i < 60; ++i) EXPECT_TRUE(knock_at(alice, nobody(i))) << i;
  EXPECT_GT(counted.connections.value(), 20);
  EXPECT_LT(counted.connections.value(), 40);
}

TEST_F(Connections, OnePeerHasOnlyAFewLinks) {
  auto& alice = swarm.add_host({.max_connections_per_peer = 3});
  int accepted = 0;
  for (int i = 0; i < 10; ++i) accepted += knock_at(alice, nobody(1));
  EXPECT_EQ(accepted, 3);
  EXPECT_TRUE(knock_at(alice, nobody(2)));
  EXPECT_EQ(counted.inbound_ok.value(), 4);
  EXPECT_EQ(counted.inbound_refused.value(), 7);
}

TEST_F(Connections, OneAddressTakesOnlyItsShareAndGetsItBack) {
  auto& alice = swarm.add_host({.max_connections_per_ip = 5});
  machines.push_back(swarm.fabric().add_machine());
  int accepted = 0;
  for (std::uint32_t i = 0; i < 20; ++i) accepted += knock_at(alice, nobody(i), 0);
  EXPECT_EQ(accepted, 5);
  EXPECT_TRUE(knock_at(alice, nobody(100)));
  held.front()->close(Error(cohive::Errc::closed));
  swarm.pass(1s);
  EXPECT_TRUE(knock_at(alice, nobody(101), 0));
  EXPECT_FALSE(knock_at(alice, nobody(102), 0));
}

TEST_F(Connections, ThoseWhoNeverShakeHandsLeaveRoomForOthers) {
  auto& alice = swarm.add_host({.max_pending_inbound = 20, .max_pending_per_ip = 8});
  machines.push_back(swarm.fabric().add_machine());
  std::vector<std::unique_ptr<transport::RawConnection>> silent;
  for (int i = 0; i < 40; ++i) {
    auto raw = swarm.run(machines[0]->dial(alice.addresses().front(), swarm.after(5s)));
    if (raw) silent.push_back(std::move(*raw));
  }
  swarm.pass(100ms);
  EXPECT_TRUE(knock_at(alice, nobody(1), 0)) << "from the same address: the oldest makes room";
  EXPECT_TRUE(knock_at(alice, nobody(2)));
  swarm.pass(20s);  // they are given up
  EXPECT_TRUE(knock_at(alice, nobody(3), 0));
}

TEST_F(Connections, AFullTableOfHalfOpenConnectionsMakesRoomByTheLargestNetwork) {
  auto& alice = swarm.add_host({.max_pending_inbound = 20, .max_pending_per_ip = 8});
  std::vector<std::unique_ptr<transport::RawConnection>> silent;
  for (int i = 0; i < 6; ++i) machines.push_back(swarm.fabric().add_machine());
  const auto flood = [&] {  // 48, reopened at once
    silent.clear();
    for (int i = 0; i < 48; ++i) {
      auto raw = swarm.run(machines[static_cast<std::size_t>(i) % 6]->dial(alice.addresses().front(), swarm.after(5s)));
      if (raw) silent.push_back(std::move(*raw));
    }
  };
  for (std::uint32_t newcomer = 0; newcomer < 5; ++newcomer) {
    flood();
    EXPECT_TRUE(knock_at(alice, nobody(newcomer)));
  }
}

TEST_F(Connections, OneAddressThatFillsTheTableWithStreamsInUseKeepsNobodyOut) {
  auto& alice = swarm.add_host({.max_connections = 32});
  alice.set_handler("/echo/1", echo);
  const auto greedy = swarm.fabric().add_machine("10.9.9.9", {});
  std::vector<transport::StreamPtr> streams;
  for (std::uint32_t i = 0; i < 28; ++i) {
    auto connection = swarm.run(knock(*greedy, nobody(i), alice.addresses().front())).value();
    streams.push_back(connection->open_stream().value());
    ASSERT_TRUE(swarm.run(transport::select_one_of(*streams.back(), {"/echo/1"}, swarm.after(5s))));
    held.push_back(std::move(connection));
  }
  swarm.pass(5s);
  for (std::uint32_t i = 100; i < 104; ++i) EXPECT_TRUE(knock_at(alice, nobody(i))) << i;
}

TEST_F(Connections, WhenFullTheLongestIdleOneMakesRoomAndNeverOneInUse) {
  auto& alice = swarm.add_host({.max_connections = 8});
  alice.set_handler("/echo/1", echo);
  auto& worker = swarm.add_host();
  ASSERT_TRUE(swarm.run(worker.connect(address_of(alice), swarm.after(5s))));
  auto stream = swarm.run(worker.open_stream(alice.id(), "/echo/1", swarm.after(5s)));
  ASSERT_TRUE(stream);
  std::vector<Host*> guests;
  for (int i = 0; i < 6; ++i) {
    guests.push_back(&swarm.add_host());
    ASSERT_TRUE(swarm.run(guests.back()->connect(address_of(alice), swarm.after(5s))));
    swarm.pass(10s);
  }
  swarm.pass(2min);
  EXPECT_TRUE(knock_at(alice, nobody(1)));
  EXPECT_FALSE(guests[0]->connected(alice.id()));
  EXPECT_TRUE(guests[5]->connected(alice.id()));
  EXPECT_EQ(swarm.run(say(**stream, "busy")), "busy");
  EXPECT_EQ(counted.closed_for_room.value(), 1);
}

TEST_F(Connections, AFullHostWhoseConnectionsAreAllInDemandStillTakesNewcomersIn) {
  auto& alice = swarm.add_host({.max_connections = 8});
  std::vector<Host*> guests;
  for (int i = 0; i < 7; ++i) {
    guests.push_back(&swarm.add_host());
    ASSERT_TRUE(swarm.run(guests.back()->connect(address_of(alice), swarm.after(5s))));
  }
  swarm.pass(2s);
  // Each of them calls every few seconds.
  for (Host* guest : guests) {
    ASSERT_TRUE(swarm.run(ping(*guest, alice.id(), swarm.after(5s))));
    swarm.pass(500ms);
  }
  EXPECT_TRUE(knock_at(alice, nobody(1)));
  EXPECT_FALSE(guests[0]->connected(alice.id())) << "it called longest ago";
  EXPECT_TRUE(guests[6]->connected(alice.id()));
}

TEST_F(Connections, AFloodOfGuestsDoesNotKeepAHostFromDialling) {
  auto& alice = swarm.add_host({.max_connections = 8});
  int accepted = 0;
  for (std::uint32_t i = 0; i < 12; ++i) accepted += knock_at(alice, nobody(i));
  EXPECT_GE(accepted, 7) << "those that say nothing make room for others";
  auto& bob = swarm.add_host();
  EXPECT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(5s))));
}

// ---- Dials

TEST_F(Connections, ClosingAHostAnswersThoseWhoWaitForADial) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  alice.learn_addresses(bob.id(), bob.addresses());
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
  TaskGroup group(swarm.runtime());
  std::optional<Result<>> by_id;
  std::optional<Result<PeerId>> by_address;
  std::optional<Result<transport::StreamPtr>> stream;
  group.spawn(keep(alice.connect(bob.id(), swarm.after(1h)), by_id));
  group.spawn(keep(alice.connect(address_of(bob), swarm.after(1h)), by_address));
  group.spawn(keep(alice.open_stream(bob.id(), "/any/1", swarm.after(1h)), stream));
  swarm.pass(1s);
  swarm.run(alice.close());
  swarm.runtime().run_ready();
  ASSERT_TRUE(by_id && by_address && stream);
  EXPECT_EQ(by_id->error().code(), make_error_code(Errc::host_closed));
  EXPECT_EQ(by_address->error().code(), make_error_code(Errc::host_closed));
  EXPECT_EQ(stream->error().code(), make_error_code(Errc::host_closed));
  EXPECT_EQ(swarm.run(alice.connect(address_of(bob), swarm.after(5s))).error().code(),
            make_error_code(Errc::host_closed));
}

TEST_F(Connections, AHostMayGoWhileOthersWaitForItsDials) {
  swarm.add_host();
  auto& bob = swarm.add_host();
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
  TaskGroup group(swarm.runtime());
  std::optional<Result<PeerId>> result;
  group.spawn(keep(swarm.host(0).connect(address_of(bob), swarm.after(1h)), result));
  swarm.pass(1s);
  swarm.remove_host(0);
  swarm.pass(1min);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error().code(), make_error_code(Errc::host_closed));
}

TEST_F(Connections, EverybodyWhoWantsAPeerSharesOneDial) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  alice.learn_addresses(bob.id(), bob.addresses());
  TaskGroup group(swarm.runtime());
  std::vector<std::optional<Result<PeerId>>> by_address(5);
  std::vector<std::optional<Result<>>> by_id(5);
  for (auto& result : by_address) group.spawn(keep(alice.connect(address_of(bob), swarm.after(10s)), result));
  for (auto& result : by_id) group.spawn(keep(alice.connect(bob.id(), swarm.after(10s)), result));
  swarm.pass(5s);
  for (const auto& result : by_address) EXPECT_TRUE(result && *result);
  for (const auto& result : by_id) EXPECT_TRUE(result && *result);
  EXPECT_EQ(counted.dials_ok.value(), 1);
  EXPECT_EQ(swarm.fabric().open_connections(), 1u);
}

TEST_F(Connections, ACallerThatGivesUpDoesNotEndTheDialForOthers) {
  Swarm slow({.latency = 500ms});
  auto& alice = slow.add_host();
  auto& bob = slow.add_host();
  TaskGroup group(slow.runtime());
  std::optional<Result<PeerId>> hurried, patient;
  group.spawn(keep(alice.connect(address_of(bob), slow.after(600ms)), hurried));
  group.spawn(keep(alice.connect(address_of(bob), slow.after(30s)), patient));
  slow.pass(20s);
  ASSERT_TRUE(hurried && patient);
  EXPECT_EQ(hurried->error().code(), make_error_code(cohive::Errc::timeout));
  EXPECT_TRUE(*patient);
}

TEST_F(Connections, ADialThatNobodyWaitsForEnds) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
  const auto before = swarm.runtime().task_count();
  EXPECT_FALSE(swarm.run(alice.connect(address_of(bob), swarm.after(100ms))));
  swarm.runtime().run_ready();
  EXPECT_EQ(swarm.runtime().task_count(), before);
  EXPECT_EQ(counted.dials_active.value(), 0);
}

TEST_F(Connections, APeerWithManyDeadAddressesIsReachedByTheOneThatWorks) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  std::vector<Multiaddr> addresses;
  for (std::uint32_t i = 0; i < 6; ++i) addresses.push_back(nowhere(i));
  addresses.push_back(bob.addresses().front());
  alice.learn_addresses(bob.id(), addresses);
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(3s))));
}

TEST_F(Connections, TheErrorOfAPeerThatCannotBeReachedSaysWhyForEachAddress) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  const auto carol = nobody(1).peer_id();
  alice.learn_addresses(carol, {nowhere(), bob.addresses().front()});
  const auto result = swarm.run(alice.connect(carol, swarm.after(30s)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), make_error_code(Errc::all_dials_failed));
  EXPECT_NE(result.error().message().find(nowhere().text()), std::string::npos) << result.error();
  EXPECT_NE(result.error().message().find(bob.id().text()), std::string::npos) << result.error();
}

TEST_F(Connections, TheAddressThatWorkedIsKeptWhateverThePeerSaysOfItself) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host({.announce = {nowhere()}});
  const auto real = parsed("/ip4/" + Swarm::ip(2) + "/tcp/4001");
  alice.learn_addresses(bob.id(), {real});
  ASSERT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(5s))));
  swarm.pass(1s);
  EXPECT_EQ(alice.peer(bob.id())->addresses, (std::vector{real, nowhere()}));
  alice.disconnect(bob.id());
  swarm.pass(1min);
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(5s))));
}

TEST_F(Connections, NobodyCanSpoilAnotherPeersAddress) {
  auto& alice = swarm.add_host();
  auto& bob = swarm.add_host();
  for (std::uint32_t i = 0; i < 3; ++i) {
    alice.learn_addresses(nobody(i).peer_id(), bob.addresses());
    EXPECT_FALSE(swarm.run(alice.connect(nobody(i).peer_id(), swarm.after(5s))));
  }
  alice.learn_addresses(bob.id(), bob.addresses());
  EXPECT_TRUE(swarm.run(alice.connect(bob.id(), swarm.after(5s))));
}

TEST_F(Connections, HearsayOfManyPeersCannotAimAHostAtOneMachine) {
  auto& alice = swarm.add_host();
  for (std::uint32_t i = 0; i < 100; ++i) {
    alice.learn_addresses(nobody(i).peer_id(), {nowhere()});
    EXPECT_FALSE(swarm.run(alice.connect(nobody(i).peer_id(), swarm.after(5s))));
  }
  EXPECT_LE(counted.dials_failed.value(), 10);
  EXPECT_GE(counted.dials_held_back.value(), 90);
}

TEST_F(Connections, OnlySoManyDialsRunAtOnce) {
  auto& alice = swarm.add_host({.max_dials = 10});
  swarm.fabric().crash(Swarm::ip(2));
  TaskGroup group(swarm.runtime());
  std::vector<std::optional<Result<>>> results(50);
  for (std::uint32_t i = 0; i < 50; ++i) {
    std::vector<Multiaddr> addresses;
    for (std::uint32_t k = 0; k < 4; ++k) addresses.push_back(nowhere(i * 4 + k));
    alice.learn_addresses(nobody(i).peer_id(), addresses);
    group.spawn(keep(alice.connect(nobody(i).peer_id(), swarm.after(1min)), results[i]));
  }
  double most = 0;
  for (int i = 0; i < 2000; ++i) {
    swarm.pass(5ms);
    most = std::max(most, counted.dials_active.value());
  }
  EXPECT_EQ(most, 10);
}

TEST_F(Connections, AHostThatLostEveryoneComesBackByTheAddressesItWasGiven) {
  auto& hub = swarm.add_host();
  auto& bob = swarm.add_host();
  ASSERT_TRUE(swarm.run(bob.bootstrap({address_of(hub)}, swarm.after(10s))));
  lose_and_find_again(bob, hub);
}

/// The system says at once that there is no network. That is held against no address.
TEST_F(Connections, AMachineWhoseNetworkWasAwayForAnHourIsBackSoon) {
  auto& hub = swarm.add_host();
  OfflineNetwork network(swarm.fabric().add_machine());
  Host laptop(network, nobody(1), {.transport = {.plaintext = true}});
  laptop.start().value();
  ASSERT_TRUE(swarm.run(laptop.bootstrap({address_of(hub)}, swarm.after(10s))));
  for (int i = 0; i < 5; ++i) {
    network.offline = true;
    swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2)});
    swarm.pass(1h);
    ASSERT_FALSE(laptop.connected(hub.id()));
    network.offline = false;
    swarm.fabric().heal();
    swarm.pass(80s);
    EXPECT_TRUE(laptop.connected(hub.id()));
  }
}

TEST_F(Connections, AGroupThatLostTheRestOfTheSwarmFindsItAgain) {
  auto& hub = swarm.add_host();
  auto& bob = swarm.add_host();
  auto& carol = swarm.add_host();
  for (Host* host : {&bob, &carol}) ASSERT_TRUE(swarm.run(host->bootstrap({address_of(hub)}, swarm.after(10s))));
  swarm.pass(1s);
  ASSERT_TRUE(swarm.run(bob.connect(carol.id(), swarm.after(10s))));
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(2), Swarm::ip(3)});
  swarm.pass(5h);
  ASSERT_FALSE(bob.connected(hub.id()) || carol.connected(hub.id()));
  ASSERT_TRUE(bob.connected(carol.id()));
  swarm.fabric().heal();
  swarm.pass(20min);
  EXPECT_TRUE(bob.connected(hub.id()));
  EXPECT_TRUE(carol.connected(hub.id()));
}

TEST_F(Connections, AnInitialPeerThatWasAwayAtTheStartIsStillAWayBack) {
  auto& first = swarm.add_host();
  auto& second = swarm.add_host();
  auto& bob = swarm.add_host();
  swarm.fabric().partition({Swarm::ip(2)}, {Swarm::ip(3)});
  ASSERT_TRUE(swarm.run(bob.bootstrap({address_of(first), address_of(second)}, swarm.after(10s))));
  swarm.fabric().heal();
  swarm.fabric().crash(Swarm::ip(1));
  swarm.pass(20min);
  EXPECT_TRUE(bob.connected(second.id()));
}

TEST_F(Connections, AWayBackIsFoundAmongManyInitialPeersThatAreGone) {
  auto& bob = swarm.add_host();
  std::vector<Multiaddr> initial;
  for (int i = 0; i < 40; ++i) initial.push_back(address_of(swarm.add_host()));
  ASSERT_TRUE(swarm.run(bob.bootstrap(initial, swarm.after(10s))));
  swarm.pass(1s);
  for (std::size_t number = 2; number <= 41; ++number) swarm.fabric().kill(Swarm::ip(number));
  auto& last = swarm.add_host();
  ASSERT_TRUE(swarm.run(bob.bootstrap({address_of(last)}, swarm.after(10s))));
  swarm.fabric().partition({Swarm::ip(1)}, {Swarm::ip(42)});
  swarm.pass(1h);
  ASSERT_TRUE(bob.peers().empty());
  swarm.fabric().heal();
  swarm.pass(2h);
  EXPECT_TRUE(bob.connected(last.id()));
}

TEST_F(Connections, AnAddressGivenForAPeerThatIsConnectedAlreadyIsAWayBackToo) {
  auto& hub = swarm.add_host();
  auto& bob = swarm.add_host();
  hub.learn_addresses(bob.id(), bob.addresses());
  ASSERT_TRUE(swarm.run(hub.connect(bob.id(), swarm.after(10s))));
  ASSERT_TRUE(swarm.run(bob.connect(address_of(hub), swarm.after(10s))));
  lose_and_find_again(bob, hub);
}

}  // namespace
}  // namespace cohive::p2p
