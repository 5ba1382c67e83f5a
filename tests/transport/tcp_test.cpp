// Real sockets on the loopback interface.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/resolver.hpp"
#include "cohive/transport/upgrade.hpp"
#include "transport/identities.hpp"

namespace cohive::transport {
namespace {

Multiaddr address(std::string_view text) {
  return Multiaddr::from_text(text).value();
}

using RawPtr = std::unique_ptr<RawConnection>;

Task<void> accept_one(Listener& listener, Result<RawPtr>& out, Event& done) {
  out = co_await listener.accept();
  done.set();
}

class Tcp : public ::testing::Test {
 protected:
  Deadline soon() { return runtime_->after(10s); }
  std::unique_ptr<Listener> listen(std::string_view where = "/ip4/127.0.0.1/tcp/0") {
    return network_->listen(address(where)).value();
  }
  Result<RawPtr> dial(Multiaddr to, std::optional<Multiaddr> from = std::nullopt) {
    return runtime_->run(network_->dial(std::move(to), std::move(from), soon()));
  }
  /// Both ends of a new connection: the dialler's first.
  std::pair<RawPtr, RawPtr> connect(Listener& listener, std::optional<Multiaddr> from = std::nullopt) {
    Result<RawPtr> accepted = Error(cohive::Errc::internal);
    Event done(*runtime_);
    TaskGroup group(*runtime_);
    group.spawn(accept_one(listener, accepted, done));
    auto dialled = dial(listener.address(), std::move(from));
    runtime_->run([](Event& event) -> Task<void> { co_await event.wait(); }(done));
    return {std::move(dialled).value(), std::move(accepted).value()};
  }
  Bytes receive(RawConnection& from, std::size_t size) {
    Bytes bytes(size);
    for (std::size_t have = 0; have < size;) {
      const auto count = runtime_->run(from.read_some(MutableBytes(bytes).subspan(have))).value();
      if (count == 0) break;
      have += count;
    }
    return bytes;
  }
  Result<> send(RawConnection& to, ByteView bytes) {
    const ByteView parts[] = {bytes.first(bytes.size() / 2), {}, bytes.subspan(bytes.size() / 2)};
    return runtime_->run(to.write_all(parts));
  }

  std::unique_ptr<Runtime> runtime_ = make_runtime({.pool_threads = 1});
  std::unique_ptr<Network> network_ = make_tcp_network(*runtime_);
};

TEST_F(Tcp, MayHaveMoreConnectionsThanTheUsualLimitOfOpenFiles) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 4096) GTEST_SKIP() << "the hard limit is low";
  const rlimit usual{1024, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  const auto network = make_tcp_network(*runtime_);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_GT(network->max_connections(), 4000u);
  EXPECT_LT(network->max_connections(), now.rlim_cur);
}

TEST_F(Tcp, CarriesBytesBothWaysAndSeesTheEnd) {
  for (const auto* where : {"/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"}) {
    auto listener = listen(where);
    EXPECT_NE(listener->address().tcp_endpoint()->port, 0);
    auto [here, there] = connect(*listener);
    EXPECT_EQ(here->remote_address(), listener->address());
    EXPECT_EQ(here->local_address(), there->remote_address());
    ASSERT_TRUE(send(*here, as_bytes("hello")));
    EXPECT_EQ(to_string(receive(*there, 5)), "hello");
    ASSERT_TRUE(send(*there, as_bytes("world")));
    EXPECT_EQ(to_string(receive(*here, 5)), "world");
    here->close();
    Bytes more(1);
    EXPECT_EQ(runtime_->run(there->read_some(more)).value(), 0u);
    EXPECT_EQ(runtime_->run(here->read_some(more)).error(), cohive::Errc::closed);
  }
}

TEST_F(Tcp, WhoEndsItsSideStillReads) {
  auto listener = listen();
  auto [here, there] = connect(*listener);
  ASSERT_TRUE(send(*here, as_bytes("question")));
  here->end_writing();
  EXPECT_EQ(send(*here, as_bytes("more")).error(), cohive::Errc::closed);
  EXPECT_EQ(to_string(receive(*there, 8)), "question");
  Bytes more(1);
  EXPECT_EQ(runtime_->run(there->read_some(more)).value(), 0u);
  ASSERT_TRUE(send(*there, as_bytes("answer")));
  there->close();
  EXPECT_EQ(to_string(receive(*here, 6)), "answer");
  EXPECT_EQ(runtime_->run(here->read_some(more)).value(), 0u);
}

TEST_F(Tcp, PortInUseIsAClearError) {
  auto listener = listen();
  const auto second = network_->listen(listener->address());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error(), Errc::address_in_use);
  EXPECT_NE(second.error().message().find(listener->address().text()), std::string::npos);
  EXPECT_NE(second.error().message().find("choose another port"), std::string::npos);
  listener.reset();
}

TEST_F(Tcp, PortIsFreeAgainRightAfterUse) {
  auto listener = listen();
  const auto where = listener->address();
  auto pair = connect(*listener);
  pair.second->close();  // our side closes first: the port lingers in the system
  pair.first->close();
  listener.reset();
  EXPECT_TRUE(network_->listen(where));
}

TEST_F(Tcp, WildcardListenerNamesDialableAddressesLoopbackLast) {
  auto listener = listen("/ip4/0.0.0.0/tcp/0");
  const auto all = listener->dialable_addresses();
  ASSERT_FALSE(all.empty());
  const auto port = listener->address().tcp_endpoint()->port;
  EXPECT_EQ(all.back(), Multiaddr::from_ip_tcp("127.0.0.1", port).value());
  for (const auto& one : all) EXPECT_FALSE(one.is_unspecified());
  EXPECT_TRUE(dial(all.front()));
}

TEST_F(Tcp, RefusedAndForeignAddressesFail) {
  auto listener = listen();
  const auto where = listener->address();
  listener.reset();
  auto refused = dial(where);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), Errc::refused);
  EXPECT_EQ(refused.error().system(), std::errc::connection_refused);
  EXPECT_NE(refused.error().message().find(where.text()), std::string::npos);
  EXPECT_EQ(dial(address("/ip4/127.0.0.1/udp/1/quic-v1")).error(), Errc::address_unsupported);
  EXPECT_EQ(dial(address("/dns4/localhost/tcp/1")).error(), Errc::address_unsupported) << "names are resolved first";
}

/// No program connects to the broadcast address.
TEST_F(Tcp, AnAddressWithoutAWayToItIsUnreachable) {
  const auto reserved = dial(address("/ip4/255.255.255.255/tcp/1"));
  ASSERT_FALSE(reserved);
  EXPECT_TRUE(reserved.error() == Errc::unreachable || reserved.error() == Errc::dial_failed) << reserved.error();
  EXPECT_TRUE(reserved.error().system()) << "whatever the system says is kept";
}

/// Of a listener that takes no connection out of its short queue, dials hang once the queue is full.
TEST_F(Tcp, ADialThatTimesOutNamesTheAddress) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto closed = on_exit([silent] { ::close(silent); });
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof bound;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&bound), size), 0);
  ASSERT_EQ(::listen(silent, 0), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const auto where = Multiaddr::from_ip_tcp("127.0.0.1", ntohs(bound.sin_port)).value();
  const auto ours = listen();
  std::vector<RawPtr> queued;
  for (const auto& from : {std::optional<Multiaddr>(), std::optional(ours->address())}) {
    auto late = runtime_->run(network_->dial(where, from, runtime_->after(200ms)));
    for (; late && queued.size() < 100; late = runtime_->run(network_->dial(where, from, runtime_->after(200ms))))
      queued.push_back(std::move(*late));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error(), cohive::Errc::timeout);
    EXPECT_NE(late.error().message().find(where.text()), std::string::npos) << late.error();
  }
}

TEST_F(Tcp, PeerIdInTheAddressIsIgnored) {
  auto listener = listen();
  EXPECT_TRUE(dial(listener->address().with_peer(identity(1).peer_id())));
}

TEST_F(Tcp, MayDialFromTheListeningPort) {
  auto ours = listen("/ip4/0.0.0.0/tcp/0");
  auto other = listen();
  auto first = connect(*other, ours->address()), second = connect(*listen(), ours->address());
  EXPECT_EQ(first.second->remote_address().tcp_endpoint()->port, ours->address().tcp_endpoint()->port);
  EXPECT_EQ(second.second->remote_address().tcp_endpoint()->port, ours->address().tcp_endpoint()->port);
  // Once more to the same place: that pair of ports is taken.
  auto again = connect(*other, ours->address());
  EXPECT_NE(again.second->remote_address().tcp_endpoint()->port, ours->address().tcp_endpoint()->port);
  EXPECT_EQ(make_tcp_network(*runtime_)->listen(ours->address()).error(), Errc::address_in_use);
}

TEST_F(Tcp, DroppedWaitsAreSafe) {
  auto listener = listen();
  auto [here, there] = connect(*listener);
  {
    TaskGroup group(*runtime_);
    Bytes buffer(100);
    Result<RawPtr> accepted = Error(cohive::Errc::internal);
    Event never(*runtime_);
    group.spawn([](RawConnection& c, Bytes& into) -> Task<void> { (void)co_await c.read_some(into); }(*here, buffer));
    group.spawn([](RawConnection& c) -> Task<void> {
      const Bytes large(64 * 1024 * 1024);
      const ByteView parts[] = {large};
      (void)co_await c.write_all(parts);  // more than the system buffers: waits
    }(*here));
    group.spawn(accept_one(*listener, accepted, never));
    runtime_->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime_));
    EXPECT_EQ(group.size(), 3u);
  }
  ASSERT_TRUE(send(*there, as_bytes("later")));
  EXPECT_EQ(to_string(receive(*here, 5)), "later") << "the read dropped before took nothing";
  here.reset();
  there.reset();
  listener.reset();
  runtime_->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime_));
}

TEST_F(Tcp, ClosingEndsWhoeverWaits) {
  auto listener = listen();
  auto [here, there] = connect(*listener);
  Result<std::size_t> read = std::size_t{1};
  Result<RawPtr> accepted = Error(cohive::Errc::internal);
  Event read_done(*runtime_), accept_done(*runtime_);
  TaskGroup group(*runtime_);
  group.spawn([](RawConnection& c, Result<std::size_t>& out, Event& done) -> Task<void> {
    Bytes into(10);
    out = co_await c.read_some(into);
    done.set();
  }(*here, read, read_done));
  group.spawn(accept_one(*listener, accepted, accept_done));
  runtime_->run([](Runtime& r, RawConnection& c, Listener& l, Event& a, Event& b) -> Task<void> {
    co_await r.yield();
    c.close();
    l.close();
    co_await a.wait();
    co_await b.wait();
  }(*runtime_, *here, *listener, read_done, accept_done));
  EXPECT_EQ(read.error(), cohive::Errc::closed);
  EXPECT_EQ(accepted.error(), cohive::Errc::closed);
}

TEST_F(Tcp, NamesResolveOffTheLoop) {
  const auto resolver = make_resolver(*runtime_);
  auto found = runtime_->run(resolver->resolve(address("/dns4/localhost/tcp/4001"), soon()));
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->front().text(), "/ip4/127.0.0.1/tcp/4001");
  const auto peer = identity(1).peer_id();
  found = runtime_->run(resolver->resolve(address("/dns4/localhost/tcp/4001").with_peer(peer), soon()));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->front().peer(), peer);
  found = runtime_->run(resolver->resolve(address("/ip4/192.0.2.1/tcp/1"), soon()));
  EXPECT_EQ(found->front().text(), "/ip4/192.0.2.1/tcp/1");
}

// ---- The whole stack on real sockets

Task<void> upgrade_inbound(Runtime& runtime, RawPtr raw, TransportOptions options, Result<ConnectionPtr>& out,
                           Event& done) {
  out = co_await upgrade(Upgrader(runtime, identity(2), options), std::move(raw), Role::responder, std::nullopt);
  done.set();
}

class Stack : public Tcp {
 protected:
  void connect(TransportOptions options = {}) {
    auto listener = listen();
    auto [here, there] = Tcp::connect(*listener);
    Result<ConnectionPtr> accepted = Error(cohive::Errc::internal);
    Event done(*runtime_);
    TaskGroup group(*runtime_);
    group.spawn(upgrade_inbound(*runtime_, std::move(there), options, accepted, done));
    here_ = runtime_
                ->run(upgrade(Upgrader(*runtime_, identity(1), options), std::move(here), Role::initiator,
                              identity(2).peer_id()))
                .value();
    runtime_->run([](Event& event) -> Task<void> { co_await event.wait(); }(done));
    there_ = std::move(accepted).value();
  }
  ConnectionPtr here_, there_;
};

std::uint8_t pattern(std::size_t at) {
  return static_cast<std::uint8_t>(at * 131 + (at >> 13));
}

Task<void> send_pattern(Stream& stream, std::size_t total) {
  Bytes chunk;
  for (std::size_t at = 0; at < total;) {
    chunk.resize(std::min<std::size_t>(total - at, 100'003));
    for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = pattern(at + i);
    auto sent = co_await stream.write(chunk, stream.runtime().after(60s));
    EXPECT_TRUE(sent) << sent.error();
    if (!sent) co_return;
    at += chunk.size();
  }
  stream.close_write();
}

Task<std::size_t> check_pattern(Stream& stream) {
  std::size_t at = 0;
  for (;;) {
    auto slice = co_await stream.read(stream.runtime().after(60s));
    EXPECT_TRUE(slice) << slice.error();
    if (!slice || slice->empty()) co_return at;
    bool same = true;
    for (std::size_t i = 0; i < slice->size(); ++i) same = same && slice->data()[i] == pattern(at + i);
    EXPECT_TRUE(same) << "near byte " << at;
    if (!same) co_return at;
    at += slice->size();
  }
}

Task<void> check_all(Stream& stream, std::size_t expected) {
  EXPECT_EQ(co_await check_pattern(stream), expected);
}

Task<void> exchange_from_far(Connection& connection, std::size_t size) {
  auto stream = co_await connection.accept_stream();
  EXPECT_TRUE(stream);
  if (!stream) co_return;
  std::vector<Task<void>> both;
  both.push_back(send_pattern(**stream, size));
  both.push_back(check_all(**stream, size));
  co_await when_all((*stream)->runtime(), std::move(both));
}

Task<void> exchange(Connection& here, Connection& there, std::size_t size) {
  auto stream = here.open_stream().value();
  std::vector<Task<void>> all;
  all.push_back(exchange_from_far(there, size));
  all.push_back(send_pattern(*stream, size));
  all.push_back(check_all(*stream, size));
  co_await when_all(stream->runtime(), std::move(all));
}

TEST_F(Stack, Carries64MiBBothWaysAtOnceUnderSmallWindows) {
  connect({.max_window = 256 * 1024, .send_buffer = 64 * 1024});
  constexpr std::size_t kSize = 64 * 1024 * 1024;
  runtime_->run(exchange(*here_, *there_, kSize));
  EXPECT_EQ(here_->stats().streams_out, 0u);
  EXPECT_EQ(there_->stats().streams_in, 0u);
  EXPECT_GT(here_->stats().bytes_out, kSize);
}

TEST_F(Stack, ManyStreamsAtOnce) {
  connect();
  std::vector<Task<void>> all;
  for (int i = 0; i < 500; ++i) all.push_back(exchange(*here_, *there_, 20'000));
  runtime_->run(when_all(*runtime_, std::move(all)));
  EXPECT_EQ(here_->stats().streams_out, 0u);
  EXPECT_EQ(there_->stats().streams_in, 0u);
}

TEST_F(Stack, LosingTheSocketEndsTheOtherSideWithItsStreams) {
  connect();
  auto stream = here_->open_stream().value();
  ASSERT_TRUE(runtime_->run(stream->write(as_bytes("x"), soon())));
  there_.reset();
  const auto got = runtime_->run(stream->read(soon()));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), cohive::Errc::closed);
  runtime_->run(here_->wait_closed());
  EXPECT_TRUE(here_->closed());
}

TEST_F(Stack, StrangerOnTheSocketIsTurnedAway) {
  auto listener = listen();
  auto [here, there] = Tcp::connect(*listener);
  ASSERT_TRUE(send(*here, as_bytes("GET / HTTP/1.1\r\nHost: example\r\n" + std::string(100, 'x'))));
  const std::string remote = there->remote_address().text();
  auto result =
      runtime_->run(upgrade(Upgrader(*runtime_, identity(2)), std::move(there), Role::responder, std::nullopt));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find(remote), std::string::npos) << result.error();
}

TEST_F(Stack, SilentStrangerIsTurnedAwayInTime) {
  auto listener = listen();
  auto [here, there] = Tcp::connect(*listener);
  auto result = runtime_->run(upgrade(Upgrader(*runtime_, identity(2), {.upgrade_timeout = 50ms}), std::move(there),
                                      Role::responder, std::nullopt));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), cohive::Errc::timeout);
}

}  // namespace
}  // namespace cohive::transport
