// What a relay refuses, and the bounds that it keeps to.
#include "relay_fixture.hpp"

namespace cohive::p2p {
namespace {

TEST_F(Relay, OnlyPeersWithAReservationAreCalled) {
  Host& relay = add_relay("3.0.0.1");
  Host& target = swarm.add_host_at("4.0.0.1");
  Host& dialler = swarm.add_host_at("4.0.0.2");
  for (Host* host : {&target, &dialler}) ASSERT_TRUE(swarm.run(host->connect(address_of(relay), swarm.after(5s))));
  EXPECT_EQ(ask(dialler, relay, connect_to(target.id()))->status(), proto::NO_RESERVATION);
  EXPECT_EQ(ask(dialler, relay, connect_to(nobody(1).peer_id()))->status(), proto::NO_RESERVATION);
  EXPECT_EQ(ask(dialler, relay, connect_to(relay.id()))->status(), proto::NO_RESERVATION);
  ASSERT_EQ(ask(target, relay, kReserve)->status(), proto::RELAY_OK);
  // It has reserved, but the target takes circuits only from relays of its own choice.
  EXPECT_EQ(ask(dialler, relay, connect_to(target.id()))->status(), proto::CONNECTION_FAILED);
  target.disconnect(relay.id());
  swarm.pass(5s);
  EXPECT_EQ(ask(dialler, relay, connect_to(target.id()))->status(), proto::NO_RESERVATION);
}

/// A message may name addresses of the target; a relay that dialled them would scan its network for strangers.
TEST_F(Relay, NoAddressIsDialledForAPeer) {
  Host& relay = add_relay("3.0.0.1");
  Host& inside = swarm.add_host_at("192.168.0.9");
  Host& dialler = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(dialler.connect(address_of(relay), swarm.after(5s))));
  proto::Hop request;
  request.set_type(proto::Hop::CONNECT);
  request.mutable_peer()->set_id(inside.id().binary());
  request.mutable_peer()->add_addrs(inside.addresses().front().binary());
  EXPECT_EQ(ask(dialler, relay, to_bytes(request.SerializeAsString()))->status(), proto::NO_RESERVATION);
  swarm.pass(1min);
  EXPECT_FALSE(relay.connected(inside.id()));
  EXPECT_FALSE(inside.connected(relay.id()));
}

TEST_F(Relay, AReservationSaysWhatItIsWorth) {
  Host& relay = add_relay("3.0.0.1");
  Host& peer = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
  const auto reply = ask(peer, relay, kReserve);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->limit().duration(), 1800U);
  EXPECT_EQ(reply->limit().data(), std::uint64_t{4} << 30);
  EXPECT_NEAR(static_cast<double>(reply->reservation().expire()), swarm.runtime().wall_time() + 3600, 2);
  ASSERT_EQ(reply->reservation().addrs_size(), 1);
  EXPECT_EQ(Multiaddr::from_bytes(as_bytes(reply->reservation().addrs(0))).value(), address_of(relay));
  const auto& voucher = reply->reservation().voucher();
  EXPECT_TRUE(check_voucher(as_bytes(voucher), relay.id(), peer.id()));
  EXPECT_FALSE(check_voucher(as_bytes(voucher), relay.id(), nobody(1).peer_id()));
  EXPECT_FALSE(check_voucher(as_bytes(voucher), peer.id(), peer.id()));
}

TEST_F(Relay, APeerThatReservesInALoopIsRefused) {
  Host& relay = add_relay("3.0.0.1");
  Host& peer = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
  int granted = 0;
  for (int i = 0; i < 50; ++i) granted += ask(peer, relay, kReserve)->status() == proto::RELAY_OK;
  EXPECT_LE(granted, 8);
  EXPECT_GE(granted, 1);
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_reservations"), 1U);
}

TEST_F(Relay, OneNetworkGetsItsShareOfReservationsOnly) {
  Host& relay = add_relay("3.0.0.1", {.max_reservations = 5, .max_reservations_per_network = 2});
  std::vector<proto::RelayStatus> answers;
  for (int i = 1; i <= 3; ++i) {  // three behind one router
    const std::string ip = "192.168.9." + std::to_string(i);
    swarm.fabric().set_nat(ip, "5.9.9.9");
    Host& peer = swarm.add_host_at(ip);
    ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
    answers.push_back(ask(peer, relay, kReserve)->status());
  }
  for (int i = 1; i <= 4; ++i) {  // and four elsewhere
    Host& peer = swarm.add_host_at("6.0.0." + std::to_string(i));
    ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
    answers.push_back(ask(peer, relay, kReserve)->status());
  }
  using enum proto::RelayStatus;
  EXPECT_THAT(answers, testing::ElementsAre(RELAY_OK, RELAY_OK, RESERVATION_REFUSED, RELAY_OK, RELAY_OK, RELAY_OK,
                                            RESERVATION_REFUSED));
}

/// The owner of a block has any number of subnets or addresses, each with a share of its own.
TEST_F(Relay, ABlockThatHoldsAllReservationsKeepsNobodyOut) {
  Host& relay = add_relay("3.0.0.1", {.max_reservations = 10, .max_reservations_per_network = 8});
  auto reserves = [&, number = 0](const std::string& seen_at) mutable {
    const std::string ip = "192.168.9." + std::to_string(++number);
    swarm.fabric().set_nat(ip, seen_at);
    Host& peer = swarm.add_host_at(ip);
    EXPECT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
    return ask(peer, relay, kReserve)->status();
  };
  for (int i = 1; i <= 10; ++i) ASSERT_EQ(reserves("6.0.0." + std::to_string(i)), proto::RELAY_OK);
  EXPECT_EQ(reserves("6.0.0.11"), proto::RESERVATION_REFUSED);
  EXPECT_EQ(reserves("7.0.0.1"), proto::RELAY_OK);
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_reservations"), 10U);
}

TEST_F(Relay, ABlockThatHoldsAllCircuitsKeepsNobodyOut) {
  punching = false;
  Host& relay = add_relay("3.0.0.1", {.max_circuits = 12, .max_circuits_per_network = 8});
  Host& hidden = add_hidden({&relay});
  swarm.pass(5s);
  const auto reaches = [&](const std::string& ip) {
    Host& dialler = swarm.add_host_at(ip, {.hole_punching = false});
    return swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))).has_value();
  };
  for (int i = 1; i <= 12; ++i) ASSERT_TRUE(reaches("6.0.0." + std::to_string(i)));
  EXPECT_FALSE(reaches("6.0.0.13"));
  EXPECT_TRUE(reaches("7.0.0.1"));
  EXPECT_TRUE(reaches("7.0.0.2"));
  EXPECT_LE(counted(swarm, "cohive_p2p_relay_circuits"), 12U);
}

/// A round begins with a call to each member at once, and many of them may be hidden behind one relay.
TEST_F(Relay, ManyHiddenPeersAreCalledAtOnce) {
  Host& relay = add_relay("3.0.0.1");
  Host& dialler = swarm.add_host_at("4.0.0.1");
  std::vector<Task<Result<PeerId>>> dials;
  std::vector<Host*> hidden;
  for (int i = 0; i < 20; ++i) hidden.push_back(&add_hidden({&relay}));
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(address_of(relay), swarm.after(5s))));
  for (Host* host : hidden) dials.push_back(dialler.connect(through(relay, *host), swarm.after(10s)));
  std::size_t reached = 0;
  for (const auto& dialled : swarm.run(when_all(swarm.runtime(), std::move(dials)))) reached += dialled.has_value();
  EXPECT_EQ(reached, 20U);
}

/// What was granted for an hour is not given up for an answer that did not come.
TEST_F(Relay, AReservationOutlivesARenewalThatNobodyAnswers) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  swarm.pass(5s);
  ASSERT_EQ(hidden.relays().size(), 1U);
  relay.remove_handler(kHopProtocol);
  relay.set_handler(kHopProtocol, [](StreamPtr stream) -> Task<void> { co_await stream->runtime().sleep_for(10min); });
  swarm.pass(35min);
  EXPECT_EQ(hidden.relays().size(), 1U);
  swarm.pass(30min);
  EXPECT_EQ(hidden.relays().size(), 0U) << "it has expired";
}

TEST_F(Relay, OnePeerGetsItsShareOfCircuitsOnly) {
  Host& relay = add_relay("3.0.0.1", {.max_circuits_per_peer = 2});
  Host& hidden = add_hidden({&relay});
  swarm.pass(5s);
  std::vector<bool> reached;
  for (int i = 1; i <= 3; ++i) {
    Host& dialler = swarm.add_host_at("4.0.0." + std::to_string(i));
    reached.push_back(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))).has_value());
  }
  EXPECT_THAT(reached, testing::ElementsAre(true, true, false));
}

TEST_F(Relay, RelaysAreNotChained) {
  punching = false;
  Host& relay = add_relay("3.0.0.1");
  Host& hidden_relay = add_hidden({&relay}, {.relay_service = RelayServiceOptions()});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden_relay), swarm.after(10s))));
  EXPECT_EQ(ask(dialler, hidden_relay, kReserve)->status(), proto::PERMISSION_DENIED);
  EXPECT_EQ(ask(dialler, hidden_relay, connect_to(relay.id()))->status(), proto::PERMISSION_DENIED);
}

TEST_F(Relay, BadMessagesAreAnsweredAsSuch) {
  Host& relay = add_relay("3.0.0.1");
  Host& peer = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
  for (const Bytes& message :
       {Bytes{0x08, 0x02}, Bytes{0x08, 0x09}, Bytes{0xff, 0xff, 0xff}, Bytes{0x08, 0x01}, Bytes(5000, 0x00)}) {
    const auto reply = ask(peer, relay, message);
    ASSERT_TRUE(reply) << reply.error().message();
    EXPECT_EQ(reply->status(), proto::MALFORMED_MESSAGE);
  }
}

TEST_F(Relay, SilentPeersAreCutOff) {
  Host& relay = add_relay("3.0.0.1");
  Host& peer = swarm.add_host_at("4.0.0.1");
  ASSERT_TRUE(swarm.run(peer.connect(address_of(relay), swarm.after(5s))));
  const auto begun = swarm.runtime().now();
  EXPECT_FALSE(ask(peer, relay, {}));  // says nothing: the relay ends the stream
  EXPECT_LE(swarm.runtime().now() - begun, 15s);
}

/// A target that never answers keeps the dialler waiting for a quarter of a minute, and leaves nothing behind.
TEST_F(Relay, ASilentTargetCostsNothing) {
  Host& relay = add_relay("3.0.0.1");
  Host& target = swarm.add_host_at("4.0.0.1", {.use_relay = false});
  Host& dialler = swarm.add_host_at("4.0.0.2");
  target.remove_handler(kStopProtocol);
  target.set_handler(kStopProtocol,
                     [](StreamPtr stream) -> Task<void> { co_await stream->runtime().sleep_for(10min); });
  for (Host* host : {&target, &dialler}) ASSERT_TRUE(swarm.run(host->connect(address_of(relay), swarm.after(5s))));
  ASSERT_EQ(ask(target, relay, kReserve)->status(), proto::RELAY_OK);
  const auto begun = swarm.runtime().now();
  EXPECT_EQ(ask(dialler, relay, connect_to(target.id()))->status(), proto::CONNECTION_FAILED);
  EXPECT_LE(swarm.runtime().now() - begun, 16s);
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 0U);
  EXPECT_EQ(swarm.left_behind(), "");
}

/// A fast end is held to the pace of a slow one: what waits in between stays small.
TEST_F(Relay, ASlowEndDoesNotFillTheRelay) {
  punching = false;
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  hidden.set_handler("/test/slow", [](StreamPtr stream) -> Task<void> {
    co_await stream->runtime().sleep_for(10min);  // reads nothing
  });
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(through(relay, hidden), swarm.after(10s))));
  auto flood = [](Host& from, PeerId to) -> Task<Result<>> {
    const Deadline deadline = from.runtime().after(30s);
    auto stream = co_await from.open_stream(to, "/test/slow", deadline);
    if (!stream) co_return stream.error();
    const Bytes block(1 << 20, 1);
    for (int i = 0; i < 64; ++i)
      if (auto sent = co_await (*stream)->write(block, deadline); !sent) co_return sent.error();
    co_return ok();
  };
  EXPECT_FALSE(swarm.run(flood(dialler, hidden.id())));
  EXPECT_LT(counted(swarm, "cohive_p2p_relay_bytes_total"), 4U << 20);
}

}  // namespace
}  // namespace cohive::p2p
