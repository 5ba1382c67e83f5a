#include "tls_certificate.hpp"

#include <openssl/asn1.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <stdexcept>

#include "cohive/core/crypto.hpp"
#include "cohive/transport/errors.hpp"
#include "core/detail/key_limits.hpp"

namespace cohive::transport {
namespace {

constexpr const char* kExtension = "1.3.6.1.4.1.53594.1.1";
constexpr std::string_view kTlsSignaturePrefix = "libp2p-tls-handshake:";
// As rust-libp2p's: clocks of peers are wrong by years.
constexpr const char* kNotBefore = "750101000000Z";
constexpr const char* kNotAfter = "40960101000000Z";

struct Deleter {
  void operator()(ASN1_OBJECT* object) const { ASN1_OBJECT_free(object); }
  void operator()(ASN1_OCTET_STRING* string) const { ASN1_OCTET_STRING_free(string); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
template <class T>
using Owned = std::unique_ptr<T, Deleter>;

void require(bool success) {
  if (!success) throw std::runtime_error("making a TLS certificate failed");
}

const ASN1_OBJECT* extension_id() {
  static const Owned<ASN1_OBJECT> id(OBJ_txt2obj(kExtension, 1));
  return id.get();
}

/// What the identity key signs: the certificate's key.
Bytes signed_text(EVP_PKEY* key) {
  Bytes text = to_bytes(kTlsSignaturePrefix);
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  if (size > 0) text.insert(text.end(), der, der + size);
  OPENSSL_free(der);
  return text;
}

void append_octets(Bytes& out, ByteView bytes) {
  const auto size = static_cast<int>(bytes.size());
  const std::size_t at = out.size();
  out.resize(at + static_cast<std::size_t>(ASN1_object_size(0, size, V_ASN1_OCTET_STRING)));
  unsigned char* end = out.data() + at;
  ASN1_put_object(&end, 0, size, V_ASN1_OCTET_STRING, V_ASN1_UNIVERSAL);
  std::copy(bytes.begin(), bytes.end(), end);
}

Bytes signed_key(const KeyPair& identity, EVP_PKEY* key) {
  Bytes content;
  append_octets(content, as_bytes(identity.public_key().protobuf()));
  append_octets(content, identity.sign(signed_text(key)));
  const auto size = static_cast<int>(content.size());
  Bytes der(static_cast<std::size_t>(ASN1_object_size(1, size, V_ASN1_SEQUENCE)));
  unsigned char* end = der.data();
  ASN1_put_object(&end, 1, size, V_ASN1_SEQUENCE, V_ASN1_UNIVERSAL);
  std::copy(content.begin(), content.end(), end);
  return der;
}

/// The content of the element at the front of `rest`, which then begins behind it.
std::optional<ByteView> take_element(ByteView& rest, int wanted) {
  if (rest.empty()) return std::nullopt;
  const unsigned char* at = rest.data();
  long size = 0;
  int tag = 0, kind = 0;
  const int flags = ASN1_get_object(&at, &size, &tag, &kind, static_cast<long>(rest.size()));
  // 0x80: malformed; 0x01: of indefinite length, which DER knows not.
  if ((flags & 0x81) || tag != wanted || kind != V_ASN1_UNIVERSAL || size < 0) return std::nullopt;
  const ByteView content(at, static_cast<std::size_t>(size));
  // The one length that DER allows.
  const bool constructed = wanted == V_ASN1_SEQUENCE;
  const auto head = static_cast<std::size_t>(at - rest.data());
  if (static_cast<int>(head + content.size()) != ASN1_object_size(constructed, static_cast<int>(size), tag))
    return std::nullopt;
  rest = rest.subspan(head + content.size());
  return content;
}

/// Unknown critical extensions must be refused; ours may be critical.
std::optional<ByteView> find_extension(const X509& certificate, bool& unknown_critical) {
  std::optional<ByteView> found;
  for (int i = 0; i < X509_get_ext_count(&certificate); ++i) {
    X509_EXTENSION* extension = X509_get_ext(&certificate, i);
    if (OBJ_cmp(X509_EXTENSION_get_object(extension), extension_id()) == 0) {
      const ASN1_OCTET_STRING* data = X509_EXTENSION_get_data(extension);
      found = ByteView(ASN1_STRING_get0_data(data), static_cast<std::size_t>(ASN1_STRING_length(data)));
    } else if (X509_EXTENSION_get_critical(extension) && !X509_supported_extension(extension)) {
      unknown_critical = true;
    }
  }
  return found;
}

bool is_valid_at(const X509& certificate, double wall_time) {
  auto now = static_cast<std::time_t>(wall_time);
  return X509_cmp_time(X509_get0_notBefore(&certificate), &now) < 0 &&
         X509_cmp_time(X509_get0_notAfter(&certificate), &now) > 0;
}

/// As identity keys are.
bool is_acceptable(EVP_PKEY* key) {
  if (!key) return false;
  const int kind = EVP_PKEY_get_base_id(key), bits = EVP_PKEY_get_bits(key);
  if (kind == EVP_PKEY_RSA)
    return bits >= detail::kMinRsaBits && bits <= detail::kMaxRsaBits && detail::has_quick_exponent(key);
  if (kind == EVP_PKEY_EC) return detail::is_on_named_nist_curve(key);
  return kind == EVP_PKEY_ED25519;
}

Error failed(std::string why) {
  return Error(Errc::handshake_failed, "tls: " + std::move(why));
}

}  // namespace

TlsCertificate make_certificate(const KeyPair& identity) {
  TlsCertificate made{PkeyPtr(EVP_EC_gen("P-256")), X509Ptr(X509_new())};
  X509* x509 = made.x509.get();
  require(made.key && x509);
  std::array<std::uint8_t, 8> number;
  crypto::random_bytes(number);
  number[0] &= 0x7f;  // positive
  const std::string serial = to_hex(number);
  X509_NAME* name = X509_get_subject_name(x509);
  require(X509_set_version(x509, X509_VERSION_3) &&
          ASN1_INTEGER_set_uint64(X509_get_serialNumber(x509), std::stoull(serial, nullptr, 16)) &&
          X509_NAME_add_entry_by_txt(name, "serialNumber", MBSTRING_ASC,
                                     reinterpret_cast<const unsigned char*>(serial.data()),
                                     static_cast<int>(serial.size()), -1, 0) &&
          X509_set_issuer_name(x509, name) && ASN1_TIME_set_string_X509(X509_getm_notBefore(x509), kNotBefore) &&
          ASN1_TIME_set_string(X509_getm_notAfter(x509), kNotAfter) && X509_set_pubkey(x509, made.key.get()));
  const Bytes value = signed_key(identity, made.key.get());
  const Owned<ASN1_OCTET_STRING> octets(ASN1_OCTET_STRING_new());
  require(octets && ASN1_OCTET_STRING_set(octets.get(), value.data(), static_cast<int>(value.size())));
  const Owned<X509_EXTENSION> extension(X509_EXTENSION_create_by_OBJ(nullptr, extension_id(), 0, octets.get()));
  require(extension && X509_add_ext(x509, extension.get(), -1) && X509_sign(x509, made.key.get(), EVP_sha256()) > 0);
  return made;
}

std::optional<SignedKey> parse_signed_key(ByteView der) {
  auto sequence = take_element(der, V_ASN1_SEQUENCE);
  if (!sequence || !der.empty()) return std::nullopt;
  const auto public_key = take_element(*sequence, V_ASN1_OCTET_STRING);
  const auto signature = take_element(*sequence, V_ASN1_OCTET_STRING);
  if (!public_key || !signature || !sequence->empty()) return std::nullopt;
  return SignedKey{*public_key, *signature};
}

Result<PublicKey> verify_certificate(const X509& certificate, double wall_time) {
  if (!is_valid_at(certificate, wall_time)) return failed("the certificate is not valid now");
  EVP_PKEY* key = X509_get0_pubkey(&certificate);
  if (!is_acceptable(key)) return failed("a certificate key of an unsuitable kind or size");
  bool unknown_critical = false;
  const auto extension = find_extension(certificate, unknown_critical);
  if (unknown_critical) return failed("an unknown critical extension");
  if (!extension) return failed("the certificate names no libp2p key");
  const auto proof = parse_signed_key(*extension);
  if (!proof) return failed("the certificate's libp2p extension does not parse");
  // OpenSSL takes no const certificate here, and changes none.
  if (X509_verify(const_cast<X509*>(&certificate), key) != 1) return failed("the certificate is not signed by itself");
  auto identity = PublicKey::from_protobuf(proof->public_key);
  if (!identity) return failed("identity key: " + identity.error().message());
  if (!identity->verify(signed_text(key), proof->signature)) return failed("bad identity signature");
  return identity;
}

}  // namespace cohive::transport
