#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/metrics.hpp"
#include "cohive/core/signed_record.hpp"
#include "cohive/p2p/metrics.hpp"
#include "p2p/identify.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

struct Identification : testing::Test {
  Swarm swarm;
  HostMetrics counted{swarm.runtime().metrics()};
  Host& alice = swarm.add_host();
  Host& mallory = swarm.add_host({.routing_server = false});

  void connect() {
    ASSERT_TRUE(swarm.run(mallory.connect(address_of(alice), swarm.after(10s))));
    swarm.pass(1s);
  }
  void push(const proto::Identify& message) {
    swarm.run(push_identify(mallory, alice.id(), message.SerializeAsString()));
    swarm.pass(100ms);
  }
  static proto::Identify agent(const std::string& text) {
    proto::Identify message;
    message.set_agent_version(text);
    return message;
  }
};

TEST_F(Identification, APushReplacesWhatAPeerSaidBefore) {
  connect();
  auto message = agent("other/2");
  message.add_protocols("/only/1");
  message.add_listen_addrs(nowhere(1).binary());
  push(message);
  const auto seen = alice.peer(mallory.id());
  EXPECT_EQ(seen->agent, "other/2");
  EXPECT_EQ(seen->protocols, std::vector<std::string>{"/only/1"});
  EXPECT_EQ(seen->addresses, std::vector{nowhere(1)});
}

TEST_F(Identification, WhatAPushLeavesOutStaysAsItWas) {
  connect();
  auto message = agent("other/2");
  message.add_protocols("/only/1");
  message.add_listen_addrs(nowhere(1).binary());
  push(message);
  push(agent("other/3"));
  proto::Identify changed;
  changed.add_protocols("/only/2");
  push(changed);
  auto seen = alice.peer(mallory.id());
  EXPECT_EQ(seen->agent, "other/3");
  EXPECT_EQ(seen->protocols, std::vector<std::string>{"/only/2"});
  EXPECT_EQ(seen->addresses, std::vector{nowhere(1)});

  proto::Identify withdrawn;
  withdrawn.set_signed_peer_record(make_signed_peer_record(nobody(1), 1, {}));
  push(withdrawn);
  EXPECT_EQ(alice.peer(mallory.id())->addresses, std::vector{nowhere(1)}) << "another peer has none";
  withdrawn.set_signed_peer_record(make_signed_peer_record(mallory.identity(), 1, {}));
  push(withdrawn);
  seen = alice.peer(mallory.id());
  EXPECT_THAT(seen->addresses, testing::Not(testing::Contains(nowhere(1))));
  EXPECT_EQ(seen->agent, "other/3");
  EXPECT_EQ(seen->protocols, std::vector<std::string>{"/only/2"});
}

/// A machine may be suspended just after it has connected.
TEST_F(Identification, APeerThatDidNotAnswerInTimeIsAskedAgain) {
  int asked = 0;
  mallory.remove_handler(kIdentifyProtocol);
  mallory.set_handler(kIdentifyProtocol, [&asked](transport::StreamPtr stream) -> Task<void> {
    if (++asked < 3) co_return co_await stream->runtime().sleep_for(1min);
    auto message = agent("awake");
    message.add_protocols("/only/1");
    (void)co_await transport::write_message(*stream, as_bytes(message.SerializeAsString()),
                                            stream->runtime().after(10s));
    stream->close_write();
  });
  connect();
  swarm.pass(25s);
  EXPECT_NE(alice.peer(mallory.id())->agent, "awake");
  swarm.pass(1min);
  EXPECT_EQ(alice.peer(mallory.id())->agent, "awake");
  EXPECT_EQ(alice.peer(mallory.id())->protocols, std::vector<std::string>{"/only/1"});
  EXPECT_EQ(asked, 3);
}

TEST_F(Identification, AddressesNobodyShouldDialAreIgnored) {
  connect();
  auto message = agent("mallory");
  for (const char* text : {"/ip4/127.0.0.1/tcp/22", "/ip4/0.0.0.0/tcp/1", "/ip6/fe80::1/tcp/1", "/ip4/10.1.2.3/tcp/1"})
    message.add_listen_addrs(parsed(text).binary());
  message.add_listen_addrs("no address");
  push(message);
  EXPECT_EQ(alice.peer(mallory.id())->addresses, std::vector{parsed("/ip4/10.1.2.3/tcp/1")});
}

TEST_F(Identification, OnePeerCannotFillTheBook) {
  connect();
  auto message = agent("mallory");
  for (std::uint32_t i = 0; i < 500; ++i) message.add_listen_addrs(nowhere(i).binary());
  push(message);
  EXPECT_EQ(alice.peer(mallory.id())->addresses.size(), alice.options().max_addresses_per_peer);
}

TEST_F(Identification, OfHundredsOfProtocolsThoseAreKeptThatTheHostKnowsAndAFewOthers) {
  connect();
  alice.set_handler("/ours/1", [](transport::StreamPtr) -> Task<void> { co_return; });
  auto message = agent(std::string(300, 'a'));
  for (int i = 0; i < 600; ++i) message.add_protocols("/o/" + std::to_string(i));
  message.add_protocols("/long/" + std::string(2000, 'x'));
  for (const std::string known : {"/ours/1", kKad, "/ipfs/ping/1.0.0"}) message.add_protocols(known);
  const std::size_t before = alice.memory().held();
  push(message);
  const auto seen = alice.peer(mallory.id())->protocols;
  EXPECT_THAT(seen, testing::IsSupersetOf({"/ours/1", kKad, "/ipfs/ping/1.0.0"}));
  EXPECT_LE(seen.size(), 60u);
  std::size_t bytes = 0;
  for (const auto& name : seen) bytes += name.size();
  EXPECT_LE(bytes, 4096u);
  EXPECT_GE(alice.memory().held(), before + bytes) << "charged to the peer";
  auto few = agent("mallory");
  few.add_protocols(kKad);
  push(few);
  EXPECT_LT(alice.memory().held(), before + bytes) << "and given back";
}

TEST_F(Identification, TheKeyOrRecordOfAnotherPeerIsNotBelieved) {
  connect();
  auto message = agent("carol");
  message.set_public_key(nobody(1).public_key().protobuf());
  push(message);
  EXPECT_EQ(alice.peer(mallory.id())->agent, "cohive/0.1");
  message = agent("mallory");
  message.set_signed_peer_record(make_signed_peer_record(nobody(1), 1, {nowhere(1)}));
  message.add_listen_addrs(nowhere(2).binary());
  push(message);
  EXPECT_EQ(alice.peer(mallory.id())->addresses, std::vector{nowhere(2)});
}

TEST_F(Identification, GarbageChangesNothing) {
  connect();
  swarm.run(push_identify(mallory, alice.id(), std::string(1000, '\xff')));
  swarm.run(push_identify(mallory, alice.id(), std::string(9000, 'a')));
  swarm.pass(100ms);
  EXPECT_EQ(alice.peer(mallory.id())->agent, "cohive/0.1");
  EXPECT_TRUE(swarm.run(ping(alice, mallory.id(), swarm.after(5s))));
}

TEST_F(Identification, WhatAPeerHasPushedSoFarIsChargedToIt) {
  connect();
  const std::size_t before = alice.memory().held();
  auto stream = swarm.run(mallory.open_stream(alice.id(), kPush, swarm.after(5s)));
  ASSERT_TRUE(stream) << stream.error();
  const Bytes part(8000);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(swarm.run(transport::write_message(**stream, part, swarm.after(5s))));
  swarm.pass(1s);
  EXPECT_GE(alice.memory().held(), before + 3 * part.size());
  (*stream)->reset();
  swarm.pass(1s);
  EXPECT_LT(alice.memory().held(), before + part.size());
}

TEST_F(Identification, APeerThatPushesAllTheTimeIsHeardNowAndThen) {
  connect();
  for (int i = 0; i < 200; ++i) push(agent("number " + std::to_string(i)));  // 20 and more seconds in all
  EXPECT_GT(counted.pushes_refused.value(), 100);
  swarm.pass(1min);
  push(agent("calm"));
  EXPECT_EQ(alice.peer(mallory.id())->agent, "calm");
}

TEST_F(Identification, PushesThatSwitchRoutingOnAndOffCostOneQueryAtATime) {
  std::size_t open = 0, most = 0;
  mallory.set_handler(kKad, [&](transport::StreamPtr stream) {
    return [](transport::StreamPtr s, std::size_t& now, std::size_t& max) -> Task<void> {
      max = std::max(max, ++now);
      (void)co_await s->read(Deadline::never());
      (void)co_await s->read(Deadline::never());
      --now;
    }(std::move(stream), open, most);
  });
  connect();
  for (int i = 0; i < 20; ++i) {
    auto message = agent("mallory");
    message.add_protocols(i % 2 ? "/other/1" : kKad);
    push(message);
  }
  EXPECT_EQ(most, 1u);
}

// ---- What a host signs

/// The record in what a host answers.
Task<Result<PeerRecord>> ask_for_record(Host& asker, PeerId peer) {
  const Deadline deadline = asker.runtime().after(5s);
  auto stream = co_await asker.open_stream(peer, kIdentifyProtocol, deadline);
  if (!stream) co_return stream.error();
  const auto message = co_await read_identify(**stream, deadline);
  if (!message) co_return message.error();
  co_return open_signed_peer_record(as_bytes(message->signed_peer_record()));
}

/// Peers ignore a record whose number is not higher than that of the one that they have.
TEST(SignedRecord, NumbersRiseThoughTheClockIsSetBack) {
  Swarm swarm;
  Host& host = swarm.add_host_at("192.168.1.5", {.autonat = false, .observed_confirmations = 1});
  std::vector<PeerRecord> records;
  for (const std::string network : {"8.8.4.", "7.7.7."}) {
    swarm.fabric().set_nat("192.168.1.5", network + "1");
    Host& peer = swarm.add_host_at(network + "9");
    ASSERT_TRUE(swarm.run(host.connect(address_of(peer), swarm.after(10s))));
    swarm.pass(1s);
    const auto record = swarm.run(ask_for_record(peer, host.id()));
    ASSERT_TRUE(record) << record.error();
    records.push_back(*record);
    swarm.runtime().shift_wall_clock(-1h);
  }
  EXPECT_NE(records[0].addresses, records[1].addresses);
  EXPECT_GT(records[1].sequence, records[0].sequence);
}

/// A machine with many containers has more interfaces than a message has places.
struct AddressesTold : testing::Test {
  Swarm swarm;
  Host& peer = swarm.add_host_at("8.8.5.9");

  Host& add_host_with(std::uint16_t interfaces) {
    std::vector<Multiaddr> many;
    for (std::uint16_t i = 0; i < interfaces; ++i)
      many.push_back(Multiaddr::from_ip_tcp("192.168.1.5", static_cast<std::uint16_t>(4001 + i)).value());
    swarm.fabric().set_nat("192.168.1.5", "8.8.4.1");
    Host& host = swarm.add_host_at("192.168.1.5", {.listen = many, .autonat = false, .observed_confirmations = 1});
    EXPECT_TRUE(swarm.run(host.connect(address_of(peer), swarm.after(10s))));
    swarm.pass(1s);
    return host;
  }
  /// What a host answers when it is asked about itself.
  std::vector<Multiaddr> told_of(Host& host) {
    std::vector<Multiaddr> result;
    const auto reply = swarm.run(find_node(peer, host.id(), host.id().binary())).value();
    for (const auto& one : reply.closer_peers())
      for (const auto& address : one.addrs()) result.push_back(Multiaddr::from_bytes(as_bytes(address)).value());
    return result;
  }
};

TEST_F(AddressesTold, OfManyAPeerOutsideIsToldThoseThatItCanDial) {
  Host& host = add_host_with(20);
  const auto record = swarm.run(ask_for_record(peer, host.id()));
  ASSERT_TRUE(record) << record.error();
  ASSERT_EQ(record->addresses.size(), 1u);
  EXPECT_EQ(record->addresses.front().scope(), Multiaddr::Scope::public_);
  EXPECT_EQ(told_of(host), record->addresses) << "whichever way it asks";
}

TEST_F(AddressesTold, AnAnswerAboutOurselvesHasTheOneThatPeersOutsideCanDial) {
  const auto told = told_of(add_host_with(12));
  EXPECT_THAT(told, testing::Contains(testing::Property(&Multiaddr::scope, Multiaddr::Scope::public_)));
}

// ---- Services of which one peer may want too much

struct Services : Identification {
  /// How many of `wanted` streams are still open when all were asked for.
  std::size_t open_streams(const std::string& protocol, int wanted) {
    std::vector<transport::StreamPtr> streams;
    for (int i = 0; i < wanted; ++i) {
      auto stream = swarm.run(mallory.open_stream(alice.id(), protocol, swarm.after(5s)));
      if (!stream) continue;
      (void)swarm.run((*stream)->write(Bytes{1}, swarm.after(5s)));
      streams.push_back(std::move(*stream));
    }
    swarm.pass(1s);
    std::size_t open = 0;
    for (auto& stream : streams) {
      auto read = swarm.run(stream->read(swarm.after(100ms)));
      open += !read && read.error() == cohive::Errc::timeout;
    }
    return open;
  }
};

TEST_F(Services, RoutingStreamsOfOnePeerAreBounded) {
  connect();
  EXPECT_EQ(open_streams(kKad, 50), 32u);
  EXPECT_EQ(counted.streams_refused.value(), 18);
  swarm.pass(1s);
  EXPECT_TRUE(swarm.run(find_node(mallory, alice.id(), "any")));
}

TEST_F(Services, PingAndPushStreamsOfOnePeerAreBounded) {
  connect();
  EXPECT_EQ(open_streams("/ipfs/ping/1.0.0", 20), 4u);
  EXPECT_EQ(open_streams(kPush, 20), 4u);
  swarm.pass(1s);
  EXPECT_TRUE(swarm.run(ping(mallory, alice.id(), swarm.after(5s))));
}

}  // namespace
}  // namespace cohive::p2p
