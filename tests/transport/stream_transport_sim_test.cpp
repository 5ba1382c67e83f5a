// The transport of byte connections over simulated wires: which security is agreed on, and from which port it dials.
#include "cohive/transport/stream_transport.hpp"

#include <gtest/gtest.h>

#include "cohive/core/task_group.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "cohive/transport/sim_network.hpp"
#include "transport/noise.hpp"
#include "transport/raw_stream.hpp"

namespace cohive::transport {
namespace {

KeyPair key_of(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number));
}
Multiaddr address(const std::string& text) {
  return Multiaddr::from_text(text).value();
}

Task<void> accept_all(ConnectionListener& listener, std::vector<Result<ConnectionPtr>>& out) {
  for (;;) {
    auto pending = co_await listener.accept();
    if (!pending) co_return;
    out.push_back(co_await (*pending)->finish());
  }
}

class StreamTransport : public ::testing::Test {
 protected:
  /// Two transports with these options; the second one listens.
  void set_up(TransportOptions ours, TransportOptions theirs) {
    ours_ = stream_transport(*near_)(Upgrader(runtime_, key_of(1), std::move(ours)));
    theirs_ = stream_transport(*far_)(Upgrader(runtime_, key_of(2), std::move(theirs)));
    listener_ = theirs_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
    accepting_.spawn(accept_all(*listener_, accepted_));
  }
  void stop_listening() {
    listener_->close();
    runtime_.run_ready();
    listener_.reset();
    accepted_.clear();
  }
  Result<ConnectionPtr> dial(DialOptions options = {}) {
    options.deadline = runtime_.after(10s);
    auto result = runtime_.run(ours_->dial(address("/ip4/10.0.0.2/tcp/4001"), std::move(options)));
    runtime_.run_for(1s);
    return result;
  }
  std::string agreed(std::vector<Security> ours, std::vector<Security> theirs) {
    if (listener_) stop_listening();
    set_up({.security = std::move(ours)}, {.security = std::move(theirs)});
    const auto connection = dial();
    if (!connection) return std::string(connection.error().code().message());
    EXPECT_EQ(accepted_.at(0).value()->security(), (*connection)->security());
    return std::string((*connection)->security());
  }

  SimRuntime runtime_{3};
  SimFabric fabric_{runtime_, {.latency = 5ms}};
  std::unique_ptr<Network> near_ = fabric_.add_machine(), far_ = fabric_.add_machine();
  std::unique_ptr<Transport> ours_, theirs_;
  std::unique_ptr<ConnectionListener> listener_;
  std::vector<Result<ConnectionPtr>> accepted_;
  TaskGroup accepting_{runtime_};
};

TEST_F(StreamTransport, TheDiallersFirstSecurityThatTheListenerHasIsTaken) {
  using enum Security;
  EXPECT_EQ(agreed({noise, tls}, {noise, tls}), "/noise");
  EXPECT_EQ(agreed({tls, noise}, {noise, tls}), "/tls/1.0.0");
  EXPECT_EQ(agreed({noise, tls}, {tls}), "/tls/1.0.0");
  EXPECT_EQ(agreed({tls, noise}, {noise}), "/noise");
  EXPECT_EQ(agreed({noise}, {tls}), make_error_code(Errc::protocol_not_supported).message());
}

TEST_F(StreamTransport, HandlesNumericTcpAddressesAlone) {
  set_up({}, {});
  EXPECT_TRUE(ours_->handles(address("/ip4/1.2.3.4/tcp/1")));
  EXPECT_TRUE(ours_->handles(address("/ip6/2600::1/tcp/1").with_peer(key_of(1).peer_id())));
  for (const char* other :
       {"/dns4/a.example/tcp/1", "/ip4/1.2.3.4/udp/1/quic-v1", "/ip4/1.2.3.4/tcp/1/ws", "/dnsaddr/a"})
    EXPECT_FALSE(ours_->handles(address(other))) << other;
  EXPECT_FALSE(ours_->handles(
      address("/ip4/1.2.3.4/tcp/1").with_peer(key_of(1).peer_id()).encapsulate(address("/p2p-circuit"))));
}

TEST_F(StreamTransport, SaysWhatAnAddressOffers) {
  set_up({}, {});
  const auto ip4 = ours_->endpoint(address("/ip4/1.2.3.4/tcp/1")), ip6 = ours_->endpoint(address("/ip6/2600::1/tcp/2"));
  ASSERT_TRUE(ip4 && ip6);
  EXPECT_EQ(ip4->port, 1);
  EXPECT_EQ(ip6->port, 2);
  EXPECT_TRUE(ip4->mappable && ip4->punchable && ip6->punchable);
  EXPECT_FALSE(ip6->mappable) << "IPv6 is not translated";
  EXPECT_TRUE(ours_->endpoint(address("/dns4/a.example/tcp/1"))) << "once it is resolved";
  for (const char* other : {"/ip4/1.2.3.4/udp/1/quic-v1", "/ip4/1.2.3.4/tcp/1/ws", "/dnsaddr/a", "/ip4/1.2.3.4"})
    EXPECT_FALSE(ours_->endpoint(address(other))) << other;
}

TEST_F(StreamTransport, DialsFromThePortThatItListensOnUnlessToldOtherwise) {
  set_up({.plaintext = true}, {.plaintext = true});
  const auto ours = ours_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
  const auto seen = [&](DialOptions options) {
    accepted_.clear();
    EXPECT_TRUE(dial(std::move(options)));
    return *accepted_.at(0).value()->remote_address().value(Multiaddr::tcp);
  };
  EXPECT_EQ(seen({}), "4001");
  EXPECT_NE(seen({.from_listen_port = false}), "4001");
  ours->close();
  EXPECT_NE(seen({}), "4001");
}

TEST_F(StreamTransport, UnderAnotherIdentityItDialsAsAStranger) {
  set_up({.plaintext = true}, {.plaintext = true});
  const auto ours = ours_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
  ours_ = stream_transport(*near_)(Upgrader(runtime_, key_of(7), {.plaintext = true}));
  ASSERT_TRUE(dial());
  EXPECT_EQ(accepted_.at(0).value()->peer(), key_of(7).peer_id());
  EXPECT_NE(*accepted_.at(0).value()->remote_address().value(Multiaddr::tcp), "4001");
}

TEST_F(StreamTransport, APeerThatHangsUpInTheHandshakeIsNamedWithItsAddress) {
  set_up({}, {});
  stop_listening();
  const auto raw = far_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
  accepting_.spawn([](Listener& listener) -> Task<void> { (void)co_await listener.accept(); }(*raw));
  const auto result = dial();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("/ip4/10.0.0.2/tcp/4001"), std::string::npos) << result.error();
}

/// What both sides do on one connection that both opened, as far as others than us go: they begin.
Task<void> begin_too(Listener& listener, Runtime& runtime, std::vector<Multiaddr>& from,
                     Result<ConnectionPtr>& second) {
  {
    auto raw = (co_await listener.accept()).value();
    from.push_back(raw->remote_address());
    RawStream stream(runtime, *raw);
    (void)co_await select_one_of(stream, {"/noise"}, runtime.after(5s));
    (void)co_await noise_handshake(stream, Role::initiator, std::make_shared<NoiseIdentity>(key_of(2)), std::nullopt,
                                   {}, runtime.after(5s));
  }
  auto raw = (co_await listener.accept()).value();
  from.push_back(raw->remote_address());
  second = co_await upgrade(Upgrader(runtime, key_of(2)), std::move(raw), Role::responder, std::nullopt);
}

TEST_F(StreamTransport, AConnectionThatBothSidesBeganIsDialledOnceMoreFromAnotherPort) {
  ours_ = stream_transport(*near_)(Upgrader(runtime_, key_of(1)));
  const auto ours = ours_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
  const auto raw = far_->listen(address("/ip4/0.0.0.0/tcp/4001")).value();
  std::vector<Multiaddr> from;
  Result<ConnectionPtr> second = Error(cohive::Errc::internal);
  accepting_.spawn(begin_too(*raw, runtime_, from, second));
  const auto connection = dial({.expected = key_of(2).peer_id()});
  ASSERT_TRUE(connection) << connection.error();
  ASSERT_EQ(from.size(), 2u);
  EXPECT_EQ(*from[0].value(Multiaddr::tcp), "4001");
  EXPECT_NE(*from[1].value(Multiaddr::tcp), "4001");
}

}  // namespace
}  // namespace cohive::transport
