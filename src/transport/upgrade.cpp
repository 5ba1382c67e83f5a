// Turns a byte connection into an authenticated, multiplexed one.
//   multistream: /noise, Noise XX  or  /tls/1.0.0, TLS 1.3;  yamux at once when both named it in the handshake, else
//   multistream: /yamux/1.0.0.
// Source: docs/wire/libp2p.md, sections 2.2, 3 and 4.
#include "cohive/transport/upgrade.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/metrics.hpp"
#include "cohive/transport/multistream.hpp"
#include "noise.hpp"
#include "noise_channel.hpp"
#include "raw_stream.hpp"
#include "tls_channel.hpp"
#include "yamux.hpp"

namespace cohive::transport {
namespace {

const std::string kNoise = "/noise";
const std::string kTls = "/tls/1.0.0";
constexpr std::string_view kPlaintext = "plaintext";
const std::string kYamux = "/yamux/1.0.0";
constexpr std::size_t kMaxPlainKey = 1024;

const std::string& name_of(Security security) {
  return security == Security::tls ? kTls : kNoise;
}

/// multistream over the encrypted channel, for peers that name no muxer in the handshake.
class ChannelStream final : public Stream {
 public:
  ChannelStream(Runtime& runtime, SecureChannel& channel, PeerId peer)
      : runtime_(runtime), channel_(channel), peer_(peer) {}
  Task<Result<Slice>> read(Deadline deadline) override {
    if (!unread_.empty()) co_return std::exchange(unread_, Slice());
    co_return co_await within(runtime_, deadline, channel_.receive(), "muxer negotiation");
  }
  void unread(Slice bytes) override { unread_ = std::move(bytes); }
  Task<Result<>> write(std::span<const ByteView> buffers, Deadline deadline) override {
    channel_.append(buffers);
    co_return co_await within(runtime_, deadline, channel_.flush(), "muxer negotiation");
  }
  void close_write() noexcept override {}
  void reset() noexcept override { channel_.close(); }
  const PeerId& peer() const override { return peer_; }
  const Multiaddr& remote_address() const override { return channel_.raw().remote_address(); }
  Runtime& runtime() const override { return runtime_; }
  bool readable() const override { return !unread_.empty(); }

  Slice take_unread() { return std::exchange(unread_, Slice()); }

 private:
  Runtime& runtime_;
  SecureChannel& channel_;
  PeerId peer_;
  Slice unread_;
};

/// An encrypted connection to a peer that has proven its identity.
struct Secured {
  PublicKey remote_key;
  Role role;
  std::string_view security;
  std::string muxer;  ///< empty: not agreed on yet
  std::unique_ptr<SecureChannel> channel;
};

}  // namespace

struct Upgrader::State {
  Runtime& runtime;
  KeyPair identity;
  TransportOptions options;
  std::optional<MemoryBudget> memory;
  // Made with the first connection that needs them.
  mutable std::shared_ptr<const NoiseIdentity> noise;
  mutable std::shared_ptr<const TlsIdentity> tls;
};

/// The steps of an upgrade. They take what they need by value or from the caller that awaits them.
struct Handshakes {
  using State = Upgrader::State;
  static const State& state(const Upgrader& upgrader) { return *upgrader.state_; }
  static ConnectionPtr multiplexed(const Upgrader& upgrader, std::unique_ptr<SecureChannel> channel, Role role,
                                   const PeerId& peer, std::string_view security) {
    const auto& state = upgrader.state_;
    auto account = state->memory ? state->memory->account(peer, channel->raw().remote_address()) : nullptr;
    std::shared_ptr<const TransportOptions> options(state, &state->options);  // shared by all connections
    return std::make_unique<YamuxConnection>(state->runtime, std::move(channel), role, peer, security,
                                             std::move(options), std::move(account));
  }

  static Task<Result<std::string>> choose_security(const State& state, RawStream& stream, Role role,
                                                   Deadline deadline) {
    std::vector<std::string> offered;
    for (const Security security : state.options.security) offered.push_back(name_of(security));
    if (role != Role::responder) co_return co_await select_one_of(stream, std::move(offered), deadline);
    const auto supported = [&offered](std::string_view name) {
      return std::find(offered.begin(), offered.end(), name) != offered.end();
    };
    co_return co_await answer_selection(stream, supported, deadline);
  }

  static Task<Result<Secured>> secure(const State& state, std::unique_ptr<RawConnection> raw, Role role,
                                      std::optional<PeerId> expected, Deadline deadline) {
    RawStream stream(state.runtime, *raw, expected.value_or(PeerId()));
    auto agreed = co_await choose_security(state, stream, role, deadline);
    if (!agreed) co_return agreed.error().with_context("security");
    if (*agreed == kNoise) {
      auto session = co_await noise(state, stream, role, expected, deadline);
      if (!session) co_return session.error();
      auto channel = std::make_unique<NoiseChannel>(
          state.runtime, std::move(raw), NoiseChannel::Keys{session->send_key, session->receive_key, session->cipher},
          stream.take_unread());
      co_return Secured{std::move(session->remote_key), session->role, kNoise, std::move(session->muxer),
                        std::move(channel)};
    }
    if (!state.tls) state.tls = std::make_shared<TlsIdentity>(state.identity);
    const Role played = role == Role::either ? Role::initiator : role;
    Bytes early = stream.take_unread();
    auto channel = std::make_unique<TlsChannel>(state.runtime, std::move(raw), state.tls, played, std::move(early));
    auto session = co_await channel->handshake(expected, {kYamux}, deadline);
    if (!session) co_return session.error();
    co_return Secured{std::move(session->remote_key), played, kTls, std::move(session->muxer), std::move(channel)};
  }

  static Task<Result<NoiseSession>> noise(const State& state, RawStream& stream, Role role,
                                          std::optional<PeerId> expected, Deadline deadline) {
    if (!state.noise) state.noise = std::make_shared<NoiseIdentity>(state.identity);
    NoiseOffer offer{{kYamux}, state.options.aes && crypto::has_fast_aes()};
    return noise_handshake(stream, role, state.noise, expected, std::move(offer), deadline);
  }

  /// Simulations of thousands of peers skip the cipher: both sides just claim their ids.
  static Task<Result<Secured>> exchange_keys(const State& state, std::unique_ptr<RawConnection> raw, Role role,
                                             std::optional<PeerId> expected, Deadline deadline) {
    RawStream stream(state.runtime, *raw, expected.value_or(PeerId()));
    auto sent = co_await write_message(stream, as_bytes(state.identity.public_key().protobuf()), deadline);
    if (!sent) co_return sent.error();
    std::optional<PublicKey> remote;
    {
      StreamReader reader(stream);
      auto message = co_await reader.read_message(kMaxPlainKey, deadline);
      if (!message) co_return message.error();
      if (!*message) co_return Error(cohive::Errc::end_of_stream, "plaintext handshake");
      auto key = PublicKey::from_protobuf(**message);
      if (!key) co_return key.error();
      remote = std::move(*key);
    }
    if (expected && remote->peer_id() != *expected)
      co_return Error(Errc::peer_mismatch,
                      "expected " + expected->text() + ", " + remote->peer_id().text() + " answered");
    auto early = stream.take_unread();
    auto channel = std::make_unique<NoiseChannel>(state.runtime, std::move(raw), std::nullopt, std::move(early));
    co_return Secured{std::move(*remote), role == Role::either ? Role::initiator : role, kPlaintext, kYamux,
                      std::move(channel)};
  }

  static Task<Result<>> choose_muxer(const State& state, Secured& secured, Deadline deadline) {
    ChannelStream inside(state.runtime, *secured.channel, secured.remote_key.peer_id());
    auto muxer = secured.role == Role::initiator
                     ? co_await select_one_of(inside, {kYamux}, deadline)
                     : co_await answer_selection(inside, [](std::string_view p) { return p == kYamux; }, deadline);
    if (!muxer) co_return muxer.error().with_context("muxer");
    secured.muxer = std::move(*muxer);
    if (auto early = inside.take_unread(); !early.empty()) secured.channel->unread(std::move(early));
    co_return ok();
  }
};

Upgrader::Upgrader(Runtime& runtime, KeyPair identity, TransportOptions options, std::optional<MemoryBudget> memory)
    : state_(
          std::make_shared<State>(State{runtime, std::move(identity), std::move(options), std::move(memory), {}, {}})) {
}

Upgrader Upgrader::with_options(TransportOptions options) const {
  return {state_->runtime, state_->identity, std::move(options), state_->memory};
}
const KeyPair& Upgrader::identity() const noexcept {
  return state_->identity;
}
const TransportOptions& Upgrader::options() const noexcept {
  return state_->options;
}

ConnectionPtr multiplex(const Upgrader& upgrader, std::unique_ptr<RawConnection> raw, Role role, const PeerId& peer,
                        std::string_view security) {
  const auto& state = Handshakes::state(upgrader);
  auto channel = std::make_unique<NoiseChannel>(state.runtime, std::move(raw), std::nullopt, Bytes());
  return Handshakes::multiplexed(upgrader, std::move(channel), role, peer, security);
}

Task<Result<ConnectionPtr>> upgrade(Upgrader upgrader, std::unique_ptr<RawConnection> raw, Role role,
                                    std::optional<PeerId> expected) {
  const auto& state = Handshakes::state(upgrader);
  const TimePoint begin = state.runtime.now();
  const Deadline deadline = state.runtime.after(state.options.upgrade_timeout);
  const std::string address = raw->remote_address().text();
  auto secured = state.options.plaintext
                     ? co_await Handshakes::exchange_keys(state, std::move(raw), role, expected, deadline)
                     : co_await Handshakes::secure(state, std::move(raw), role, expected, deadline);
  if (!secured) co_return secured.error().with_context(address);
  if (secured->muxer.empty())
    if (auto chosen = co_await Handshakes::choose_muxer(state, *secured, deadline); !chosen)
      co_return chosen.error().with_context(address);
  state.runtime.local<TransportMetrics>().handshake_seconds.observe(to_seconds(state.runtime.now() - begin));
  co_return Handshakes::multiplexed(upgrader, std::move(secured->channel), secured->role, secured->remote_key.peer_id(),
                                    secured->security);
}

}  // namespace cohive::transport
