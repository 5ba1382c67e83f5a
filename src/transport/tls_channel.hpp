// TLS 1.3 as libp2p uses it: both sides show a certificate that proves their identity key, and the muxer is agreed on
// by ALPN. OpenSSL does the records; bytes come from and go to the connection through a BIO of ours. Source:
// docs/wire/libp2p.md, section 3.2.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/keys.hpp"
#include "cohive/transport/transport.hpp"
#include "secure_channel.hpp"
#include "tls_certificate.hpp"

namespace cohive::transport {

/// An identity prepared for handshakes: a certificate that serves all connections of a process.
class TlsIdentity {
 public:
  explicit TlsIdentity(const KeyPair& identity) : TlsIdentity(make_certificate(identity)) {}
  explicit TlsIdentity(TlsCertificate certificate);
  SSL_CTX* context() const noexcept { return context_.get(); }

 private:
  struct Deleter {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Deleter> context_;
};

/// What a handshake yields.
struct TlsSession {
  PublicKey remote_key;
  std::string muxer;  ///< agreed by ALPN; empty: negotiate it inside the channel
};

class TlsChannel final : public SecureChannel {
 public:
  /// \param role   initiator or responder
  /// \param early  bytes received before the handshake
  TlsChannel(Runtime& runtime, std::unique_ptr<RawConnection> raw, std::shared_ptr<const TlsIdentity> identity,
             Role role, Bytes early);

  /// To be called once and first. Offers the muxers, and that one may be negotiated inside.
  Task<Result<TlsSession>> handshake(std::optional<PeerId> expected, std::vector<std::string> muxers,
                                     Deadline deadline);

  Task<Result<Slice>> receive() override;
  bool encrypts() const noexcept override { return true; }
  void append(std::span<const ByteView> parts) override;

 private:
  struct Deleter {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  friend struct TlsCallbacks;
  Task<Result<>> shake_hands();
  Task<Result<bool>> read_more();
  Error failure() const;
  std::string agreed_muxer() const;
  void count_late_message() noexcept;
  bool over_limit() const noexcept;
  bool seal(ByteView record);

  Runtime& runtime_;
  std::shared_ptr<const TlsIdentity> identity_;
  std::unique_ptr<SSL, Deleter> ssl_;
  std::vector<std::string> muxers_;
  std::optional<PeerId> expected_;
  std::optional<Result<PublicKey>> remote_key_;  ///< once the peer's certificate has been seen
  Slice input_;                                  ///< received, not yet taken by OpenSSL
  std::size_t read_size_;                        ///< grows while reads fill it
  std::size_t late_messages_ = 0;                ///< of the handshake protocol, after the handshake
  std::uint64_t late_messages_until_ = 0;        ///< the value of bytes_in_ at which counting begins anew
  std::size_t turn_ = 0;                         ///< bytes read since other tasks had their turn
  bool broken_ = false;                          ///< a record was lost: nothing may follow it
};

}  // namespace cohive::transport
