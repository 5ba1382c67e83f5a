// The Noise handshake against fixed vectors and against a peer that lies.
#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/proto/crypto.pb.h"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/identities.hpp"
#include "transport/noise.hpp"
#include "transport/noise_state.hpp"
#include "transport/raw_stream.hpp"

namespace cohive::transport {
namespace {

using crypto::Key32;
using crypto::X25519KeyPair;

// Computed by an independent implementation that completes handshakes with p2pd; all secrets count up from `first`.
constexpr std::string_view kMessage1 = "0020675dd574ed7789310b3d2e7681f3790b466c773b1521fecf36577958371ea52f";
constexpr std::string_view kMessage2 =
    "00d8605a725d2a4adfeeb1a29e17edd621c1b7593ee8cdbc44ac6c4ab6e2f805d23cf6cee5f1111678a2ffcc9db40937573bcf83b06f402bdd"
    "88"
    "f6108a67232108adcf6f23165ad83bb4aed993b02b9eb073ab502cd8596b5705c33b27f67670624f5dc0f17b7d2adc8bb660a4410c3210e505"
    "df"
    "623cfeecc8da78a99b2a9c3ce06d020334bfffbee618e92757066a30c497922f28a703c678dfb49204bac64bf962d3665be74d295f8ce13205"
    "1d"
    "3ee03f4c26b23d94d4359df63772b23f215f688a766cc764b6c3f3084887e73e7f64c49b479d31d5e4afc8cc";
constexpr std::string_view kMessage3 =
    "00b85243da933f3d72200be582808c0aa22058b27dc7760f0af85e2b96cb1ba4d34cef721a07ab7b78af7cca886dc357cc28a73c67edd50f06"
    "0f"
    "cc02ef1efb28db6e219a2f68a0310cbb6c7f36b4635572966ae7bc8c5f1cfd492cfbb53404d8ab2e106b05a39ce18aabd34a607cecbfa878fa"
    "55"
    "017bcffda67efc6e01e0f591e6909b5b2eed5d0f0d2eb03967d6bf25c4309e00e9b0b19a59d11dcab3027b87251df5113671e496af913e0cee"
    "45"
    "2c8fa35058e7a365c7394dd9";
constexpr std::string_view kHash = "c6167193fcc1c4ea8f0376ac87a6a03615dcbd89131d24e6cfb1cc1770104de7";
constexpr std::string_view kToResponder = "86123b8bc8fa5ada37562cd644116e5b6994abcfbfa66b19540f2d8780cbcf59";
constexpr std::string_view kToInitiator = "0c6cc243a14f7e119699be1a98df4d1a4295eb67b58e18cffb42192f34c5eae8";

Key32 counting(std::uint8_t first) {
  Key32 key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(first + i);
  return key;
}
/// Those of one side.
struct NoiseKeys {
  X25519KeyPair static_key = X25519KeyPair::generate(), ephemeral = X25519KeyPair::generate();
};
NoiseKeys keys_from(std::uint8_t static_first, std::uint8_t ephemeral_first) {
  return {X25519KeyPair::from_secret(counting(static_first)), X25519KeyPair::from_secret(counting(ephemeral_first))};
}
KeyPair identity_from(std::uint8_t first) {
  return KeyPair::ed25519_from_seed(counting(first));
}

Task<void> shake(Stream& stream, Role role, KeyPair identity, std::optional<PeerId> expected,
                 std::vector<std::string> muxers, Deadline deadline, NoiseKeys keys, Result<NoiseSession>& out,
                 bool offer_aes = false) {
  auto prepared = std::make_shared<NoiseIdentity>(identity, keys.static_key);
  out = co_await noise_handshake(stream, role, std::move(prepared), expected, {muxers, offer_aes}, deadline,
                                 keys.ephemeral);
}

class Noise : public ::testing::Test {
 protected:
  void begin(Role role, std::optional<PeerId> expected = std::nullopt, NoiseKeys keys = keys_from(0x40, 0x60),
             KeyPair identity = identity_from(0)) {
    raw_ = wire_.our_end();
    stream_.emplace(runtime_, *raw_);
    group_.spawn(shake(*stream_, role, identity, expected, {kYamux}, runtime_.after(15s), keys, session_));
    runtime_.run_ready();
  }
  void send(ByteView bytes) {
    wire_.send(bytes);
    runtime_.run_ready();
  }
  void send_framed(ByteView message) {
    Bytes framed{static_cast<std::uint8_t>(message.size() >> 8), static_cast<std::uint8_t>(message.size())};
    framed.insert(framed.end(), message.begin(), message.end());
    send(framed);
  }
  void expect_failure(std::string_view what, Errc code = Errc::handshake_failed) {
    ASSERT_TRUE(group_.empty()) << what;
    ASSERT_FALSE(session_) << what;
    EXPECT_EQ(session_.error(), code) << what << ": " << session_.error();
  }

  SimRuntime runtime_;
  test::Wire wire_{runtime_};
  std::unique_ptr<RawConnection> raw_;
  std::optional<RawStream> stream_;
  Result<NoiseSession> session_ = Error(cohive::Errc::internal);
  TaskGroup group_{runtime_};
};

TEST_F(Noise, InitiatorMatchesTheVectors) {
  begin(Role::initiator, identity_from(0x20).peer_id());
  EXPECT_EQ(to_hex(wire_.received()), kMessage1);
  send(from_hex(kMessage2));
  EXPECT_EQ(to_hex(wire_.received()), kMessage3);
  ASSERT_TRUE(session_) << session_.error();
  EXPECT_EQ(to_hex(session_->handshake_hash), kHash);
  EXPECT_EQ(to_hex(session_->send_key), kToResponder);
  EXPECT_EQ(to_hex(session_->receive_key), kToInitiator);
  EXPECT_EQ(session_->remote_key.peer_id(), identity_from(0x20).peer_id());
  EXPECT_EQ(session_->muxer, kYamux);
}

TEST_F(Noise, ResponderMatchesTheVectors) {
  begin(Role::responder, std::nullopt, keys_from(0x80, 0xa0), identity_from(0x20));
  for (std::uint8_t byte : from_hex(kMessage1)) send({&byte, 1});  // in as many pieces as can be
  EXPECT_EQ(to_hex(wire_.received()), kMessage2);
  send(from_hex(kMessage3));
  ASSERT_TRUE(session_) << session_.error();
  EXPECT_EQ(to_hex(session_->handshake_hash), kHash);
  EXPECT_EQ(to_hex(session_->receive_key), kToResponder);
  EXPECT_EQ(session_->remote_key.peer_id(), identity_from(0).peer_id());
}

TEST_F(Noise, BytesBehindTheHandshakeStayReadable) {
  begin(Role::initiator);
  Bytes both = from_hex(kMessage2);
  const Bytes early = from_hex("0015ab7bef6fc5425f");
  both.insert(both.end(), early.begin(), early.end());
  send(both);
  ASSERT_TRUE(session_);
  EXPECT_EQ(stream_->take_unread(), early);
}

TEST_F(Noise, AnyDamagedByteOfTheAnswerIsNoticed) {
  const Bytes good = from_hex(kMessage2);
  for (std::size_t at = 2; at < good.size(); at += 5) {
    wire_ = test::Wire(runtime_);
    begin(Role::initiator);
    Bytes bad = good;
    bad[at] ^= 0x10;
    send(bad);
    expect_failure("byte " + std::to_string(at));
  }
}

TEST_F(Noise, AnotherPeerThanExpectedIsNamed) {
  begin(Role::initiator, identity_from(0x77).peer_id());
  send(from_hex(kMessage2));
  expect_failure("mismatch", Errc::peer_mismatch);
  EXPECT_NE(session_.error().message().find(identity_from(0x77).peer_id().text()), std::string::npos);
  EXPECT_NE(session_.error().message().find(identity_from(0x20).peer_id().text()), std::string::npos);
}

TEST_F(Noise, LongMessageIsRefusedBeforeItIsRead) {
  begin(Role::responder);
  send(from_hex("2001"));
  expect_failure("8193 bytes");
}

TEST_F(Noise, ShortMessagesAreRefused) {
  for (std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{31}}) {
    wire_ = test::Wire(runtime_);
    begin(Role::responder);
    send_framed(Bytes(size, 1));
    expect_failure("first of " + std::to_string(size));
  }
  for (std::size_t size : {std::size_t{31}, std::size_t{32}, std::size_t{79}, std::size_t{80}, std::size_t{96}}) {
    wire_ = test::Wire(runtime_);
    begin(Role::initiator);
    send_framed(Bytes(size, 1));
    expect_failure("second of " + std::to_string(size));
  }
}

TEST_F(Noise, ZeroKeysAreRefused) {
  begin(Role::responder);
  send_framed(Bytes(32, 0));
  expect_failure("an all-zero ephemeral key yields an all-zero secret");
}

TEST_F(Noise, SilenceEndsAtTheDeadline) {
  begin(Role::responder);
  runtime_.run_for(16s);
  ASSERT_TRUE(group_.empty());
  EXPECT_EQ(session_.error(), cohive::Errc::timeout);
}

TEST_F(Noise, EndInTheMiddleIsAnError) {
  begin(Role::initiator);
  wire_.finish();
  runtime_.run_ready();
  ASSERT_TRUE(group_.empty());
  EXPECT_EQ(session_.error(), cohive::Errc::end_of_stream);
}

/// A responder that completes the key exchange properly and then says what the test wants in its payload.
class LyingResponder {
 public:
  LyingResponder(ByteView first_message) {
    std::copy_n(first_message.begin() + 2, 32, their_ephemeral_.begin());
    state_.mix_hash(their_ephemeral_);
    state_.mix_hash({});
  }
  Bytes answer(std::string_view payload) {
    Bytes out = to_bytes(ByteView(ephemeral_.public_));
    state_.mix_hash(out);
    EXPECT_TRUE(state_.mix_dh(ephemeral_.secret, their_ephemeral_));
    append(out, state_.encrypt_and_hash(static_.public_));
    EXPECT_TRUE(state_.mix_dh(static_.secret, their_ephemeral_));
    append(out, state_.encrypt_and_hash(as_bytes(payload)));
    return out;
  }
  static proto::NoiseHandshakePayload payload(const KeyPair& identity, const Key32& signed_key) {
    Bytes text = to_bytes("noise-libp2p-static-key:");
    text.insert(text.end(), signed_key.begin(), signed_key.end());
    const Bytes signature = identity.sign(text);
    proto::NoiseHandshakePayload message;
    message.set_identity_key(identity.public_key().protobuf());
    message.set_identity_sig(signature.data(), signature.size());
    return message;
  }
  const Key32& static_key() const { return static_.public_; }

 private:
  static void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }
  noise::SymmetricState state_;
  X25519KeyPair static_ = X25519KeyPair::generate();
  X25519KeyPair ephemeral_ = X25519KeyPair::generate();
  Key32 their_ephemeral_;
};

TEST_F(Noise, PayloadThatProvesNothingIsRefused) {
  const KeyPair honest = identity_from(0x20);
  const auto attempt = [&](std::string_view what, auto make_payload) {
    wire_ = test::Wire(runtime_);
    begin(Role::initiator);
    LyingResponder peer(wire_.received());
    send_framed(peer.answer(make_payload(peer)));
    expect_failure(what);
    EXPECT_TRUE(wire_.received().empty()) << "who we are is not told to a liar: " << what;
  };
  attempt("empty", [](auto&) { return std::string(); });
  attempt("not a protobuf", [](auto&) { return std::string("\xff\xff\xff\xff"); });
  attempt("signature over another static key",
          [&](auto&) { return LyingResponder::payload(honest, Key32{1}).SerializeAsString(); });
  attempt("somebody else's identity", [&](LyingResponder& peer) {
    auto message = LyingResponder::payload(identity_from(0x50), peer.static_key());
    message.set_identity_key(honest.public_key().protobuf());
    return message.SerializeAsString();
  });
  attempt("no signature", [&](LyingResponder& peer) {
    auto message = LyingResponder::payload(honest, peer.static_key());
    message.clear_identity_sig();
    return message.SerializeAsString();
  });
  attempt("unknown key type", [&](LyingResponder& peer) {
    auto message = LyingResponder::payload(honest, peer.static_key());
    message.set_identity_key(std::string("\x08\x09\x12\x01x"));
    return message.SerializeAsString();
  });
}

TEST_F(Noise, MuxerIsTheInitiatorsFirstThatBothHave) {
  const auto agreed = [&](std::vector<std::string> theirs) {
    wire_ = test::Wire(runtime_);
    begin(Role::initiator);
    LyingResponder peer(wire_.received());
    auto message = LyingResponder::payload(identity_from(0x20), peer.static_key());
    for (const auto& muxer : theirs) message.mutable_extensions()->add_stream_muxers(muxer);
    send_framed(peer.answer(message.SerializeAsString()));
    EXPECT_TRUE(session_) << session_.error();
    return session_->muxer;
  };
  EXPECT_EQ(agreed({"/mplex/6.7.0", kYamux}), kYamux);
  EXPECT_EQ(agreed({}), "") << "negotiated later";
  EXPECT_EQ(agreed({"/mplex/6.7.0"}), "");
  EXPECT_EQ(agreed(std::vector<std::string>(101, kYamux)), "") << "an endless list is ignored";
}

TEST_F(Noise, AesIsUsedWhenBothOfferItAndOnlyThen) {
  using crypto::Cipher;
  const auto agreed = [&](bool ours, bool theirs) {
    wire_ = test::Wire(runtime_);
    auto raw = wire_.our_end(), other_raw = wire_.other_end();
    RawStream stream(runtime_, *raw, {}), other(runtime_, *other_raw);
    Result<NoiseSession> initiator = Error(cohive::Errc::internal), responder = initiator;
    const auto limit = runtime_.after(15s);
    group_.spawn(shake(stream, Role::initiator, identity_from(0), std::nullopt, {}, limit, {}, initiator, ours));
    group_.spawn(shake(other, Role::responder, identity_from(1), std::nullopt, {}, limit, {}, responder, theirs));
    runtime_.run_ready();
    EXPECT_EQ(initiator.value().cipher, responder.value().cipher);
    return initiator.value().cipher;
  };
  EXPECT_EQ(agreed(true, true), Cipher::aes256_gcm);
  EXPECT_EQ(agreed(true, false), Cipher::chacha20_poly1305);
  EXPECT_EQ(agreed(false, true), Cipher::chacha20_poly1305);
  EXPECT_EQ(agreed(false, false), Cipher::chacha20_poly1305);
}

/// Both sides of one connection that both opened.
struct BothBegin : Noise {
  void shake_hands(Role ours, Role theirs, NoiseKeys our_keys = {}) {
    raw_ = wire_.our_end();
    other_raw_ = wire_.other_end();
    stream_.emplace(runtime_, *raw_);
    other_stream_.emplace(runtime_, *other_raw_);
    const auto limit = runtime_.after(15s);
    group_.spawn(shake(*stream_, ours, identity_from(0), std::nullopt, {}, limit, our_keys, session_));
    group_.spawn(shake(*other_stream_, theirs, identity_from(1), std::nullopt, {}, limit, {}, other_));
    runtime_.run_for(16s);
  }
  std::unique_ptr<RawConnection> other_raw_;
  std::optional<RawStream> other_stream_;
  Result<NoiseSession> other_ = Error(cohive::Errc::internal);
};

TEST_F(BothBegin, OneOfThemRespondsInTheEnd) {
  int first = 0;
  for (int i = 0; i < 20; ++i) {
    wire_ = test::Wire(runtime_);
    shake_hands(Role::either, Role::either);
    ASSERT_TRUE(session_) << session_.error();
    ASSERT_TRUE(other_) << other_.error();
    EXPECT_NE(session_->role, other_->role);
    EXPECT_EQ(session_->send_key, other_->receive_key);
    EXPECT_EQ(session_->receive_key, other_->send_key);
    EXPECT_EQ(session_->remote_key.peer_id(), identity_from(1).peer_id());
    first += session_->role == Role::initiator;
  }
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 20);
}

TEST_F(BothBegin, APeerThatOnlyRespondsIsTalkedToAsEver) {
  shake_hands(Role::either, Role::responder);
  ASSERT_TRUE(session_) << session_.error();
  EXPECT_EQ(session_->role, Role::initiator);
  EXPECT_EQ(other_->role, Role::responder);
}

TEST_F(BothBegin, APeerThatOnlyBeginsIsAnError) {
  shake_hands(Role::initiator, Role::initiator);
  EXPECT_EQ(session_.error(), Errc::handshake_failed);
  EXPECT_EQ(other_.error(), Errc::handshake_failed);
}

TEST_F(BothBegin, AnEchoIsNotTakenForAPeer) {
  raw_ = wire_.our_end();
  stream_.emplace(runtime_, *raw_);
  group_.spawn(shake(*stream_, Role::either, identity_from(0), std::nullopt, {}, runtime_.after(15s), {}, session_));
  for (int i = 0; i < 10; ++i) {
    runtime_.run_ready();
    wire_.send(wire_.received());
  }
  runtime_.run_for(16s);
  ASSERT_TRUE(group_.empty());
  EXPECT_FALSE(session_);
}

/// A signature of RSA takes a hundred times as long as the rest of a handshake, which any stranger may begin.
TEST_F(Noise, AnIdentitySignsOnceForAllItsHandshakes) {
  std::shared_ptr<const NoiseIdentity> prepared;
  std::optional<PeerId> id;
  {
    const KeyPair rsa = KeyPair::generate_rsa();
    id = rsa.peer_id();
    prepared = std::make_shared<NoiseIdentity>(rsa);
  }  // no private key is left to sign with
  for (int connection = 0; connection < 3; ++connection) {
    test::Wire wire(runtime_);
    auto raw = wire.our_end(), other_raw = wire.other_end();
    RawStream stream(runtime_, *raw), other(runtime_, *other_raw);
    Result<NoiseSession> dialler = Error(cohive::Errc::internal);
    TaskGroup group(runtime_);
    group.spawn(shake(stream, Role::initiator, identity_from(0), *id, {}, runtime_.after(15s), {}, dialler));
    group.spawn([](Stream& to, std::shared_ptr<const NoiseIdentity> identity, Deadline deadline) -> Task<void> {
      (void)co_await noise_handshake(to, Role::responder, std::move(identity), std::nullopt, {}, deadline);
    }(other, prepared, runtime_.after(15s)));
    runtime_.run_ready();
    ASSERT_TRUE(dialler) << dialler.error();
    EXPECT_EQ(dialler->remote_key.peer_id(), *id);
  }
}

TEST_F(Noise, RsaIdentitiesWorkOnBothSides) {
  const KeyPair rsa = KeyPair::generate_rsa();
  begin(Role::initiator, rsa.peer_id());
  auto other_raw = wire_.other_end();
  RawStream other(runtime_, *other_raw);
  Result<NoiseSession> responder = Error(cohive::Errc::internal);
  group_.spawn(shake(other, Role::responder, rsa, std::nullopt, {}, runtime_.after(15s), {}, responder));
  runtime_.run_ready();
  ASSERT_TRUE(session_) << session_.error();
  ASSERT_TRUE(responder) << responder.error();
  EXPECT_EQ(session_->remote_key.type(), KeyType::rsa);
  EXPECT_EQ(session_->handshake_hash, responder->handshake_hash);
  EXPECT_EQ(session_->send_key, responder->receive_key);
  EXPECT_EQ(session_->receive_key, responder->send_key);
}

}  // namespace
}  // namespace cohive::transport
