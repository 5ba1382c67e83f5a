// TLS handshakes with a peer that OpenSSL plays directly, and that does what ours never would.
#include "transport/tls_channel.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/identities.hpp"

namespace cohive::transport {
namespace {

/// A client or server that the test sets up as it likes.
class RawPeer {
 public:
  explicit RawPeer(test::Wire& wire) : wire_(wire), context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_cert_verify_callback(context_, [](X509_STORE_CTX*, void*) { return 1; }, nullptr);
  }
  ~RawPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL_CTX* context() { return context_; }
  void use(const TlsCertificate& certificate) {
    SSL_CTX_use_certificate(context_, certificate.x509.get());
    SSL_CTX_use_PrivateKey(context_, certificate.key.get());
  }
  /// Protocols as on the wire: each with its length in front.
  void offer(std::string protocols) {
    SSL_CTX_set_alpn_protos(context_, reinterpret_cast<const unsigned char*>(protocols.data()),
                            static_cast<unsigned>(protocols.size()));
  }
  void start(bool client) {
    ssl_ = SSL_new(context_);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, in_, out_);
    client ? SSL_set_connect_state(ssl_) : SSL_set_accept_state(ssl_);
  }
  /// Lets bytes pass both ways until both sides are silent.
  void pump(SimRuntime& runtime) {
    for (int round = 0; round < 20; ++round) {
      runtime.run_ready();
      const Bytes ours = wire_.received();
      BIO_write(in_, ours.data(), static_cast<int>(ours.size()));
      char buffer[4096];
      if (!SSL_is_init_finished(ssl_)) SSL_do_handshake(ssl_);
      const int count = SSL_read(ssl_, buffer, sizeof buffer);
      if (count > 0) text_.append(buffer, static_cast<std::size_t>(count));
      Bytes theirs(static_cast<std::size_t>(BIO_ctrl_pending(out_)));
      BIO_read(out_, theirs.data(), static_cast<int>(theirs.size()));
      if (!theirs.empty()) wire_.send(theirs);
    }
    runtime.run_ready();
  }
  void say(std::string_view text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  /// Asks for new keys so many times.
  void renew_keys(int times) {
    for (int i = 0; i < times; ++i) {
      SSL_key_update(ssl_, SSL_KEY_UPDATE_REQUESTED);
      SSL_do_handshake(ssl_);
    }
  }
  SSL* ssl() { return ssl_; }
  /// What it has heard.
  const std::string& text() const { return text_; }

 private:
  test::Wire& wire_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  BIO *in_ = nullptr, *out_ = nullptr;
  std::string text_;
};

class Tls : public ::testing::Test {
 protected:
  void begin(Role role, std::optional<PeerId> expected = std::nullopt) {
    channel_.emplace(runtime_, wire_.our_end(), std::make_shared<TlsIdentity>(identity(1)), role, Bytes());
    group_.spawn(shake(*channel_, std::move(expected), runtime_.after(15s), session_));
  }
  void connect() {
    peer_.use(make_certificate(identity(2)));
    peer_.start(true);
    begin(Role::responder);
    peer_.pump(runtime_);
    ASSERT_TRUE(session_) << session_.error();
  }
  void expect_failure(std::string_view why, Errc code = Errc::handshake_failed) {
    ASSERT_TRUE(group_.empty()) << why;
    ASSERT_FALSE(session_) << why;
    EXPECT_EQ(session_.error(), code) << session_.error();
    EXPECT_NE(session_.error().message().find(why), std::string::npos) << session_.error();
  }
  static Task<void> shake(TlsChannel& channel, std::optional<PeerId> expected, Deadline deadline,
                          Result<TlsSession>& out) {
    out = co_await channel.handshake(expected, {kYamux}, deadline);
  }

  SimRuntime runtime_;
  test::Wire wire_{runtime_};
  std::optional<TlsChannel> channel_;
  RawPeer peer_{wire_};
  Result<TlsSession> session_ = Error(cohive::Errc::internal);
  TaskGroup group_{runtime_};
};

TEST_F(Tls, BytesPassBothWaysInRecordsOfAnySize) {
  peer_.use(make_certificate(identity(2)));
  peer_.offer("\x0c/yamux/1.0.0");
  peer_.start(true);
  begin(Role::responder);
  peer_.pump(runtime_);
  ASSERT_TRUE(session_) << session_.error();
  EXPECT_EQ(session_->remote_key.peer_id(), identity(2).peer_id());
  EXPECT_EQ(session_->muxer, kYamux);

  peer_.say("hello");
  peer_.pump(runtime_);
  EXPECT_EQ(as_text(runtime_.run(channel_->receive())->view()), "hello");
  const std::string large(50'000, 'x');
  const ByteView parts[] = {as_bytes("head"), {}, as_bytes(large)};
  channel_->append(parts);
  while (channel_->queued() > 0) ASSERT_TRUE(runtime_.run(channel_->flush()));
  for (int i = 0; i < 20; ++i) peer_.pump(runtime_);
  EXPECT_EQ(peer_.text(), "head" + large);
  wire_.finish();
  EXPECT_TRUE(runtime_.run(channel_->receive())->empty()) << "the end";
}

TEST_F(Tls, TheMuxerIsTheClientsFirstThatWeKnow) {
  const auto agreed = [&](std::string offered) -> std::optional<std::string> {
    wire_ = test::Wire(runtime_);
    RawPeer peer(wire_);
    peer.use(make_certificate(identity(2)));
    if (!offered.empty()) peer.offer(std::move(offered));
    peer.start(true);
    begin(Role::responder);
    peer.pump(runtime_);
    return session_ ? std::optional(session_->muxer) : std::nullopt;
  };
  EXPECT_EQ(agreed("\x0c/mplex/6.7.0\x0c/yamux/1.0.0"), kYamux);
  EXPECT_EQ(agreed("\x06libp2p"), "") << "negotiated inside";
  EXPECT_EQ(agreed("\x06libp2p\x0c/yamux/1.0.0"), "");
  EXPECT_EQ(agreed(""), "") << "a peer without ALPN";
  EXPECT_EQ(agreed("\x0c/mplex/6.7.0"), std::nullopt);
}

TEST_F(Tls, AServerThatAgreesOnNothingLeavesTheMuxerForLater) {
  peer_.use(make_certificate(identity(2)));
  peer_.start(false);  // answers no ALPN
  begin(Role::initiator, identity(2).peer_id());
  peer_.pump(runtime_);
  ASSERT_TRUE(session_) << session_.error();
  EXPECT_EQ(session_->muxer, "");
}

TEST_F(Tls, AnotherPeerThanExpectedIsNamedAndHearsAnAlert) {
  peer_.use(make_certificate(identity(2)));
  peer_.start(false);
  begin(Role::initiator, identity(9).peer_id());
  peer_.pump(runtime_);
  expect_failure(identity(2).peer_id().text(), Errc::peer_mismatch);
  EXPECT_FALSE(SSL_is_init_finished(peer_.ssl()));
}

TEST_F(Tls, APeerWithoutACertificateIsRefused) {
  peer_.start(true);
  begin(Role::responder);
  peer_.pump(runtime_);
  expect_failure("tls");
}

TEST_F(Tls, AChainOfCertificatesIsRefused) {
  peer_.use(make_certificate(identity(2)));
  auto second = make_certificate(identity(3));
  SSL_CTX_add_extra_chain_cert(peer_.context(), second.x509.release());
  peer_.start(true);
  begin(Role::responder);
  peer_.pump(runtime_);
  expect_failure("not exactly one certificate");
}

TEST_F(Tls, ACertificateThatProvesNothingIsRefused) {
  auto certificate = make_certificate(identity(2));
  X509_EXTENSION_free(X509_delete_ext(certificate.x509.get(), 0));
  X509_sign(certificate.x509.get(), certificate.key.get(), EVP_sha256());
  peer_.use(certificate);
  peer_.start(true);
  begin(Role::responder);
  peer_.pump(runtime_);
  expect_failure("names no libp2p key");
}

TEST_F(Tls, OlderVersionsAreRefused) {
  peer_.use(make_certificate(identity(2)));
  SSL_CTX_set_max_proto_version(peer_.context(), TLS1_2_VERSION);
  peer_.start(true);
  begin(Role::responder);
  peer_.pump(runtime_);
  expect_failure("tls");
}

TEST_F(Tls, GarbageSilenceAndAnEarlyEndAreErrors) {
  begin(Role::responder);
  wire_.send(Bytes(100, 0x55));
  runtime_.run_ready();
  expect_failure("tls");

  wire_ = test::Wire(runtime_);
  begin(Role::responder);
  runtime_.run_for(16s);
  EXPECT_EQ(session_.error(), cohive::Errc::timeout);

  wire_ = test::Wire(runtime_);
  begin(Role::initiator);
  wire_.finish();
  runtime_.run_ready();
  ASSERT_TRUE(group_.empty());
  EXPECT_EQ(session_.error(), cohive::Errc::end_of_stream);
}

TEST_F(Tls, ADamagedRecordEndsTheConnection) {
  connect();
  wire_.send(from_hex("170303001400112233445566778899aabbccddeeff00112233"));
  EXPECT_EQ(runtime_.run(channel_->receive()).error(), Errc::decryption_failed);
}

TEST_F(Tls, ARecordThatCannotBeEncryptedEndsTheConnection) {
  connect();
  wire_.send(from_hex("170303001400112233445566778899aabbccddeeff00112233"));
  EXPECT_EQ(runtime_.run(channel_->receive()).error(), Errc::decryption_failed);
  EXPECT_FALSE(wire_.closed_by_us());
  const std::size_t before = channel_->queued();
  const ByteView frame[] = {as_bytes("lost")};
  channel_->append(frame);  // OpenSSL takes nothing after a fatal error
  EXPECT_TRUE(wire_.closed_by_us());
  channel_->append(frame);
  EXPECT_EQ(channel_->queued(), before);
  EXPECT_EQ(runtime_.run(channel_->receive()).error(), cohive::Errc::closed);
}

TEST_F(Tls, KeysAreRenewedWhenThePeerAsks) {
  connect();
  peer_.renew_keys(3);
  peer_.say("hello");
  peer_.pump(runtime_);
  EXPECT_EQ(as_text(runtime_.run(channel_->receive())->view()), "hello");
  const ByteView answer[] = {as_bytes("answer")};
  channel_->append(answer);
  while (channel_->queued() > 0) ASSERT_TRUE(runtime_.run(channel_->flush()));
  peer_.pump(runtime_);
  EXPECT_EQ(peer_.text(), "answer") << "under the new keys";
}

TEST_F(Tls, APeerThatRenewsKeysWithoutEndIsCutOff) {
  connect();
  peer_.renew_keys(2000);
  peer_.say("hello");
  peer_.pump(runtime_);
  EXPECT_EQ(runtime_.run(channel_->receive()).error(), cohive::Errc::limit_exceeded);
  EXPECT_LT(channel_->queued(), 1024) << "answers wait for a peer that may not read";
}

TEST_F(Tls, NoTicketsAreSent) {
  connect();
  EXPECT_FALSE(SSL_SESSION_is_resumable(SSL_get_session(peer_.ssl())));
}

}  // namespace
}  // namespace cohive::transport
