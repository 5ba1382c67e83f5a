// Two connections talk over simulated wires with the real handshake and encryption.
#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "cohive/transport/sim_network.hpp"
#include "cohive/transport/upgrade.hpp"
#include "transport/identities.hpp"

namespace cohive::transport {
namespace {

struct Pair {
  ConnectionPtr dialler, listener;
};

Task<void> accept_one(Listener& listener, Runtime& runtime, KeyPair key, TransportOptions options,
                      Result<ConnectionPtr>& out) {
  auto raw = co_await listener.accept();
  out = co_await upgrade(Upgrader(runtime, key, options), std::move(*raw), Role::responder, std::nullopt);
}

Task<Result<ConnectionPtr>> dial_one(Network& network, Multiaddr address, KeyPair key, std::optional<PeerId> expected,
                                     TransportOptions options) {
  auto raw = co_await network.dial(address, network.runtime().after(10s));
  if (!raw) co_return raw.error();
  co_return co_await upgrade(Upgrader(network.runtime(), key, options), std::move(*raw), Role::initiator, expected);
}

/// By "/noise", "/tls/1.0.0" or "plaintext".
class Connections : public ::testing::TestWithParam<std::string> {
 protected:
  Pair connect(TransportOptions options = {}, std::optional<PeerId> expected = std::nullopt) {
    options.plaintext = GetParam() == "plaintext";
    options.security = {GetParam() == "/tls/1.0.0" ? Security::tls : Security::noise};
    listener_ = server_->listen(Multiaddr::from_text("/ip4/0.0.0.0/tcp/0").value()).value();
    Result<ConnectionPtr> accepted = Error(Errc::dial_failed);
    TaskGroup group(runtime_);
    group.spawn(accept_one(*listener_, runtime_, identity(2), options, accepted));
    dialled_ = runtime_.run(dial_one(*client_, listener_->address(), identity(1), expected, options));
    runtime_.run_for(100ms);
    Pair pair;
    if (dialled_) pair.dialler = std::move(*dialled_);
    if (accepted) pair.listener = std::move(*accepted);
    return pair;
  }

  SimRuntime runtime_{7};
  SimFabric fabric_{runtime_, {.latency = 5ms}};
  std::unique_ptr<Network> client_ = fabric_.add_machine();
  std::unique_ptr<Network> server_ = fabric_.add_machine();
  std::unique_ptr<Listener> listener_;
  Result<ConnectionPtr> dialled_ = Error(Errc::dial_failed);
};

INSTANTIATE_TEST_SUITE_P(AllSecurities, Connections, ::testing::Values("/noise", "/tls/1.0.0", "plaintext"),
                         [](const auto& info) {
                           return info.index == 0 ? "Noise" : info.index == 1 ? "Tls" : "Plaintext";
                         });

Task<void> echo(Connection& connection) {
  auto stream = co_await connection.accept_stream();
  if (!stream) co_return;
  for (;;) {
    auto bytes = co_await (*stream)->read(Deadline::never());
    if (!bytes || bytes->empty()) break;
    auto written = co_await (*stream)->write(bytes->view(), Deadline::never());
    if (!written) co_return;
  }
  (*stream)->close_write();
}

Task<Result<>> send_all(Stream& stream, const Bytes& data) {
  auto sent = co_await stream.write(data, Deadline::never());
  stream.close_write();
  co_return sent;
}

Task<Bytes> collect(Stream& stream) {
  Bytes all;
  for (;;) {
    auto bytes = co_await stream.read(Deadline::never());
    if (!bytes || bytes->empty()) co_return all;
    all.insert(all.end(), bytes->data(), bytes->data() + bytes->size());
  }
}

Task<Bytes> round_trip(Runtime& runtime, Connection& connection, const Bytes& data) {
  auto stream = connection.open_stream().value();
  auto both = co_await race(runtime, collect(*stream), [](Stream& s, const Bytes& d) -> Task<void> {
    co_await send_all(s, d);
    co_await s.runtime().sleep_for(std::chrono::hours(1));
  }(*stream, data));
  co_return std::get<0>(both);
}

TEST_P(Connections, KnowEachOtherAndEchoManyWindowsOfData) {
  auto pair = connect();
  ASSERT_TRUE(pair.dialler && pair.listener);
  EXPECT_EQ(pair.dialler->peer(), identity(2).peer_id());
  EXPECT_EQ(pair.listener->peer(), identity(1).peer_id());
  EXPECT_EQ(pair.dialler->security(), GetParam());
  EXPECT_EQ(pair.listener->security(), GetParam());
  Bytes data(3'000'000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
  TaskGroup group(runtime_);
  group.spawn(echo(*pair.listener));
  EXPECT_EQ(runtime_.run(round_trip(runtime_, *pair.dialler, data)), data);
  runtime_.run_for(1s);
  EXPECT_EQ(pair.dialler->stats().streams_out, 0u);
  EXPECT_EQ(pair.listener->stats().streams_in, 0u);
}

/// What was read of a stream into one piece of memory.
struct Assembled {
  Slice memory;
  std::size_t received = 0;
  std::size_t in_place = 0;  ///< that read() returned where it belongs
};

Task<void> assemble(Connection& connection, std::size_t size, Assembled& out) {
  const auto stream = (co_await connection.accept_stream()).value();
  out.memory = Slice::uninitialised(size);
  while (out.received < size) {
    const Slice bytes = (co_await stream->read(Deadline::never())).value();
    if (bytes.empty()) co_return;
    std::uint8_t* const to = out.memory.mutable_data() + out.received;
    bytes.data() == to ? out.in_place += bytes.size() : (std::memcpy(to, bytes.data(), bytes.size()), 0);
    const bool first = std::exchange(out.received, out.received + bytes.size()) == 0;
    if (first) stream->expect(out.memory.sub(out.received, size - out.received));
  }
}

TEST_P(Connections, BytesThatAreExpectedArriveWhereTheyBelong) {
  auto pair = connect();
  Bytes one(1'000'000), other(1'000'000);
  for (std::size_t i = 0; i < one.size(); ++i) {
    one[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
    other[i] = static_cast<std::uint8_t>(i * 7 + i / 253);
  }
  const StreamPtr first = pair.dialler->open_stream().value(), second = pair.dialler->open_stream().value();
  Assembled left, right;
  {
    TaskGroup group(runtime_);
    group.spawn(assemble(*pair.listener, one.size(), left));
    group.spawn(assemble(*pair.listener, other.size(), right));
    group.spawn(
        [](Stream& stream, const Bytes& data) -> Task<void> { (void)co_await send_all(stream, data); }(*first, one));
    group.spawn(
        [](Stream& stream, const Bytes& data) -> Task<void> { (void)co_await send_all(stream, data); }(*second, other));
    runtime_.run_for(60s);
  }
  EXPECT_TRUE(std::ranges::equal(left.memory.view(), one));
  EXPECT_TRUE(std::ranges::equal(right.memory.view(), other));
  EXPECT_TRUE(left.memory.unique() && right.memory.unique()) << "the streams hold on to it";
  if (GetParam() == "/noise") {
    EXPECT_GT(left.in_place, one.size() / 2);
    EXPECT_GT(right.in_place, other.size() / 2);
  } else {
    EXPECT_EQ(left.in_place + right.in_place, 0u);  // nothing is decrypted, or by a library that wants its own memory
  }
}

TEST_P(Connections, RefuseAnotherPeerThanExpected) {
  auto pair = connect({}, identity(9).peer_id());
  EXPECT_FALSE(pair.dialler);
  EXPECT_EQ(dialled_.error().code(), make_error_code(Errc::peer_mismatch));
}

TEST_P(Connections, DroppedStreamIsSeenAsResetByTheOtherSide) {
  auto pair = connect();
  auto stream = pair.dialler->open_stream().value();
  runtime_.run(stream->write(Bytes(10, 1), Deadline::never()));
  auto remote = runtime_.run(pair.listener->accept_stream()).value();
  stream.reset();
  runtime_.run_for(50ms);
  runtime_.run(remote->read(Deadline::never()));
  auto after = runtime_.run(remote->read(Deadline::never()));
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error(), cohive::Errc::reset);
  EXPECT_EQ(pair.dialler->stats().streams_out, 0u);
}

TEST_P(Connections, ReadAndWriteGiveUpAtTheirDeadline) {
  auto pair = connect();
  auto stream = pair.dialler->open_stream().value();
  auto read = runtime_.run(stream->read(runtime_.after(2s)));
  EXPECT_EQ(read.error(), cohive::Errc::timeout);
  auto write = runtime_.run(stream->write(Bytes(1'000'000), runtime_.after(2s)));  // nobody reads: the window closes
  EXPECT_EQ(write.error(), cohive::Errc::timeout);
}

TEST_P(Connections, StreamsOutliveTheirConnectionWithAClearError) {
  auto pair = connect();
  auto stream = pair.dialler->open_stream().value();
  runtime_.run(stream->write(Bytes(1), Deadline::never()));
  pair.listener.reset();
  runtime_.run_for(50ms);
  EXPECT_TRUE(pair.dialler->closed());
  auto read = runtime_.run(stream->read(Deadline::never()));
  EXPECT_EQ(read.error(), cohive::Errc::closed);
  pair.dialler.reset();
  EXPECT_FALSE(runtime_.run(stream->write(Bytes(1), Deadline::never())));
}

TEST_P(Connections, ASilentPeerIsNoticedByKeepalive) {
  auto pair = connect();
  fabric_.crash("10.0.0.2");
  runtime_.run_for(200s);
  ASSERT_TRUE(pair.dialler->closed());
  EXPECT_EQ(pair.dialler->close_reason(), Errc::keepalive_timeout);
}

TEST_P(Connections, IdleConnectionsStayOpen) {
  auto pair = connect();
  runtime_.run_for(std::chrono::hours(1));
  EXPECT_FALSE(pair.dialler->closed());
  EXPECT_EQ(pair.dialler->round_trip(), 10ms);
}

Task<Result<std::string>> answer(Connection& connection, std::string protocol, StreamPtr& out) {
  auto stream = co_await connection.accept_stream();
  auto agreed =
      co_await answer_selection(**stream, [&](std::string_view p) { return p == protocol; }, Deadline::never());
  out = std::move(*stream);
  co_return agreed;
}

Task<void> store_answer(Connection& connection, std::string protocol, StreamPtr& out) {
  (void)co_await answer(connection, protocol, out);
}

TEST_P(Connections, NegotiateLazilyWithPayloadInTheFirstFlight) {
  auto pair = connect();
  StreamPtr remote;
  TaskGroup group(runtime_);
  group.spawn(store_answer(*pair.listener, "/echo/1", remote));
  auto stream = select_lazily(pair.dialler->open_stream().value(), "/echo/1");
  ASSERT_TRUE(runtime_.run(stream->write(as_bytes("hello"), Deadline::never())));
  runtime_.run_for(50ms);
  ASSERT_TRUE(remote);
  EXPECT_EQ(as_text(runtime_.run(remote->read(Deadline::never()))->view()), "hello");
  ASSERT_TRUE(runtime_.run(remote->write(as_bytes("world"), Deadline::never())));
  EXPECT_EQ(as_text(runtime_.run(stream->read(Deadline::never()))->view()), "world");
}

TEST_P(Connections, RefusedProtocolIsNamedInTheError) {
  auto pair = connect();
  StreamPtr remote;
  TaskGroup group(runtime_);
  group.spawn(store_answer(*pair.listener, "/echo/1", remote));
  auto stream = pair.dialler->open_stream().value();
  auto agreed = runtime_.run(select_one_of(*stream, {"/other/1"}, runtime_.after(5s)));
  ASSERT_FALSE(agreed);
  EXPECT_EQ(agreed.error(), Errc::protocol_not_supported);
  EXPECT_NE(agreed.error().message().find("/other/1"), std::string::npos);
}

}  // namespace
}  // namespace cohive::transport
