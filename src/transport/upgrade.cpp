// Turns a raw connection into an authenticated, multiplexed one.
//   multistream: /noise;  Noise XX;  yamux at once when both listed it in the handshake, else multistream:
//   /yamux/1.0.0.
// Source: libp2p wire spec, sections 2.2, 3.1 and 4.
#include "cohive/transport/upgrade.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "noise.hpp"
#include "raw_stream.hpp"
#include "yamux.hpp"

namespace cohive::transport {
namespace {

const std::string kNoise = "/noise";
const std::string kYamux = "/yamux/1.0.0";
constexpr std::size_t kMaxPlainKey = 1024;

/// multistream over the encrypted channel, for peers without the muxer extension.
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

struct Secured {
  PublicKey remote_key;
  std::unique_ptr<SecureChannel> channel;
};

Task<Result<Secured>> secure_with_noise(Runtime& runtime, std::unique_ptr<RawConnection> raw, Role role,
                                        KeyPair identity, std::optional<PeerId> expected, bool aes, Deadline deadline) {
  RawStream stream(runtime, *raw, expected.value_or(PeerId()));
  auto agreed = role == Role::initiator
                    ? co_await select_one_of(stream, {kNoise}, deadline)
                    : co_await answer_selection(stream, [](std::string_view p) { return p == kNoise; }, deadline);
  if (!agreed) co_return agreed.error().with_context("security");
  auto session =
      co_await noise_handshake(stream, role, identity, expected, {kYamux}, deadline, {}, aes && crypto::has_fast_aes());
  if (!session) co_return session.error();
  const PeerId peer = session->remote_key.peer_id();
  auto channel = std::make_unique<SecureChannel>(
      runtime, std::move(raw), SecureChannel::Keys{session->send_key, session->receive_key, session->cipher},
      stream.take_unread());
  if (session->muxer.empty()) {
    ChannelStream inside(runtime, *channel, peer);
    auto muxer = role == Role::initiator
                     ? co_await select_one_of(inside, {kYamux}, deadline)
                     : co_await answer_selection(inside, [](std::string_view p) { return p == kYamux; }, deadline);
    if (!muxer) co_return muxer.error().with_context("muxer");
    if (auto early = inside.take_unread(); !early.empty()) channel->unread(std::move(early));
  }
  co_return Secured{std::move(session->remote_key), std::move(channel)};
}

/// Simulations of thousands of peers skip the cipher: both sides just say who they are.
Task<Result<Secured>> exchange_keys(Runtime& runtime, std::unique_ptr<RawConnection> raw, KeyPair identity,
                                    std::optional<PeerId> expected, Deadline deadline) {
  RawStream stream(runtime, *raw, expected.value_or(PeerId()));
  auto sent = co_await write_message(stream, as_bytes(identity.public_key().protobuf()), deadline);
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
  co_return Secured{std::move(*remote),
                    std::make_unique<SecureChannel>(runtime, std::move(raw), std::nullopt, std::move(early))};
}

}  // namespace

Task<Result<ConnectionPtr>> upgrade(Runtime& runtime, std::unique_ptr<RawConnection> raw, Role role, KeyPair identity,
                                    std::optional<PeerId> expected, TransportOptions options, bool plaintext) {
  const Deadline deadline = runtime.after(options.upgrade_timeout);
  const std::string address = raw->remote_address().text();
  auto secured =
      plaintext ? co_await exchange_keys(runtime, std::move(raw), identity, expected, deadline)
                : co_await secure_with_noise(runtime, std::move(raw), role, identity, expected, options.aes, deadline);
  if (!secured) co_return secured.error().with_context(address);
  co_return ConnectionPtr(std::make_unique<YamuxConnection>(runtime, std::move(secured->channel), role,
                                                            std::move(secured->remote_key), options));
}

}  // namespace cohive::transport
