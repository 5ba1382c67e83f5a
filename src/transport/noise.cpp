#include "noise.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/proto/crypto.pb.h"
#include "cohive/transport/errors.hpp"
#include "noise_state.hpp"

namespace cohive::transport {
namespace {

constexpr std::string_view kSignaturePrefix = "noise-libp2p-static-key:";
constexpr std::size_t kMaxHandshakeMessage = 8 * 1024;
constexpr int kMaxMuxers = 100, kMaxCiphers = 16;
const std::string kAes256Gcm = "aes-256-gcm";
using crypto::Aead;
using crypto::Key32;

struct Payload {
  PublicKey key;
  std::vector<std::string> muxers;
  bool aes = false;
};

class Handshake {
 public:
  Handshake(Stream& stream, const KeyPair& identity, std::optional<PeerId> expected, std::vector<std::string> muxers,
            Deadline deadline, NoiseKeys keys, bool offer_aes)
      : stream_(stream),
        reader_(stream),
        identity_(identity),
        expected_(std::move(expected)),
        muxers_(std::move(muxers)),
        deadline_(deadline),
        keys_(keys),
        offer_aes_(offer_aes) {}

  Task<Result<NoiseSession>> as_initiator() {
    Bytes first = to_bytes(ByteView(keys_.ephemeral.public_));
    state_.mix_hash(first);
    state_.mix_hash({});
    auto sent = co_await send(std::move(first));
    if (!sent) co_return sent.error();

    auto message = co_await receive();
    if (!message) co_return message.error();
    ByteView rest = *message;
    Key32 remote_ephemeral, remote_static;
    if (!take_ephemeral(rest, remote_ephemeral)) co_return failed("short message");
    if (!state_.mix_dh(keys_.ephemeral.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    if (!take_static(rest, remote_static)) co_return failed("bad static key");
    if (!state_.mix_dh(keys_.ephemeral.secret, remote_static)) co_return failed("bad static key");
    auto remote = open_payload(rest, remote_static);
    if (!remote) co_return remote.error();

    Bytes third = state_.encrypt_and_hash(keys_.static_key.public_);
    if (!state_.mix_dh(keys_.static_key.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(third, state_.encrypt_and_hash(as_bytes(own_payload())));
    sent = co_await send(std::move(third));
    if (!sent) co_return sent.error();
    const auto [ours, theirs] = state_.split();
    co_return NoiseSession{remote->key, ours, theirs, state_.hash(), common(muxers_, remote->muxers), cipher(*remote)};
  }

  Task<Result<NoiseSession>> as_responder() {
    auto message = co_await receive();
    if (!message) co_return message.error();
    ByteView rest = *message;
    Key32 remote_ephemeral, remote_static;
    if (!take_ephemeral(rest, remote_ephemeral)) co_return failed("short message");
    if (!state_.decrypt_and_hash(rest)) co_return failed("bad first message");

    Bytes second = to_bytes(ByteView(keys_.ephemeral.public_));
    state_.mix_hash(second);
    if (!state_.mix_dh(keys_.ephemeral.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(second, state_.encrypt_and_hash(keys_.static_key.public_));
    if (!state_.mix_dh(keys_.static_key.secret, remote_ephemeral)) co_return failed("bad ephemeral key");
    append(second, state_.encrypt_and_hash(as_bytes(own_payload())));
    auto sent = co_await send(std::move(second));
    if (!sent) co_return sent.error();

    message = co_await receive();
    if (!message) co_return message.error();
    rest = *message;
    if (!take_static(rest, remote_static)) co_return failed("bad static key");
    if (!state_.mix_dh(keys_.ephemeral.secret, remote_static)) co_return failed("bad static key");
    auto remote = open_payload(rest, remote_static);
    if (!remote) co_return remote.error();
    const auto [theirs, ours] = state_.split();
    co_return NoiseSession{remote->key, ours, theirs, state_.hash(), common(remote->muxers, muxers_), cipher(*remote)};
  }

 private:
  static void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }
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
    Bytes text = to_bytes(kSignaturePrefix);
    text.insert(text.end(), keys_.static_key.public_.begin(), keys_.static_key.public_.end());
    const Bytes signature = identity_.sign(text);
    proto::NoiseHandshakePayload payload;
    payload.set_identity_key(identity_.public_key().protobuf());
    payload.set_identity_sig(signature.data(), signature.size());
    for (const auto& muxer : muxers_) payload.mutable_extensions()->add_stream_muxers(muxer);
    if (offer_aes_) payload.mutable_extensions()->add_record_ciphers(kAes256Gcm);
    return payload.SerializeAsString();
  }
  Result<Payload> open_payload(ByteView sealed, const Key32& remote_static) {
    const auto plain = state_.decrypt_and_hash(sealed);
    if (!plain) return failed("payload does not decrypt");
    proto::NoiseHandshakePayload message;
    if (!message.ParseFromArray(plain->data(), static_cast<int>(plain->size())))
      return failed("payload does not parse");
    auto key = PublicKey::from_protobuf(as_bytes(message.identity_key()));
    if (!key) return failed("identity key: " + key.error().message());
    Bytes text = to_bytes(kSignaturePrefix);
    text.insert(text.end(), remote_static.begin(), remote_static.end());
    if (!key->verify(text, as_bytes(message.identity_sig()))) return failed("bad identity signature");
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

  crypto::Cipher cipher(const Payload& remote) const {
    return offer_aes_ && remote.aes ? crypto::Cipher::aes256_gcm : crypto::Cipher::chacha20_poly1305;
  }

  Stream& stream_;
  StreamReader reader_;
  const KeyPair& identity_;
  std::optional<PeerId> expected_;
  std::vector<std::string> muxers_;
  Deadline deadline_;
  NoiseKeys keys_;
  bool offer_aes_;
  noise::SymmetricState state_;
};

}  // namespace

Task<Result<NoiseSession>> noise_handshake(Stream& stream, Role role, KeyPair identity, std::optional<PeerId> expected,
                                           std::vector<std::string> muxers, Deadline deadline, NoiseKeys keys,
                                           bool offer_aes) {
  Handshake handshake(stream, identity, std::move(expected), std::move(muxers), deadline, keys, offer_aes);
  if (role == Role::initiator) co_return co_await handshake.as_initiator();
  co_return co_await handshake.as_responder();
}

}  // namespace cohive::transport
