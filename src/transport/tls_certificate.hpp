// The certificate of libp2p's TLS: self-signed, of a key that serves one process, with an extension in which the
// identity key signs that key.
//   extension 1.3.6.1.4.1.53594.1.1: SEQUENCE { OCTET STRING serialised PublicKey, OCTET STRING signature }
// Source: docs/wire/libp2p.md, section 3.2.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

#include "cohive/core/keys.hpp"

namespace cohive::transport {

struct OpenSslDeleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using PkeyPtr = std::unique_ptr<EVP_PKEY, OpenSslDeleter>;
using X509Ptr = std::unique_ptr<X509, OpenSslDeleter>;

struct TlsCertificate {
  PkeyPtr key;
  X509Ptr x509;
};

/// Makes a key and its certificate for an identity. Throws when OpenSSL fails.
TlsCertificate make_certificate(const KeyPair& identity);

/// Returns the identity key that a peer's certificate proves, or Errc::handshake_failed with what is wrong with it.
/// \param wall_time  Unix time in seconds, for the period of validity
Result<PublicKey> verify_certificate(const X509& certificate, double wall_time);

/// What the extension holds.
struct SignedKey {
  ByteView public_key;  ///< serialised
  ByteView signature;
};
/// Reads the extension's value; nullopt when it is not exactly what DER prescribes.
std::optional<SignedKey> parse_signed_key(ByteView der);

}  // namespace cohive::transport
