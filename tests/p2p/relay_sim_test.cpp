// Peers that cannot be dialled are reached through relays.
#include "relay_fixture.hpp"

namespace cohive::p2p {
namespace {

TEST_F(Relay, APeerBehindANatIsReachedThroughItsRelay) {
  punching = false;
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_EQ(hidden.relays().size(), 1U);
  EXPECT_EQ(hidden.relays().front().relay, relay.id());
  EXPECT_THAT(hidden.addresses(), testing::Contains(through(relay, hidden).without_peer()));

  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  swarm.pass(1s);
  ASSERT_TRUE(dialler.connected(hidden.id()) && hidden.connected(dialler.id()));
  EXPECT_TRUE(dialler.remote_address(hidden.id())->is_circuit());
  EXPECT_TRUE(hidden.remote_address(dialler.id())->is_circuit());
  const auto answer = swarm.run(call(dialler, hidden.id(), 3'000'000));
  EXPECT_TRUE(answer) << answer.error().message();
  EXPECT_GT(counted(swarm, "cohive_p2p_relay_bytes_total"), 6'000'000U);
  EXPECT_EQ(swarm.left_behind(), "");
}

TEST_F(Relay, TheSwarmFindsAHiddenPeerByItsIdAlone) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.bootstrap({address_of(relay)}, swarm.after(10s))));
  const auto answer = swarm.run(call(dialler, hidden.id(), 1000));
  EXPECT_TRUE(answer) << answer.error().message();
}

/// Nothing is configured but an initial peer: it sees the new one come from an address that is not its own.
TEST_F(Relay, APeerBehindATranslatorIsReachedWithinSeconds) {
  Host& relay = add_relay("3.0.0.1");
  swarm.fabric().set_nat("192.168.8.1", "5.6.8.1");
  Host& hidden = swarm.add_host_at("192.168.8.1");
  hidden.set_handler(kEcho, echo_whole);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  for (Host* host : {&hidden, &dialler}) ASSERT_TRUE(swarm.run(host->bootstrap({address_of(relay)}, swarm.after(10s))));
  swarm.pass(3s);
  EXPECT_TRUE(swarm.run(call(dialler, hidden.id(), 1000)));
}

/// The peers that dial it back are those that it has dialled: a translator may let in no others.
TEST_F(Relay, ATranslatedHostKeepsItsRelaysWhateverDialBacksSay) {
  Host& relay = add_relay("3.0.0.1");
  swarm.fabric().set_nat("192.168.8.1", "5.6.8.1", true);
  Host& home = swarm.add_host_at("192.168.8.1");
  ASSERT_TRUE(swarm.run(home.bootstrap({address_of(relay)}, swarm.after(10s))));
  swarm.pass(1min);
  EXPECT_EQ(home.reachability(), Reachability::public_);
  EXPECT_EQ(home.relays().size(), 1U);
}

/// The dial-back that reaches it comes over IPv6, and says nothing about the address of its router.
TEST_F(Relay, AHostWhoseIpv4IsTranslatedKeepsItsRelaysThoughItsIpv6IsOpen) {
  Host& relay = swarm.add_host_at(
      "3.0.0.1", {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions{}}, "2d00:1::1");
  swarm.fabric().set_nat("192.168.8.1", "5.6.8.1");
  Host& home = swarm.add_host_at("192.168.8.1", {}, "2d00:2::1");
  home.set_handler(kEcho, echo_whole);
  const Multiaddr over_ip6 = parsed("/ip6/2d00:1::1/tcp/4001").with_peer(relay.id());
  ASSERT_TRUE(swarm.run(home.bootstrap({over_ip6}, swarm.after(10s))));
  for (int network = 1; network <= 4; ++network) {
    Host& observer = swarm.add_host_at("9." + std::to_string(network) + ".1.1", {.autonat = false});
    ASSERT_TRUE(swarm.run(home.connect(address_of(observer), swarm.after(10s))));
  }
  swarm.pass(1min);
  EXPECT_EQ(home.reachability(), Reachability::public_);
  EXPECT_THAT(home.addresses(), testing::Contains(parsed("/ip4/5.6.8.1/tcp/4001")));
  EXPECT_EQ(home.relays().size(), 1U);
  Host& old = swarm.add_host_at("4.0.0.1");
  const Multiaddr over_ip4 = parsed("/ip4/3.0.0.1/tcp/4001").with_peer(relay.id());
  ASSERT_TRUE(swarm.run(old.bootstrap({over_ip4}, swarm.after(10s))));
  EXPECT_TRUE(swarm.run(call(old, home.id(), 1000)));
}

TEST_F(Relay, ConnectedPeersThatRelayAreFoundWithoutNamingThem) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({});
  swarm.pass(5s);
  EXPECT_TRUE(hidden.relays().empty());
  ASSERT_TRUE(swarm.run(hidden.connect(address_of(relay), swarm.after(5s))));
  swarm.pass(5s);
  EXPECT_EQ(hidden.relays().size(), 1U);
}

/// The relay joins when the walk with which every peer begins is over, and it cannot dial the hidden peer.
TEST_F(Relay, ARelayThatIsNeitherNamedNorConnectedIsLookedFor) {
  Host& hub = swarm.add_host_at("3.0.0.1");
  Host& hidden = add_hidden({});
  ASSERT_TRUE(swarm.run(hidden.bootstrap({address_of(hub)}, swarm.after(10s))));
  swarm.pass(1min);
  Host& relay = add_relay("3.0.0.2");
  ASSERT_TRUE(swarm.run(relay.bootstrap({address_of(hub)}, swarm.after(10s))));
  EXPECT_FALSE(hidden.connected(relay.id()));
  swarm.pass(3min);
  ASSERT_EQ(hidden.relays().size(), 1U);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(dialler.bootstrap({address_of(hub)}, swarm.after(10s))));
  EXPECT_TRUE(swarm.run(call(dialler, hidden.id(), 1000)));
}

TEST_F(Relay, ALostRelayIsReplacedWithinTenSeconds) {
  Host& first = add_relay("3.0.0.1");
  add_relay("3.0.0.2");
  Host& third = add_relay("3.0.0.3");
  Host& hidden = add_hidden({&first, &swarm.host(1), &third});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  const auto before = hidden.relays();
  ASSERT_EQ(before.size(), 2U);
  for (std::size_t i = 0; i < 3; ++i)
    if (swarm.host(i).id() == before.front().relay) swarm.fabric().kill("3.0.0." + std::to_string(i + 1));
  swarm.pass(10s);
  const auto after = hidden.relays();
  ASSERT_EQ(after.size(), 2U);
  for (const auto& one : after) EXPECT_NE(one.relay, before.front().relay);
  const auto announced = hidden.addresses();
  for (const auto& one : announced) EXPECT_EQ(one.text().find(before.front().relay.text()), std::string::npos);
  Host& kept = first.id() == after.back().relay ? first : third.id() == after.back().relay ? third : swarm.host(1);
  EXPECT_TRUE(swarm.run(dialler.connect(through(kept, hidden), swarm.after(10s))));
}

/// Hosts of a relay that is away for an hour neither flood its machine and the name servers, nor find it late.
TEST_F(Relay, ANamedRelayThatIsDownIsDialledLessAndLessOften) {
  const auto machine = swarm.fabric().add_machine("3.0.0.1"), home = swarm.fabric().add_machine("4.0.0.1");
  NotingNetwork noting(*home);
  HostOptions relaying{.listen = {parsed("/ip4/3.0.0.1/tcp/4001")},
                       .force_reachability = Reachability::public_,
                       .relay_service = RelayServiceOptions{}};
  relaying.transport.plaintext = true;
  auto relay = std::make_unique<Host>(*machine, nobody(1), relaying);
  relay->start().value();
  HostOptions options{.listen = {parsed("/ip4/4.0.0.1/tcp/4001")},
                      .force_reachability = Reachability::private_,
                      .trusted_relays = {address_of(*relay)}};
  options.transport.plaintext = true;
  Host hidden(noting, nobody(2), options);
  hidden.start().value();
  swarm.pass(5s);
  ASSERT_EQ(hidden.relays().size(), 1U);

  const std::size_t before = noting.dialled.size();
  relay.reset();
  swarm.pass(10s);
  EXPECT_TRUE(hidden.relays().empty());
  EXPECT_GE(noting.dialled.size(), before + 3) << "it may just have restarted";
  swarm.pass(1h);
  EXPECT_GT(noting.dialled.size(), before + 40);
  EXPECT_LT(noting.dialled.size(), before + 120);

  relay = std::make_unique<Host>(*machine, nobody(1), relaying);
  relay->start().value();
  swarm.pass(80s);
  EXPECT_EQ(hidden.relays().size(), 1U);
}

TEST_F(Relay, ReservationsAreRenewed) {
  Host& relay = add_relay("3.0.0.1", {.reservation = 5min});
  Host& hidden = add_hidden({&relay});
  swarm.pass(30min);
  ASSERT_EQ(hidden.relays().size(), 1U);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  EXPECT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
}

TEST_F(Relay, APublicPeerKeepsNoReservation) {
  Host& relay = add_relay("3.0.0.1");
  Host& open = swarm.add_host_at("4.0.0.1",
                                 {.force_reachability = Reachability::public_, .trusted_relays = {address_of(relay)}});
  swarm.pass(1min);
  EXPECT_TRUE(open.relays().empty());
}

/// Its addresses are its own, so only a dial-back could tell that a firewall keeps peers out; none comes here.
TEST_F(Relay, AHostThatNoPeerHasReachedYetIsReachedThroughRelaysSoon) {
  Host& relay = add_relay("3.0.0.1");
  Host& unsure = swarm.add_host_at("4.0.0.1", {.autonat = false});
  ASSERT_TRUE(swarm.run(unsure.bootstrap({address_of(relay)}, swarm.after(10s))));
  swarm.pass(6s);
  EXPECT_EQ(unsure.relays().size(), 1U);
}

/// Its own address is known, and a firewall drops what is sent there: that is not waited for.
TEST_F(Relay, APeerBehindAFirewallIsReachedThroughItsRelayWhileADialHangs) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = swarm.add_host_at("4.0.0.9", {.force_reachability = Reachability::private_, .hole_punching = false});
  hidden.set_handler(kEcho, echo_whole);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  for (Host* host : {&hidden, &dialler}) ASSERT_TRUE(swarm.run(host->bootstrap({address_of(relay)}, swarm.after(10s))));
  swarm.fabric().set_link("4.0.0.1", "4.0.0.9", {.latency = 10min});
  swarm.pass(5s);
  dialler.learn_addresses(hidden.id(), {parsed("/ip4/4.0.0.9/tcp/4001")});
  const auto begun = swarm.runtime().now();
  const auto answer = swarm.run(call(dialler, hidden.id(), 1000));
  EXPECT_TRUE(answer) << answer.error();
  EXPECT_LT(swarm.runtime().now() - begun, 5s);
}

/// What it sends to us when it punches meets that dial.
TEST_F(Relay, ADialThatHangsGoesOnBesideTheCircuitThatWasFaster) {
  Host& relay = add_relay("3.0.0.1");
  Host& far = swarm.add_host_at(
      "4.0.0.9", {.force_reachability = Reachability::private_, .wanted_relays = 1, .hole_punching = false});
  Host& dialler = swarm.add_host_at("4.0.0.1", {.hole_punching = false});
  swarm.fabric().set_link("4.0.0.1", "4.0.0.9", {.latency = 1s});
  for (Host* host : {&far, &dialler}) ASSERT_TRUE(swarm.run(host->connect(address_of(relay), swarm.after(10s))));
  swarm.pass(5s);
  dialler.learn_addresses(far.id(), {parsed("/ip4/4.0.0.9/tcp/4001"), through(relay, far).without_peer()});
  ASSERT_TRUE(swarm.run(dialler.connect(far.id(), swarm.after(20s))));
  ASSERT_TRUE(dialler.remote_address(far.id())->is_circuit());
  swarm.pass(16s);
  EXPECT_FALSE(dialler.remote_address(far.id())->is_circuit());
}

TEST_F(Relay, ARelayThatThePeerFindsWhileADialHangsIsLookedUp) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = swarm.add_host_at("4.0.0.9", {.autonat = false, .hole_punching = false});  // unsure for four seconds
  hidden.set_handler(kEcho, echo_whole);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.fabric().set_link("4.0.0.1", "4.0.0.9", {.latency = 10min});
  for (Host* host : {&hidden, &dialler}) ASSERT_TRUE(swarm.run(host->bootstrap({address_of(relay)}, swarm.after(10s))));
  ASSERT_TRUE(hidden.relays().empty());
  const auto begun = swarm.runtime().now();
  const auto answer = swarm.run(call(dialler, hidden.id(), 1000));
  EXPECT_TRUE(answer) << answer.error();
  EXPECT_LT(swarm.runtime().now() - begun, 10s);
}

TEST_F(Relay, PeersOfOneAddressFamilyEachMeetThroughARelayOfBoth) {
  Host& relay = swarm.add_host_at(
      "3.0.0.1", {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions{}}, "2d00:1::1");
  const auto at = [&](std::uint64_t family) {
    for (const auto& address : relay.visible_addresses())
      if (address.first_code() == family) return address;
    throw std::logic_error("the relay has no such address");
  };
  Host& modern = swarm.add_host_at("2d00:2::1", {.force_reachability = Reachability::public_});
  modern.set_handler(kEcho, echo_whole);
  Host& old = swarm.add_host_at("4.0.0.1", {.force_reachability = Reachability::public_});
  old.set_handler(kEcho, echo_whole);
  ASSERT_TRUE(swarm.run(modern.bootstrap({at(Multiaddr::ip6)}, swarm.after(10s))));
  ASSERT_TRUE(swarm.run(old.bootstrap({at(Multiaddr::ip4)}, swarm.after(10s))));
  swarm.pass(5s);
  for (const auto& [from, to] : {std::pair(&old, &modern), {&modern, &old}}) {
    const auto answer = swarm.run(call(*from, to->id(), 1000));
    EXPECT_TRUE(answer) << answer.error();
    from->disconnect(to->id());
    swarm.pass(1s);
  }
}

TEST_F(Relay, PeersThatCanBeDialledLeaveHalfOfThePlacesToThoseThatCannot) {
  Host& relay = swarm.add_host_at(
      "3.0.0.1",
      {.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions{.max_reservations = 2}},
      "2d00:1::1");
  std::vector<Host*> dialable;
  for (const char* ip : {"4.0.0.1", "4.0.0.2"}) {
    dialable.push_back(&swarm.add_host_at(ip, {.force_reachability = Reachability::public_}));
    ASSERT_TRUE(swarm.run(dialable.back()->bootstrap({address_of(relay)}, swarm.after(10s))));
    swarm.pass(5s);
  }
  EXPECT_EQ(dialable[0]->relays().size() + dialable[1]->relays().size(), 1U);
  swarm.fabric().set_nat("192.168.8.1", "5.6.8.1");
  Host& hidden = swarm.add_host_at("192.168.8.1");
  ASSERT_TRUE(swarm.run(hidden.bootstrap({address_of(relay)}, swarm.after(10s))));
  swarm.pass(5s);
  EXPECT_EQ(hidden.relays().size(), 1U);
}

/// Peers that have IPv4, too, find no second way to it, and dial it as if there was no relay.
TEST_F(Relay, APublicPeerWithIpv4AloneTellsOnlyIpv6AddressesOfItsOneRelay) {
  const HostOptions relaying{.force_reachability = Reachability::public_, .relay_service = RelayServiceOptions{}};
  Host& first = swarm.add_host_at("3.0.0.1", relaying, "2d00:1::1");
  Host& second = swarm.add_host_at("3.0.0.2", relaying, "2d00:1::2");
  Host& of_ip4 = add_relay("3.0.0.3");
  Host& old = swarm.add_host_at("4.0.0.1", {.force_reachability = Reachability::public_});
  std::vector<Multiaddr> relays;
  for (const Host* relay : {&of_ip4, &first, &second})
    for (const auto& address : relay->visible_addresses())
      if (address.first_code() == Multiaddr::ip4) relays.push_back(address);
  ASSERT_TRUE(swarm.run(old.bootstrap(relays, swarm.after(10s))));
  swarm.pass(10s);
  ASSERT_EQ(old.relays().size(), 1U);
  EXPECT_NE(old.relays().front().relay, of_ip4.id());
  int circuits = 0;
  for (const auto& address : old.addresses()) {
    if (!address.is_circuit()) continue;
    EXPECT_EQ(address.first_code(), Multiaddr::ip6) << address.text();
    ++circuits;
  }
  EXPECT_EQ(circuits, 1);
}

TEST_F(Relay, AMessageThatTheRelayWouldNotCarryWholeIsRefusedBeforehand) {
  punching = false;
  Host& relay = add_relay("3.0.0.1", {.circuit = {.duration = 2min, .bytes = 128 * 1024}});
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  EXPECT_EQ(hidden.relays().front().limit.bytes, 128U * 1024);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  const auto begun = swarm.runtime().now();
  const auto large = swarm.run(call(dialler, hidden.id(), 200'000));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error(), cohive::Errc::limit_exceeded);
  EXPECT_LT(swarm.runtime().now() - begun, 1s);
  EXPECT_TRUE(swarm.run(call(dialler, hidden.id(), 10'000)));  // on the same circuit
}

/// Each circuit gets 8 kB/s. The relay takes what fits into its window at once, then grants credit for 128 KiB at a
/// time.
TEST_F(Relay, CircuitsThatShareASlowLineAreNotTakenForDead) {
  punching = false;
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  swarm.pass(5s);
  std::vector<Task<Result<>>> calls;
  for (int i = 1; i <= 12; ++i) {
    Host& dialler = swarm.add_host_at("4.0.0." + std::to_string(i));
    ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
    for (int part = 0; part < 4; ++part) calls.push_back(call(dialler, hidden.id(), 256 * 1024, 10min));
  }
  swarm.pass(1s);
  swarm.fabric().set_line("192.168.7.1", {.upload = 0, .download = 100'000});
  for (const auto& answer : swarm.run(when_all(swarm.runtime(), std::move(calls))))
    EXPECT_TRUE(answer) << answer.error();
  EXPECT_GT(counted(swarm, "cohive_p2p_relay_bytes_total"), 24U << 20) << "in both directions";
}

TEST_F(Relay, AUsedCircuitIsFollowedByAnotherThatCarriesMore) {
  punching = false;
  Host& relay = add_relay("3.0.0.1", {.circuit = {.duration = 30min, .bytes = 128 * 1024}});
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  for (int i = 0; i < 3; ++i) {  // more than one circuit carries
    const auto room = swarm.run(dialler.ensure_capacity(hidden.id(), 80'000, Transfer::to_peer, swarm.after(10s)));
    ASSERT_TRUE(room) << room.error();
    const auto answer = swarm.run(call(dialler, hidden.id(), 80'000));
    EXPECT_TRUE(answer) << answer.error();
    swarm.pass(5s);
  }
  swarm.pass(10s);  // a direct connection is no longer to be hoped for
  const auto begun = swarm.runtime().now();
  const auto too_much = swarm.run(dialler.ensure_capacity(hidden.id(), 1'000'000, Transfer::to_peer, swarm.after(10s)));
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error(), cohive::Errc::limit_exceeded);
  EXPECT_THAT(too_much.error().message(), testing::HasSubstr("1000000 are to be sent"));
  EXPECT_LT(swarm.runtime().now() - begun, 2s);
}

TEST_F(Relay, AnotherCircuitLeavesTheOnlyPlaceForDialsToThatOfItsRelay) {
  punching = false;
  const RelayServiceOptions one_circuit{.circuit = {.duration = 30min, .bytes = 128 * 1024},
                                        .max_circuits_per_peer = 1};
  Host& first = add_relay("3.0.0.1", one_circuit);
  Host& second = add_relay("3.0.0.2", one_circuit);
  Host& hidden = add_hidden({&first, &second});
  Host& dialler = swarm.add_host_at("4.0.0.1", {.max_dials = 1, .hole_punching = false});
  swarm.pass(5s);
  ASSERT_EQ(hidden.relays().size(), 2U);
  ASSERT_TRUE(swarm.run(dialler.connect(through(first, hidden), swarm.after(10s))));
  swarm.pass(1s);  // the hidden peer has named both
  ASSERT_TRUE(swarm.run(call(dialler, hidden.id(), 80'000)));
  ASSERT_FALSE(dialler.connected(second.id()));
  const auto room = swarm.run(dialler.ensure_capacity(hidden.id(), 80'000, Transfer::to_peer, swarm.after(20s)));
  EXPECT_TRUE(room) << room.error();
}

TEST_F(Relay, ALargeTransferWaitsForTheDirectConnection) {
  Host& relay = add_relay("3.0.0.1", {.circuit = {.duration = 2min, .bytes = 128 * 1024}});
  Host& called = add_hidden({&relay});
  Host& dialler = add_hidden({&relay});
  for (const char* ip : {"192.168.7.1", "192.168.7.2"}) swarm.fabric().let_punch(ip);
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, called), swarm.after(10s))));
  ASSERT_TRUE(dialler.remote_address(called.id())->is_circuit());
  const auto room = swarm.run(dialler.ensure_capacity(called.id(), 1'000'000, Transfer::to_peer, swarm.after(15s)));
  ASSERT_TRUE(room) << room.error();
  EXPECT_TRUE(swarm.run(call(dialler, called.id(), 1'000'000)));
}

TEST_F(Relay, ACircuitEndsWithItsTime) {
  punching = false;
  Host& relay = add_relay("3.0.0.1", {.circuit = {.duration = 2min, .bytes = 0}});
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  swarm.pass(119s);
  EXPECT_TRUE(dialler.connected(hidden.id()));
  swarm.pass(2s);
  EXPECT_FALSE(dialler.connected(hidden.id()));
  EXPECT_FALSE(hidden.connected(dialler.id()));
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 0U);
}

TEST_F(Relay, CircuitsEndWithTheirEnds) {
  punching = false;
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 1U);
  dialler.disconnect(hidden.id());
  swarm.pass(5s);
  EXPECT_FALSE(hidden.connected(dialler.id()));
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 0U);
}

// ---- Hole punching

TEST_F(Relay, TwoHiddenPeersPunchThroughTheirRouters) {
  Host& relay = add_relay("3.0.0.1");
  Host& called = add_hidden({&relay});
  Host& dialler = add_hidden({&relay});
  for (const char* ip : {"192.168.7.1", "192.168.7.2"}) swarm.fabric().let_punch(ip);
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, called), swarm.after(10s))));
  EXPECT_TRUE(dialler.remote_address(called.id())->is_circuit());
  swarm.pass(10s);
  ASSERT_TRUE(dialler.connected(called.id()) && called.connected(dialler.id()));
  EXPECT_FALSE(dialler.remote_address(called.id())->is_circuit());
  EXPECT_FALSE(called.remote_address(dialler.id())->is_circuit());
  const auto relayed = counted(swarm, "cohive_p2p_relay_bytes_total");
  EXPECT_TRUE(swarm.run(call(dialler, called.id(), 1'000'000)));
  EXPECT_LT(counted(swarm, "cohive_p2p_relay_bytes_total"), relayed + 10'000);
  swarm.pass(5min);  // the circuit goes when it is not used any more
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 0U);
  EXPECT_TRUE(dialler.connected(called.id()));
  EXPECT_EQ(swarm.left_behind(), "");
}

TEST_F(Relay, ACallUnderWayLivesOnWhileADirectConnectionTakesOver) {
  Host& relay = add_relay("3.0.0.1");
  Host& called = add_hidden({&relay});
  Host& dialler = add_hidden({&relay});
  for (const char* ip : {"192.168.7.1", "192.168.7.2"}) swarm.fabric().let_punch(ip);
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, called), swarm.after(10s))));
  auto slow_call = [](Host& from, PeerId to) -> Task<Result<>> {
    const Deadline deadline = from.runtime().after(10min);
    auto stream = co_await from.open_stream(to, kEcho, deadline);
    if (!stream) co_return stream.error();
    const Bytes part(1000, 7);
    for (int i = 0; i < 20; ++i) {
      if (auto sent = co_await (*stream)->write(part, deadline); !sent) co_return sent.error();
      co_await from.runtime().sleep_for(5s);
    }
    (*stream)->close_write();
    transport::StreamReader reader(**stream);
    if (auto back = co_await reader.read_exactly(20'000, deadline); !back) co_return back.error();
    co_return ok();
  };
  const auto answer = swarm.run(slow_call(dialler, called.id()));
  EXPECT_TRUE(answer) << answer.error().message();
  EXPECT_FALSE(dialler.remote_address(called.id())->is_circuit());
}

TEST_F(Relay, RoutersThatLetNothingInLeaveTheCircuit) {
  Host& relay = add_relay("3.0.0.1");
  Host& called = add_hidden({&relay});
  Host& dialler = add_hidden({&relay});
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, called), swarm.after(10s))));
  swarm.pass(2min);
  ASSERT_TRUE(dialler.connected(called.id()));
  EXPECT_TRUE(dialler.remote_address(called.id())->is_circuit());
  EXPECT_TRUE(swarm.run(call(dialler, called.id(), 1'000'000)));
  EXPECT_EQ(counted(swarm, "cohive_p2p_hole_punches_total{outcome=\"failed\"}"), 1U);
}

/// The called peer need not wait for anything when the dialler has an open port.
TEST_F(Relay, APublicDiallerIsDialledBack) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  swarm.pass(3s);
  EXPECT_FALSE(dialler.remote_address(hidden.id())->is_circuit());
}

/// Has the peer that dialled our circuit punch at these addresses.
Task<void> ask_to_punch(Host& from, PeerId to, std::vector<Multiaddr> addresses) {
  const Deadline deadline = from.runtime().after(10s);
  auto stream = co_await from.open_stream(to, "/libp2p/dcutr", deadline);
  if (!stream) co_return;
  proto::HolePunch message;
  message.set_type(proto::HolePunch::CONNECT);
  for (const auto& address : addresses) message.add_observed_addrs(address.binary());
  (void)co_await transport::write_message(**stream, as_bytes(message.SerializeAsString()), deadline);
  message.Clear();
  message.set_type(proto::HolePunch::SYNC);
  (void)co_await transport::write_message(**stream, as_bytes(message.SerializeAsString()), deadline);
  (void)co_await (*stream)->read(deadline);
}

/// A peer at the other end of a circuit names addresses to be dialled: those of our network, or of this machine, are
/// none of its business.
TEST_F(Relay, PunchingReachesNoPrivateAddress) {
  Host& relay = add_relay("3.0.0.1");
  Host& liar = add_hidden({&relay}, {.hole_punching = false});
  Host& dialler = add_hidden({&relay});
  Host& inside = swarm.add_host_at("192.168.7.77");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, liar), swarm.after(10s))));
  std::size_t dialled = 0;
  swarm.fabric().set_tap([&](const std::string&, const std::string& to, ByteView) {
    dialled += to == "192.168.7.77";
    return true;
  });
  swarm.pass(1s);
  swarm.run(ask_to_punch(liar, dialler.id(), {inside.addresses().front(), parsed("/ip4/127.0.0.1/tcp/4001")}));
  swarm.pass(10s);
  EXPECT_EQ(dialled, 0U);
}

/// The ports of a machine outside that is no peer are dialled now and then, however often they are named.
TEST_F(Relay, PunchingIsNotAimedAtAThirdMachine) {
  Host& relay = add_relay("3.0.0.1");
  Host& liar = add_hidden({&relay}, {.hole_punching = false});
  Host& dialler = add_hidden({&relay});
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, liar), swarm.after(10s))));
  swarm.pass(1s);
  const auto machine = swarm.fabric().add_machine("9.9.9.9");
  std::vector<std::unique_ptr<transport::Listener>> listeners;
  std::vector<Multiaddr> ports;
  std::size_t dialled = 0;
  auto count = [](transport::Listener& listener, std::size_t& total) -> Task<void> {
    while (co_await listener.accept()) ++total;
  };
  TaskGroup counting(swarm.runtime());
  for (int port = 1; port <= 8; ++port) {
    ports.push_back(parsed("/ip4/9.9.9.9/tcp/" + std::to_string(port)));
    listeners.push_back(machine->listen(ports.back()).value());
    counting.spawn(count(*listeners.back(), dialled));
  }
  for (int i = 0; i < 9; ++i) {
    swarm.run(ask_to_punch(liar, dialler.id(), ports));
    swarm.pass(2s);
  }
  EXPECT_EQ(dialled, 24U) << "of 72 that were named";
}

/// Machines of one network outside, none of which is a peer, are dialled now and then, whoever names them.
TEST_F(Relay, PunchingIsNotAimedAtAThirdNetwork) {
  Host& relay = add_relay("3.0.0.1");
  std::vector<Host*> liars;
  for (int i = 0; i < 2; ++i) liars.push_back(&add_hidden({&relay}, {.hole_punching = false}));
  Host& dialler = add_hidden({&relay});
  swarm.pass(5s);
  for (const Host* liar : liars) ASSERT_TRUE(swarm.run(dialler.connect(through(relay, *liar), swarm.after(10s))));
  swarm.pass(1s);
  std::vector<std::unique_ptr<transport::Network>> machines;
  std::vector<std::unique_ptr<transport::Listener>> listeners;
  std::vector<Multiaddr> targets;
  std::size_t dialled = 0;
  auto count = [](transport::Listener& listener, std::size_t& total) -> Task<void> {
    while (co_await listener.accept()) ++total;
  };
  TaskGroup counting(swarm.runtime());
  for (int number = 1; number <= 8; ++number) {
    const std::string ip = "9.9.9." + std::to_string(number);
    machines.push_back(swarm.fabric().add_machine(ip));
    targets.push_back(parsed("/ip4/" + ip + "/tcp/4001"));
    listeners.push_back(machines.back()->listen(targets.back()).value());
    counting.spawn(count(*listeners.back(), dialled));
  }
  for (int i = 0; i < 9; ++i)
    for (Host* liar : liars) {
      swarm.run(ask_to_punch(*liar, dialler.id(), targets));
      swarm.pass(1s);
    }
  EXPECT_EQ(dialled, 96U) << "of 144 that were named, 18 at each machine";
}

}  // namespace
}  // namespace cohive::p2p
