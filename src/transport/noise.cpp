#include "noise.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/proto/crypto.pb.h"
#include "cohive/transport/errors.hpp"
#include "core/detail/bounded_parse.hpp"
#include "noise_state.hpp"

namespace cohive::transport {
namespace {

constexpr std::string_view kSignaturePrefix = "noise-libp2p-static-key:";
constexpr std::size_t kMaxHandshakeMessage = 8 * 1024;
constexpr int kMaxMuxers = 100, kMaxCiphers = 16;
constexpr std::size_t kMaxPayloadFields = 1024;
const std::string kAes256Gcm = "aes-256-gcm";
using crypto::Aead;
using crypto::Key32;

/// What an identity key signs.
Bytes signed_text(const Key32& static_key) {
  Bytes text = to_bytes(kSignaturePrefix);
  text.insert(text.end(), static_key.begin(), static_key.end());
  return text;
}

struct Payload {
  PublicKey key;
  std::vector<std::string> muxers;
  bool aes = false;
};

class Handshake {
 public:
  Handshake(Stream& stream, const NoiseIdentity& identity, std::optional<PeerId> expected, const NoiseOffer& offer,
            Deadline deadline, const crypto::X25519KeyPair& ephemeral)
      : stream_(stream),
        reader_(stream),
        identity_(identity),
        expected_(std::move(expected)),
        offer_(offer),
        deadline_(deadline),
        ephemeral_(ephemeral) {}

  /// \param or_responder  after the other side has begun, too
  Task<Result<NoiseSession>> as_initiator(bool or_responder) {
    Bytes first = to_bytes(ByteView(ephemeral_.public_));
    state_.mix_hash(first);
    state_.mix_hash({});
    auto sent = co_await send(std::move(first));
    if (!sent) co_return sent.error();

    auto message = co_await receive();
    if (!message) co_return message.error();
    if (or_responder && is_first(*message)) {
      if (must_respond(*message)) {
        state_ = {};
        auto answered = co_await answer(std::move(*message));
        if (!answered) co_return both_began(answered.error());
        co_return answered;
      }
      message = co_await receive();
      if (!message) co_return both_began(message.error());
    }
    ByteView rest = *message;
    Key32 remote_ephemeral, remote_static;
    if (!take_ephemeral(rest, remote_ephemeral)) co_return failed("short message");
    if (!state_.mix_dh(ephemeral_.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    if (!take_static(rest, remote_static)) co_return failed("bad static key");
    if (!state_.mix_dh(ephemeral_.secret, remote_static)) co_return failed("bad static key");
    auto remote = open_payload(rest, remote_static);
    if (!remote) co_return remote.error();

    Bytes third = state_.encrypt_and_hash(identity_.static_key.public_);
    if (!state_.mix_dh(identity_.static_key.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(third, state_.encrypt_and_hash(as_bytes(own_payload())));
    sent = co_await send(std::move(third));
    if (!sent) co_return sent.error();
    const auto [ours, theirs] = state_.split();
    co_return session(Role::initiator, *remote, ours, theirs);
  }

  Task<Result<NoiseSession>> as_responder() {
    auto message = co_await receive();
    if (!message) co_return message.error();
    co_return co_await answer(std::move(*message));
  }

 private:
  /// What a responder does once it has the first message.
  Task<Result<NoiseSession>> answer(Bytes first) {
    ByteView rest = first;
    Key32 remote_ephemeral, remote_static;
    if (!take_ephemeral(rest, remote_ephemeral)) co_return failed("short message");
    if (!state_.decrypt_and_hash(rest)) co_return failed("bad first message");

    Bytes second = to_bytes(ByteView(ephemeral_.public_));
    state_.mix_hash(second);
    if (!state_.mix_dh(ephemeral_.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(second, state_.encrypt_and_hash(identity_.static_key.public_));
    if (!state_.mix_dh(identity_.static_key.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(second, state_.encrypt_and_hash(as_bytes(own_payload())));
    auto sent = co_await send(std::move(second));
    if (!sent) co_return sent.error();

    auto third = co_await receive();
    if (!third) co_return third.error();
    rest = *third;
    if (!take_static(rest, remote_static)) co_return failed("bad static key");
    if (!state_.mix_dh(ephemeral_.secret, remote_static)) co_return failed("bad static key");
    auto remote = open_payload(rest, remote_static);
    if (!remote) co_return remote.error();
    const auto [theirs, ours] = state_.split();
    co_return session(Role::responder, *remote, ours, theirs);
  }

  /// A second message has a static key and a payload behind its ephemeral key.
  static bool is_first(const Bytes& message) { return message.size() == Key32().size(); }
  bool must_respond(const Bytes& their_ephemeral) const {
    return std::lexicographical_compare(their_ephemeral.begin(), their_ephemeral.end(), ephemeral_.public_.begin(),
                                        ephemeral_.public_.end());
  }
  NoiseSession session(Role role, const Payload& remote, const Key32& send_key, const Key32& receive_key) const {
    const bool began = role == Role::initiator;
    return {remote.key,
            role,
            send_key,
            receive_key,
            state_.hash(),
            began ? common(offer_.muxers, remote.muxers) : common(remote.muxers, offer_.muxers),
            offer_.aes && remote.aes ? crypto::Cipher::aes256_gcm : crypto::Cipher::chacha20_poly1305};
  }
  static void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }
  /// The other implementations go on as if we had responded, and give up.
  static Error both_began(const Error& error) { return Error(Errc::both_began, error.message()); }
  Error failed(std::string why) const {
    Error error(Errc::handshake_failed, "noise: " + std::move(why));
    return expected_ ? error.with_peer(*expected_) : error;
  }
  Task<Result<>> send(Bytes message) {
    const std::uint8_t length[] = {static_cast<std::uint8_t>(message.size() >> 8),
                                   static_cast<std::uint8_t>(message.size())};
    const ByteView parts[] = {length, message};
    co_return co_await stream_.write(std::span<const ByteView>(parts), deadline_);
  }
  Task<Result<Bytes>> receive() {
    auto header = co_await reader_.read_exactly(2, deadline_);
    if (!header) co_return header.error().with_context("noise handshake");
    const std::size_t length = static_cast<std::size_t>((*header)[0]) << 8 | (*header)[1];
    if (length > kMaxHandshakeMessage) co_return failed("message too long");
    auto message = co_await reader_.read_exactly(length, deadline_);
    if (!message) co_return message.error().with_context("noise handshake");
    co_return message;
  }
  bool take_ephemeral(ByteView& rest, Key32& key) {
    if (rest.size() < key.size()) return false;
    std::copy_n(rest.begin(), key.size(), key.begin());
    rest = rest.subspan(key.size());
    state_.mix_hash(key);
    return true;
  }
  bool take_static(ByteView& rest, Key32& key) {
    const std::size_t size = key.size() + Aead::kTagSize;
    if (rest.size() < size) return false;
    const auto plain = state_.decrypt_and_hash(rest.first(size));
    if (!plain) return false;
    std::copy(plain->begin(), plain->end(), key.begin());
    rest = rest.subspan(size);
    return true;
  }
  std::string own_payload() const {
    proto::NoiseHandshakePayload payload;
    payload.set_identity_key(identity_.public_key);
    payload.set_identity_sig(identity_.signature.data(), identity_.signature.size());
    for (const auto& muxer : offer_.muxers) payload.mutable_extensions()->add_stream_muxers(muxer);
    if (offer_.aes) payload.mutable_extensions()->add_record_ciphers(kAes256Gcm);
    return payload.SerializeAsString();
  }
  Result<Payload> open_payload(ByteView sealed, const Key32& remote_static) {
    const auto plain = state_.decrypt_and_hash(sealed);
    if (!plain) return failed("payload does not decrypt");
    proto::NoiseHandshakePayload message;
    if (!parse_bounded(message, *plain, kMaxPayloadFields)) return failed("payload does not parse");
    auto key = PublicKey::from_protobuf(as_bytes(message.identity_key()));
    if (!key) return failed("identity key: " + key.error().message());
    if (!key->verify(signed_text(remote_static), as_bytes(message.identity_sig())))
      return failed("bad identity signature");
    if (expected_ && key->peer_id() != *expected_)
      return Error(Errc::peer_mismatch, "expected " + expected_->text() + ", " + key->peer_id().text() + " answered");
    Payload payload{std::move(*key), {}};
    const auto& ciphers = message.extensions().record_ciphers();
    payload.aes =
        ciphers.size() <= kMaxCiphers && std::find(ciphers.begin(), ciphers.end(), kAes256Gcm) != ciphers.end();
    const auto& muxers = message.extensions().stream_muxers();
    if (muxers.size() <= kMaxMuxers) payload.muxers.assign(muxers.begin(), muxers.end());
    return payload;
  }
  /// The initiator's first choice that the responder also has.
  static std::string common(const std::vector<std::string>& initiator, const std::vector<std::string>& responder) {
    for (const auto& muxer : initiator)
      if (std::find(responder.begin(), responder.end(), muxer) != responder.end()) return muxer;
    return {};
  }

  Stream& stream_;
  StreamReader reader_;
  const NoiseIdentity& identity_;
  std::optional<PeerId> expected_;
  const NoiseOffer& offer_;
  Deadline deadline_;
  const crypto::X25519KeyPair& ephemeral_;
  noise::SymmetricState state_;
};

}  // namespace

NoiseIdentity::NoiseIdentity(const KeyPair& identity, crypto::X25519KeyPair key)
    : static_key(key),
      public_key(identity.public_key().protobuf()),
      signature(identity.sign(signed_text(static_key.public_))) {}

Task<Result<NoiseSession>> noise_handshake(Stream& stream, Role role, std::shared_ptr<const NoiseIdentity> identity,
                                           std::optional<PeerId> expected, NoiseOffer offer, Deadline deadline,
                                           crypto::X25519KeyPair ephemeral) {
  Handshake handshake(stream, *identity, std::move(expected), offer, deadline, ephemeral);
  if (role == Role::responder) co_return co_await handshake.as_responder();
  co_return co_await handshake.as_initiator(role == Role::either);
}

}  // namespace cohive::transport
