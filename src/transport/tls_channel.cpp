#include "tls_channel.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <stdexcept>

#include "cohive/core/combine.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

constexpr std::string_view kMuxerInside = "libp2p";  // the ALPN of a peer that agrees on the muxer later
constexpr std::size_t kMaxRecord = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr long kMaxCertificate = 16 * 1024;  // an RSA identity of 8192 bits takes about 4 KiB
constexpr std::size_t kMaxTlsRead = 128 * 1024;
// After the handshake a peer may send tickets and renew keys. Each such message costs us a derivation of keys and an
// answer, so few may come with so many bytes: implementations renew keys after gigabytes.
constexpr std::size_t kMaxLateMessages = 16;
constexpr std::uint64_t kLateMessagesPer = 1024 * 1024;

void require_tls(bool success) {
  if (!success) throw std::runtime_error("setting up TLS failed");
}

/// Protocols as ALPN writes them: each with its length in front.
std::string alpn_list(const std::vector<std::string>& muxers) {
  std::string list;
  const auto add = [&list](std::string_view name) {
    list += static_cast<char>(name.size());
    list += name;
  };
  for (const auto& muxer : muxers) add(muxer);
  add(kMuxerInside);
  return list;
}

}  // namespace

/// What OpenSSL calls.
struct TlsCallbacks {
  static TlsChannel& channel_of(const SSL* ssl) { return *static_cast<TlsChannel*>(SSL_get_app_data(ssl)); }
  static TlsChannel& channel_of(BIO* bio) { return *static_cast<TlsChannel*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* bytes, int size) {
    std::copy_n(bytes, size, channel_of(bio).extend(static_cast<std::size_t>(size)));
    return size;
  }
  static int read(BIO* bio, char* into, int size) {
    Slice& input = channel_of(bio).input_;
    BIO_clear_retry_flags(bio);
    if (channel_of(bio).over_limit()) return -1;  // without a retry: OpenSSL gives up
    if (input.empty()) {
      BIO_set_retry_read(bio);
      return -1;
    }
    const std::size_t count = std::min(input.size(), static_cast<std::size_t>(size));
    std::copy_n(input.data(), count, into);
    input.remove_prefix(count);
    return static_cast<int>(count);
  }
  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }
  static const BIO_METHOD* bio_method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cohive connection");
      require_tls(made && BIO_meth_set_write(made, write) && BIO_meth_set_read(made, read) &&
                  BIO_meth_set_ctrl(made, control) && BIO_meth_set_create(made, create));
      return made;
    }();
    return method;
  }

  /// Counts the handshake messages that come after the handshake.
  static void message(int sent, int, int kind, const void*, std::size_t, SSL* ssl, void*) {
    if (!sent && kind == SSL3_RT_HANDSHAKE) channel_of(ssl).count_late_message();
  }

  /// In place of OpenSSL's verification of chains: there is one certificate, and it signs itself.
  static int verify(X509_STORE_CTX* store, void*) {
    const auto* ssl = static_cast<const SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    TlsChannel& channel = channel_of(ssl);
    const auto* chain = X509_STORE_CTX_get0_untrusted(store);
    const X509* certificate = X509_STORE_CTX_get0_cert(store);
    if (!certificate || (chain && sk_X509_num(chain) != 1)) {
      channel.remote_key_ = Error(Errc::handshake_failed, "tls: not exactly one certificate");
    } else {
      channel.remote_key_ = verify_certificate(*certificate, channel.runtime_.wall_time());
    }
    auto& key = *channel.remote_key_;
    if (key && channel.expected_ && key->peer_id() != *channel.expected_)
      key = Error(Errc::peer_mismatch,
                  "expected " + channel.expected_->text() + ", " + key->peer_id().text() + " answered");
    if (!key) X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
    return key ? 1 : 0;
  }

  /// The client's first choice that we know.
  static int choose_protocol(SSL* ssl, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                             unsigned int offered_size, void*) {
    const auto& muxers = channel_of(ssl).muxers_;
    ByteView rest(offered, offered_size);
    while (!rest.empty() && rest.size() > rest[0]) {
      const ByteView name = rest.subspan(1, rest[0]);
      if (as_text(name) == kMuxerInside || std::find(muxers.begin(), muxers.end(), as_text(name)) != muxers.end()) {
        *chosen = name.data();
        *size = rest[0];
        return SSL_TLSEXT_ERR_OK;
      }
      rest = rest.subspan(name.size() + 1);
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
};

TlsIdentity::TlsIdentity(TlsCertificate certificate) : context_(SSL_CTX_new(TLS_method())) {
  SSL_CTX* context = context_.get();
  require_tls(context && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) &&
              SSL_CTX_use_certificate(context, certificate.x509.get()) &&
              SSL_CTX_use_PrivateKey(context, certificate.key.get()) && SSL_CTX_set_num_tickets(context, 0));
  if (crypto::has_fast_aes())
    require_tls(SSL_CTX_set_ciphersuites(context,
                                         "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"));
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context, kMaxCertificate);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(context, TlsCallbacks::verify, nullptr);
  SSL_CTX_set_alpn_select_cb(context, TlsCallbacks::choose_protocol, nullptr);
}

TlsChannel::TlsChannel(Runtime& runtime, std::unique_ptr<RawConnection> raw,
                       std::shared_ptr<const TlsIdentity> identity, Role role, Bytes early)
    : SecureChannel(std::move(raw)),
      runtime_(runtime),
      identity_(std::move(identity)),
      ssl_(SSL_new(identity_->context())),
      input_(Slice::copy_of(early)),
      read_size_(kMinRead) {
  BIO* bio = BIO_new(TlsCallbacks::bio_method());
  require_tls(ssl_ && bio);
  BIO_set_data(bio, this);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  role == Role::responder ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
}

Task<Result<TlsSession>> TlsChannel::handshake(std::optional<PeerId> expected, std::vector<std::string> muxers,
                                               Deadline deadline) {
  expected_ = std::move(expected);
  muxers_ = std::move(muxers);
  const std::string offered = alpn_list(muxers_);
  // Returns 0 on success, unlike the other functions of OpenSSL.
  require_tls(SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(offered.data()),
                                  static_cast<unsigned>(offered.size())) == 0);
  auto done = co_await within(runtime_, deadline, shake_hands(), "tls handshake");
  if (!done) co_return done.error();
  if (!remote_key_ || !*remote_key_) co_return Error(Errc::handshake_failed, "tls: the peer showed no certificate");
  SSL_set_msg_callback(ssl_.get(), TlsCallbacks::message);
  co_return TlsSession{**remote_key_, agreed_muxer()};
}

Task<Result<>> TlsChannel::shake_hands() {
  for (;;) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    const int code = SSL_get_error(ssl_.get(), result);
    const Error reason = result == 1 || code == SSL_ERROR_WANT_READ ? Error() : failure();
    // Also after a failure: an alert tells the peer why.
    while (queued() > 0)
      if (auto sent = co_await flush(); !sent) co_return sent.error().with_context("tls handshake");
    if (result == 1) co_return ok();
    if (code != SSL_ERROR_WANT_READ) co_return reason;
    auto more = co_await read_more();
    if (!more) co_return more.error().with_context("tls handshake");
    if (!*more) co_return Error(cohive::Errc::end_of_stream, "tls handshake");
  }
}

/// Why OpenSSL gave up. What we found wrong with the certificate says more than its alert.
Error TlsChannel::failure() const {
  if (remote_key_ && !*remote_key_) return remote_key_->error();
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  return Error(Errc::handshake_failed, std::string("tls: ") + (reason ? reason : "unexpected end"));
}

std::string TlsChannel::agreed_muxer() const {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &size);
  const std::string agreed(reinterpret_cast<const char*>(name), size);
  return agreed == kMuxerInside ? std::string() : agreed;
}

void TlsChannel::count_late_message() noexcept {
  if (bytes_in_ >= late_messages_until_) {
    late_messages_ = 0;
    late_messages_until_ = bytes_in_ + kLateMessagesPer;
  }
  ++late_messages_;
}

bool TlsChannel::over_limit() const noexcept {
  return late_messages_ > kMaxLateMessages;
}

/// False at the end. OpenSSL has taken all input before.
Task<Result<bool>> TlsChannel::read_more() {
  input_ = Slice();
  co_await raw_->wait_readable();  // idle connections hold no memory
  Slice block = Slice::uninitialised(read_size_);
  auto count = co_await raw_->read_some({block.mutable_data(), block.size()});
  if (!count) co_return count.error();
  bytes_in_ += *count;
  turn_ += *count;
  if (turn_ >= kReadTurn) {
    turn_ = 0;
    co_await runtime_.yield();
  }
  read_size_ = *count == block.size() ? std::min(read_size_ * 4, kMaxTlsRead)
                                      : std::max(kMinRead, std::min(read_size_, *count * 4));
  input_ = block.sub(0, *count);
  co_return *count > 0;
}

Task<Result<Slice>> TlsChannel::receive() {
  if (!unread_.empty()) co_return std::exchange(unread_, Slice());
  for (;;) {
    if (broken_) co_return Error(cohive::Errc::closed, "tls: a record could not be encrypted");
    if (!input_.empty() || SSL_has_pending(ssl_.get())) {
      const auto buffered = static_cast<std::size_t>(SSL_pending(ssl_.get()));
      Slice plain = Slice::uninitialised(std::min(kMaxRecord, std::max(input_.size() + buffered, kMinRead)));
      std::size_t count = 0;
      ERR_clear_error();
      if (SSL_read_ex(ssl_.get(), plain.mutable_data(), plain.size(), &count) == 1) co_return plain.sub(0, count);
      const int code = SSL_get_error(ssl_.get(), 0);
      if (code == SSL_ERROR_ZERO_RETURN) co_return Slice();
      if (over_limit()) co_return Error(cohive::Errc::limit_exceeded, "tls: key updates and tickets without data");
      if (code != SSL_ERROR_WANT_READ) {
        const char* reason = ERR_reason_error_string(ERR_peek_error());
        co_return Error(Errc::decryption_failed, reason ? reason : "");
      }
    }
    auto more = co_await read_more();
    if (!more) co_return more.error();
    if (!*more) co_return Slice();  // few implementations say goodbye; streams have ends of their own
  }
}

/// A peer that misses a record would take the next one for the rest of its frame. Streams hear of the end from the
/// reader, which the closed connection wakes.
bool TlsChannel::seal(ByteView record) {
  if (broken_) return false;
  if (record.empty()) return true;
  ERR_clear_error();
  if (SSL_write(ssl_.get(), record.data(), static_cast<int>(record.size())) > 0) return true;
  broken_ = true;
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  log::debug("transport", "closing a connection: tls: {}", reason ? reason : "a record could not be encrypted");
  close();
  return false;
}

void TlsChannel::append(std::span<const ByteView> parts) {
  thread_local std::array<std::uint8_t, kMaxRecord> record;
  std::size_t filled = 0;
  for (ByteView part : parts) {
    while (!part.empty()) {
      const std::size_t count = std::min(part.size(), record.size() - filled);
      std::copy_n(part.begin(), count, record.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += count;
      part = part.subspan(count);
      if (filled < record.size()) continue;
      if (!seal(record)) return;
      filled = 0;
    }
  }
  seal(ByteView(record).first(filled));
}

}  // namespace cohive::transport
