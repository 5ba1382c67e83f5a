// Bundles: several connections that carry one peer's bytes.
#include "p2p/bundle.hpp"

#include <gtest/gtest.h>

#include "closing.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/p2p/metrics.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

using sim::Swarm;

constexpr double kRate = 1e6;  // bytes per second that one connection carries
constexpr std::size_t kTransfer = 8'000'000;
const std::string kPatterned = "/patterned/1";
const std::string kBundle = "/cohive/bundle/1.0.0";

std::uint8_t pattern(std::size_t at) {
  return static_cast<std::uint8_t>(at * 131 + (at >> 13));
}

/// What came on the streams of kPatterned.
struct Received {
  std::size_t bytes = 0, streams = 0;
  bool in_order = true;
};

Task<void> receive(transport::StreamPtr stream, Received& received) {
  for (std::size_t at = 0;;) {
    const auto slice = co_await stream->read(Deadline::never());
    if (!slice || slice->empty()) {
      received.streams += slice.has_value();
      stream->close_write();
      co_return;
    }
    for (std::size_t i = 0; i < slice->size(); ++i) received.in_order &= slice->data()[i] == pattern(at + i);
    at += slice->size();
    received.bytes += slice->size();
  }
}

Task<Result<>> transfer(Host& from, PeerId to, std::size_t size) {
  const Deadline deadline = from.runtime().after(10min);
  auto stream = co_await from.open_stream(to, kPatterned, deadline);
  if (!stream) co_return stream.error();
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(i);
  for (std::size_t at = 0; at < size; at += 100'000) {
    const auto sent =
        co_await (*stream)->write(ByteView(bytes).subspan(at, std::min<std::size_t>(100'000, size - at)), deadline);
    if (!sent) co_return sent.error();
    co_await from.runtime().yield();
  }
  (*stream)->close_write();
  const auto end = co_await (*stream)->read(deadline);  // of the other side
  if (!end) co_return end.error();
  co_return ok();
}

struct Bundles : testing::Test {
  Swarm swarm;
  Received received;

  explicit Bundles(sim::SwarmOptions options = {}) : swarm(options) {
    swarm.fabric().set_default_link({.latency = 50ms, .jitter = 5ms, .bandwidth = kRate});
  }
  static HostOptions options(std::size_t most = 4) { return {.max_bundled_connections = most}; }
  /// Two hosts, of which the first has dialled the other.
  std::pair<Host*, Host*> pair(HostOptions first = options(), HostOptions second = options()) {
    Host& alice = swarm.add_host(std::move(first));
    Host& bob = swarm.add_host(std::move(second));
    for (Host* host : {&alice, &bob})
      host->set_handler(kPatterned,
                        [this](transport::StreamPtr stream) { return receive(std::move(stream), received); });
    EXPECT_TRUE(swarm.run(alice.connect(address_of(bob), swarm.after(10s))));
    swarm.pass(2s);
    return {&alice, &bob};
  }
  /// Seconds that a transfer takes.
  double seconds(Host& from, Host& to, std::size_t size = kTransfer) {
    const TimePoint begin = swarm.runtime().now();
    const auto sent = swarm.run(transfer(from, to.id(), size));
    EXPECT_TRUE(sent) << sent.error();
    return to_seconds(swarm.runtime().now() - begin);
  }
  /// As many transfers as it takes for four connections.
  void warm(Host& from, Host& to) {
    for (int i = 0; i < 12 && connections() < 4; ++i) seconds(from, to);
    ASSERT_EQ(connections(), 4u);
    seconds(from, to);
    warmed = received;
  }
  /// From now on one of so many large chunks of the first host takes its connection with it, until `most` have died.
  void kill_connections(std::size_t every, std::size_t most) {
    swarm.fabric().set_tap([this, every, most](const std::string& from, const std::string&, ByteView bytes) {
      if (from != Swarm::ip(1) || bytes.size() < 16'000 || ++chunks % every != 0 || killed == most) return true;
      ++killed;
      return false;
    });
  }
  std::size_t chunks = 0, killed = 0;
  Received warmed;
  std::size_t connections() { return swarm.fabric().open_connections(); }
};

TEST_F(Bundles, CarryMoreThanOneConnectionWhereThatIsTheLimit) {
  const auto [alice, bob] = pair();
  const double first = seconds(*alice, *bob);
  warm(*alice, *bob);
  EXPECT_LT(seconds(*alice, *bob), 0.45 * first);
  EXPECT_TRUE(received.in_order);
  EXPECT_EQ(received.bytes, received.streams * kTransfer);
  EXPECT_EQ(bob->peers().size(), 1u) << "one peer";
}

TEST_F(Bundles, CarryWhatTheOtherSideSends) {
  const auto [alice, bob] = pair();
  const double first = seconds(*bob, *alice);
  warm(*bob, *alice);
  EXPECT_LT(seconds(*bob, *alice), 0.45 * first);
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, CarryAStreamThatIsOlderThanMostOfTheirConnections) {
  const double on_one = 4 * kTransfer / kRate;
  const auto [alice, bob] = pair();
  EXPECT_GT(seconds(*alice, *bob, 4 * kTransfer), 0.9 * on_one) << "a stream stays where it began";
  const auto [carol, dave] = pair();
  EXPECT_TRUE(swarm.run(carol->spread_streams(dave->id())));
  EXPECT_FALSE(swarm.run(carol->spread_streams(dave->id()))) << "they are";
  EXPECT_FALSE(swarm.run(dave->spread_streams(carol->id()))) << "the side that has dialled begins bundles";
  EXPECT_LT(seconds(*carol, *dave, 4 * kTransfer), 0.7 * on_one);
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, AreOneConnectionAgainWhenNothingIsTransferred) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  swarm.pass(3min);
  EXPECT_EQ(connections(), 1u);
  EXPECT_TRUE(swarm.run(ping(*alice, bob->id(), swarm.after(5s))));
  EXPECT_TRUE(swarm.run(ping(*bob, alice->id(), swarm.after(5s))));
  seconds(*alice, *bob);
  seconds(*alice, *bob);
  EXPECT_GT(connections(), 1u);
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, AreLeftAloneWhereTheyDoNotHelp) {
  const auto [alice, bob] = pair();
  swarm.fabric().set_line(Swarm::ip(1), {.upload = kRate, .download = kRate});
  for (int i = 0; i < 3; ++i) seconds(*alice, *bob);
  for (int i = 0; i < 30; ++i) seconds(*alice, *bob, 1'000'000);
  EXPECT_LE(connections(), 2u) << "one, and now and then another one to see whether it helps";
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, AreOfCohivePeersAlone) {
  HostOptions other = options();
  other.agent = "p2pd/0.1";
  const auto [alice, bob] = pair(options(), std::move(other));
  for (int i = 0; i < 4; ++i) seconds(*alice, *bob);
  EXPECT_EQ(connections(), 1u);
}

TEST_F(Bundles, AreNotOfPeersWithACap) {
  swarm.set_limits({.upload = kRate, .download = 0});
  const auto [alice, bob] = pair();
  for (int i = 0; i < 4; ++i) seconds(*alice, *bob);
  EXPECT_EQ(connections(), 1u);
}

TEST_F(Bundles, AreNotOfPeersThatWantNone) {
  const auto [alice, bob] = pair(options(), options(1));
  for (int i = 0; i < 4; ++i) seconds(*alice, *bob);
  EXPECT_EQ(connections(), 1u);
  EXPECT_FALSE(swarm.run(bob->open_stream(alice->id(), kBundle + "0", swarm.after(5s))));
}

/// Each death takes what was on its way with it.
TEST_F(Bundles, BringTheBytesThoughConnectionsDie) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  kill_connections(40, 2);
  const std::size_t before = received.bytes;
  seconds(*alice, *bob, 2 * kTransfer);
  EXPECT_EQ(killed, 2u);
  EXPECT_EQ(received.bytes - before, 2 * kTransfer);
  EXPECT_EQ(received.streams, warmed.streams + 1);
  EXPECT_TRUE(received.in_order);
  swarm.fabric().set_tap(nullptr);
  for (int i = 0; i < 4; ++i) seconds(*alice, *bob);
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, AreEndedInOrder) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  Event answered(swarm.runtime());
  closing::serve(*bob, answered);
  TaskGroup group(swarm.runtime());
  group.spawn(closing::leave_after(*bob, answered));
  const auto heard = swarm.run(closing::ask(*alice, bob->id()));
  EXPECT_EQ(heard.bytes, closing::kAnswer);
  EXPECT_FALSE(heard.failure) << *heard.failure;
  swarm.run(group.join());
  swarm.pass(5s);
  EXPECT_FALSE(alice->connected(bob->id()));
}

TEST_F(Bundles, EndWithTheConnectionsOfAPeer) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  alice->disconnect(bob->id());
  swarm.pass(1s);
  EXPECT_EQ(connections(), 0u);
  EXPECT_FALSE(bob->connected(alice->id()));
  EXPECT_TRUE(swarm.run(alice->connect(bob->id(), swarm.after(10s))));
  seconds(*alice, *bob);
  EXPECT_TRUE(received.in_order);
}

/// All connections die while a bundle grows, and again when the peer leaves: what was dialled for the bundle is left.
TEST_F(Bundles, LeaveAConnectionThatWasDialledForThemToTheirPeers) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  kill_connections(37, 6);
  (void)swarm.run(transfer(*alice, bob->id(), 2 * kTransfer));
  EXPECT_GE(killed, 4u);
  swarm.fabric().set_tap(nullptr);
  swarm.pass(20s);
  seconds(*alice, *bob);
  swarm.fabric().set_default_link({.latency = 700ms, .bandwidth = kRate});
  bob->disconnect(alice->id());
  swarm.pass(30s);
  swarm.fabric().set_default_link({.latency = 50ms, .jitter = 5ms, .bandwidth = kRate});
  EXPECT_TRUE(swarm.run(alice->connect(bob->id(), swarm.after(10s))));
  for (int i = 0; i < 3; ++i) seconds(*alice, *bob);
  EXPECT_TRUE(received.in_order);
}

/// The side that has dialled loses its network, and what it had begun; no byte tells the other side of it.
TEST_F(Bundles, GiveWayToTheConnectionThatTheirPeerDialsAfterItHasLostThem) {
  const auto [alice, bob] = pair();
  ASSERT_TRUE(swarm.run(alice->spread_streams(bob->id())));
  swarm.pass(5s);
  swarm.fabric().set_link(Swarm::ip(1), Swarm::ip(2), {.latency = 1h});
  alice->disconnect(bob->id());
  swarm.pass(5s);
  swarm.fabric().set_link(Swarm::ip(1), Swarm::ip(2), {.latency = 50ms, .bandwidth = kRate});
  ASSERT_TRUE(swarm.run(alice->connect(bob->id(), swarm.after(10s))));
  swarm.pass(1s);
  ASSERT_GE(connections(), 2u) << "the old one has not ended";
  const auto answer = swarm.run(ping(*bob, alice->id(), swarm.after(5s)));
  EXPECT_TRUE(answer) << answer.error();
}

struct EncryptedBundles : Bundles {
  EncryptedBundles() : Bundles({.plaintext = false}) {}
};

/// A stream carries several times what one connection may, at a rate that calls for no second one.
TEST_F(EncryptedBundles, MoveOnBeforeTheKeysOfTheirConnectionsAreWorn) {
  HostOptions short_keys = options();
  short_keys.transport.max_key_bytes = 4'000'000;
  short_keys.transport.keepalive_interval = 2s;
  const auto [alice, bob] = pair(short_keys, short_keys);
  swarm.fabric().set_default_link({.latency = 50ms, .bandwidth = 200'000});
  ASSERT_TRUE(swarm.run(alice->spread_streams(bob->id())));
  seconds(*alice, *bob, 16'000'000);
  EXPECT_TRUE(received.in_order);
  EXPECT_EQ(received.streams, 1u);
  swarm.pass(1min);
  EXPECT_EQ(connections(), 1u) << "the others have ended";
}

TEST_F(Bundles, CountTheirBytesOnce) {
  const auto [alice, bob] = pair();
  warm(*alice, *bob);
  const auto before = bob->traffic().bytes_in;
  seconds(*alice, *bob);
  EXPECT_LT(static_cast<double>(bob->traffic().bytes_in - before), 1.05 * kTransfer);
}

// ---- Full tables

TEST_F(Bundles, OfAHostWhoseTableIsFullTakeNobodysPlaceThere) {
  const HostMetrics counted(swarm.runtime().metrics());
  HostOptions small = options();
  small.max_connections = 2;
  small.autonat = false;  // nobody is to dial it back
  const auto [alice, bob] = pair(std::move(small));
  Host& carol = swarm.add_host(options());
  ASSERT_TRUE(swarm.run(alice->connect(address_of(carol), swarm.after(10s))));
  for (int i = 0; i < 5; ++i) seconds(*alice, *bob);
  EXPECT_TRUE(alice->connected(carol.id()));
  EXPECT_EQ(counted.closed_for_room.value(), 0);
  EXPECT_LE(counted.inbound_ok.value(), 4) << "and nothing is dialled in vain";
  EXPECT_TRUE(received.in_order);
}

TEST_F(Bundles, WithAHostWhoseTableIsFullAreNotDialledForForEver) {
  const HostMetrics counted(swarm.runtime().metrics());
  HostOptions small = options();
  small.max_connections = 2;
  small.autonat = false;
  const auto [alice, bob] = pair(options(), std::move(small));
  for (int i = 0; i < 6; ++i) seconds(*alice, *bob);
  EXPECT_LE(counted.inbound_ok.value(), 12) << "a few every half minute";
  EXPECT_TRUE(received.in_order);
}

// ---- Hostile peers

/// Records of a bundle, as a hostile peer writes them.
struct Records {
  Bytes bytes;
  Records& number(std::uint64_t value, int size) {
    for (int i = size; i-- > 0;) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
    return *this;
  }
  Records& chunk(std::uint64_t at, std::size_t size) {
    number(0, 1).number(at, 8).number(size, 4);
    bytes.resize(bytes.size() + size, 7);
    return *this;
  }
};

struct HostileBundles : Bundles {
  std::unique_ptr<transport::Network> machine;
  transport::ConnectionPtr connection;
  transport::StreamPtr lane;
  Host* host = nullptr;

  void open() {
    host = &swarm.add_host(options());
    machine = swarm.fabric().add_machine();
    connection = swarm.run(knock(*machine, nobody(1), address_of(*host))).value();
    lane = ask(*connection);
    ASSERT_TRUE(lane);
  }
  /// A lane of the bundle whose id is all zeros.
  transport::StreamPtr ask(transport::Connection& on) {
    return swarm.run([](transport::Connection& c, Deadline deadline) -> Task<transport::StreamPtr> {
      auto stream = c.open_stream().value();
      if (!co_await transport::select_one_of(*stream, {kBundle}, deadline)) co_return nullptr;
      const Bytes id(16);
      (void)co_await stream->write(id, deadline);
      transport::StreamReader reader(*stream);
      const auto answer = co_await reader.read_exactly(1, deadline);
      co_return answer && answer->front() == 1 ? std::move(stream) : nullptr;
    }(on, swarm.after(10s)));
  }
  void write(const Records& records) {
    (void)swarm.run(lane->write(records.bytes, swarm.after(30s)));
    swarm.pass(2s);
  }
  /// The lane has ended, and the peer is known for it.
  void expect_banned() {
    EXPECT_TRUE(host->reputation().is_banned(nobody(1).peer_id()));
    EXPECT_LT(host->memory().held(), 100'000u);
  }
};

TEST_F(HostileBundles, AChunkFarAheadEndsTheBundle) {
  open();
  write(Records().chunk(Bundle::kWindow, 100));
  expect_banned();
}

TEST_F(HostileBundles, AChunkOfNoOrOfTooManyBytesEndsTheBundle) {
  for (const std::size_t size : {std::size_t{0}, Bundle::kMostChunk + 1}) {
    open();
    write(Records().chunk(0, size));
    expect_banned();
    lane.reset();
    connection.reset();
  }
}

TEST_F(HostileBundles, AcknowledgingWhatWasNeverSentEndsTheBundle) {
  open();
  write(Records().number(1, 1).number(1000, 8));
  expect_banned();
}

TEST_F(HostileBundles, AnEndBelowChunksThatCameEndsTheBundle) {
  open();
  write(Records().chunk(5, 10).number(2, 1).number(3, 8));
  expect_banned();
}

TEST_F(HostileBundles, ARecordOfAnUnknownTypeEndsTheBundle) {
  open();
  write(Records().number(9, 1).number(0, 8));
  expect_banned();
}

TEST_F(HostileBundles, AGapThatIsNeverFilledEndsTheBundle) {
  open();
  Records records;
  records.number(0, 1).number(0, 8).number(12, 4).number(0x0002000100000000, 8).number(1, 4);  // a ping of yamux
  for (std::uint64_t number = 2; number < Bundle::kWindow; ++number) records.chunk(number, 1000);
  write(records);
  EXPECT_FALSE(host->reputation().is_banned(nobody(1).peer_id()));
  EXPECT_GT(host->memory().held(), 500'000u);
  swarm.pass(22s);
  EXPECT_EQ(host->reputation().offences(nobody(1).peer_id()), 0) << "a peer that sleeps does the same";
  EXPECT_LT(host->memory().held(), 100'000u);
}

TEST_F(HostileBundles, AChunkIsChargedFromItsBeginningUntilItsLaneEnds) {
  open();
  const std::size_t before = host->memory().held();
  Records records;
  records.chunk(0, Bundle::kMostChunk);
  records.bytes.resize(20);
  write(records);
  EXPECT_GE(host->memory().held(), before + Bundle::kMostChunk);
  lane.reset();
  swarm.pass(2s);
  EXPECT_LE(host->memory().held(), before);
}

TEST_F(HostileBundles, MoreLanesThanAgreedAreRefused) {
  open();
  std::vector<transport::ConnectionPtr> connections;
  std::vector<transport::StreamPtr> lanes;
  for (int i = 0; i < 8; ++i) {
    auto further = swarm.run(knock(*machine, nobody(1), address_of(*host)));
    swarm.pass(100ms);
    if (!further || (*further)->closed()) continue;
    connections.push_back(std::move(*further));
    if (auto stream = ask(*connections.back())) lanes.push_back(std::move(stream));
  }
  EXPECT_EQ(lanes.size(), 3u) << "beside the first one";
  EXPECT_LE(connections.size(), 8u);
  EXPECT_FALSE(host->reputation().is_banned(nobody(1).peer_id()));
}

}  // namespace
}  // namespace cohive::p2p
