#include "cohive/core/keys.hpp"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <sodium.h>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/proto/crypto.pb.h"
#include "detail/key_limits.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMaxKeyBytes = 8192;
constexpr int kMaxExponentBits = 32;
constexpr std::size_t kEd25519Public = 32;
constexpr std::size_t kEd25519Seed = 32;

struct Deleter {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(OSSL_PARAM_BLD* builder) const { OSSL_PARAM_BLD_free(builder); }
  void operator()(OSSL_PARAM* params) const { OSSL_PARAM_free(params); }
};
using Pkey = std::unique_ptr<EVP_PKEY, Deleter>;

Error malformed_key(std::string what) {
  return Error(Errc::malformed, std::move(what));
}

/// Parse() itself would print a line to stderr for every key that lacks a field: a peer's way to flood it.
template <class Message>
bool parse_key(Message& message, ByteView serialised) {
  return message.ParsePartialFromArray(serialised.data(), static_cast<int>(serialised.size())) &&
         message.IsInitialized();
}

Pkey public_from_spki(ByteView der, int wanted_type) {
  const unsigned char* at = der.data();
  Pkey key(d2i_PUBKEY(nullptr, &at, static_cast<long>(der.size())));
  if (!key || at != der.data() + der.size() || EVP_PKEY_get_base_id(key.get()) != wanted_type) return nullptr;
  return key;
}

Pkey secp256k1_public(ByteView point) {
  std::unique_ptr<EVP_PKEY_CTX, Deleter> context(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  std::unique_ptr<OSSL_PARAM_BLD, Deleter> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "secp256k1", 0);
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(), point.size());
  std::unique_ptr<OSSL_PARAM, Deleter> params(OSSL_PARAM_BLD_to_param(builder.get()));
  EVP_PKEY* key = nullptr;
  if (EVP_PKEY_fromdata_init(context.get()) <= 0 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) <= 0)
    return nullptr;
  return Pkey(key);
}

std::string serialise_public(KeyType type, ByteView data) {
  proto::PublicKey message;
  message.set_key_type(static_cast<proto::KeyType>(type));
  message.set_data(data.data(), data.size());
  return message.SerializeAsString();
}

bool verify_sha256(EVP_PKEY* key, ByteView message, ByteView signature) {
  std::unique_ptr<EVP_MD_CTX, Deleter> context(EVP_MD_CTX_new());
  return EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) > 0 &&
         EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data(), message.size()) > 0;
}

Bytes der_of(EVP_PKEY* key, int (*encode)(const EVP_PKEY*, unsigned char**)) {
  unsigned char* der = nullptr;
  const int size = encode(key, &der);
  Bytes result(der, der + std::max(size, 0));
  OPENSSL_free(der);
  return result;
}

int encode_spki(const EVP_PKEY* key, unsigned char** out) {
  return i2d_PUBKEY(key, out);
}
int encode_traditional(const EVP_PKEY* key, unsigned char** out) {
  return i2d_PrivateKey(key, out);
}

}  // namespace

bool detail::has_quick_exponent(const EVP_PKEY* key) {
  BIGNUM* exponent = nullptr;
  EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_RSA_E, &exponent);
  const bool is_quick = exponent && BN_num_bits(exponent) <= kMaxExponentBits;
  BN_free(exponent);
  return is_quick;
}

bool detail::is_on_named_nist_curve(const EVP_PKEY* key) {
  int is_explicit = 1;
  EVP_PKEY_get_int_param(key, OSSL_PKEY_PARAM_EC_DECODED_FROM_EXPLICIT_PARAMS, &is_explicit);
  char name[32] = {};
  if (is_explicit || EVP_PKEY_get_group_name(key, name, sizeof name, nullptr) <= 0) return false;
  const std::string_view curve(name);
  return curve == "prime256v1" || curve == "secp384r1" || curve == "secp521r1" || curve == "secp224r1";
}

struct PublicKey::Impl {
  KeyType type;
  std::string protobuf;
  Bytes ed25519;
  Pkey pkey;
};

Result<PublicKey> PublicKey::from_protobuf(ByteView serialised) {
  if (serialised.size() > kMaxKeyBytes) return malformed_key("public key is too long");
  proto::PublicKey message;
  if (!parse_key(message, serialised)) return malformed_key("public key does not parse");
  auto impl = std::make_shared<Impl>();
  impl->type = static_cast<KeyType>(message.key_type());
  const ByteView data = as_bytes(message.data());
  switch (message.key_type()) {
    case proto::Ed25519:
      if (data.size() != kEd25519Public) return malformed_key("Ed25519 public key must have 32 bytes");
      impl->ed25519 = to_bytes(data);
      break;
    case proto::RSA: {
      impl->pkey = public_from_spki(data, EVP_PKEY_RSA);
      if (!impl->pkey) return malformed_key("RSA public key is not a DER SubjectPublicKeyInfo");
      const int bits = EVP_PKEY_get_bits(impl->pkey.get());
      if (bits < detail::kMinRsaBits || bits > detail::kMaxRsaBits)
        return Error(Errc::limit_exceeded, "RSA key of " + std::to_string(bits) + " bits (2048 to 8192 are accepted)");
      if (!detail::has_quick_exponent(impl->pkey.get()))
        return Error(Errc::limit_exceeded, "RSA key whose exponent makes each check slow");
      break;
    }
    case proto::Secp256k1:
      if (data.size() != 33) return malformed_key("secp256k1 public key must have 33 bytes");
      impl->pkey = secp256k1_public(data);
      if (!impl->pkey) return malformed_key("secp256k1 public key is not a point of the curve");
      break;
    case proto::ECDSA:
      impl->pkey = public_from_spki(data, EVP_PKEY_EC);
      if (!impl->pkey) return malformed_key("ECDSA public key is not a DER SubjectPublicKeyInfo");
      if (!detail::is_on_named_nist_curve(impl->pkey.get()))
        return malformed_key("ECDSA public key is not on a named NIST curve");
      break;
  }
  // The canonical encoding names the peer, whatever order or extra fields the bytes had.
  impl->protobuf = serialise_public(impl->type, data);
  PublicKey key;
  key.impl_ = std::move(impl);
  return key;
}

KeyType PublicKey::type() const {
  return impl_->type;
}
const std::string& PublicKey::protobuf() const {
  return impl_->protobuf;
}
PeerId PublicKey::peer_id() const {
  return PeerId::of_public_key(as_bytes(impl_->protobuf));
}

bool PublicKey::verify(ByteView message, ByteView signature) const {
  if (impl_->type != KeyType::ed25519) return verify_sha256(impl_->pkey.get(), message, signature);
  return signature.size() == crypto_sign_BYTES &&
         crypto_sign_verify_detached(signature.data(), message.data(), message.size(), impl_->ed25519.data()) == 0;
}

struct KeyPair::Impl {
  PublicKey public_key;
  KeyType type;
  Bytes ed25519;  // seed and public key, as libsodium and the file format have it
  Pkey pkey;
  ~Impl() { sodium_memzero(ed25519.data(), ed25519.size()); }
};

KeyPair KeyPair::generate_ed25519() {
  std::array<std::uint8_t, kEd25519Seed> seed;
  crypto::random_bytes(seed);
  return ed25519_from_seed(seed);
}

KeyPair KeyPair::ed25519_from_seed(ByteView seed32) {
  if (seed32.size() != kEd25519Seed) throw std::invalid_argument("an Ed25519 seed has 32 bytes");
  auto impl = std::make_shared<Impl>();
  impl->type = KeyType::ed25519;
  impl->ed25519.resize(crypto_sign_SECRETKEYBYTES);
  std::array<std::uint8_t, kEd25519Public> public_bytes;
  crypto_sign_seed_keypair(public_bytes.data(), impl->ed25519.data(), seed32.data());
  impl->public_key = PublicKey::from_protobuf(as_bytes(serialise_public(KeyType::ed25519, public_bytes))).value();
  KeyPair pair;
  pair.impl_ = std::move(impl);
  return pair;
}

KeyPair KeyPair::generate_rsa(int bits) {
  auto impl = std::make_shared<Impl>();
  impl->type = KeyType::rsa;
  impl->pkey.reset(EVP_RSA_gen(static_cast<unsigned>(bits)));
  if (!impl->pkey) throw std::runtime_error("RSA key generation failed");
  impl->public_key =
      PublicKey::from_protobuf(as_bytes(serialise_public(KeyType::rsa, der_of(impl->pkey.get(), encode_spki)))).value();
  KeyPair pair;
  pair.impl_ = std::move(impl);
  return pair;
}

Result<KeyPair> KeyPair::from_protobuf(ByteView serialised) {
  if (serialised.size() > kMaxKeyBytes) return malformed_key("private key is too long");
  proto::PrivateKey message;
  if (!parse_key(message, serialised)) return malformed_key("not a libp2p private key");
  const ByteView data = as_bytes(message.data());
  if (message.key_type() == proto::Ed25519) {
    // seed | public, or the old seed | public | public.
    const bool doubled = data.size() == 96 && as_text(data.subspan(32, 32)) == as_text(data.subspan(64, 32));
    if (data.size() != 64 && !doubled) return malformed_key("Ed25519 private key must have 64 bytes");
    KeyPair pair = ed25519_from_seed(data.first(kEd25519Seed));
    if (as_text(ByteView(pair.impl_->ed25519).subspan(32)) != as_text(data.subspan(32, 32)))
      return malformed_key("Ed25519 private key: its two halves do not match");
    return pair;
  }
  if (message.key_type() != proto::RSA)
    return Error(Errc::invalid_argument, "an identity must be an Ed25519 or RSA key");
  const unsigned char* at = data.data();
  auto impl = std::make_shared<Impl>();
  impl->type = KeyType::rsa;
  impl->pkey.reset(d2i_PrivateKey(EVP_PKEY_RSA, nullptr, &at, static_cast<long>(data.size())));
  // d2i falls back to PKCS#8; go-libp2p refuses that form, so an accepted file must re-encode to itself.
  if (!impl->pkey || der_of(impl->pkey.get(), encode_traditional) != to_bytes(data))
    return malformed_key("RSA private key is not PKCS#1 DER");
  auto public_key =
      PublicKey::from_protobuf(as_bytes(serialise_public(KeyType::rsa, der_of(impl->pkey.get(), encode_spki))));
  if (!public_key) return public_key.error();
  impl->public_key = std::move(*public_key);
  KeyPair pair;
  pair.impl_ = std::move(impl);
  return pair;
}

const PublicKey& KeyPair::public_key() const {
  return impl_->public_key;
}
PeerId KeyPair::peer_id() const {
  return impl_->public_key.peer_id();
}

std::string KeyPair::protobuf() const {
  proto::PrivateKey message;
  message.set_key_type(static_cast<proto::KeyType>(impl_->type));
  const Bytes data = impl_->type == KeyType::ed25519 ? impl_->ed25519 : der_of(impl_->pkey.get(), encode_traditional);
  message.set_data(data.data(), data.size());
  return message.SerializeAsString();
}

Bytes KeyPair::sign(ByteView message) const {
  if (impl_->type == KeyType::ed25519) {
    Bytes signature(crypto_sign_BYTES);
    crypto_sign_detached(signature.data(), nullptr, message.data(), message.size(), impl_->ed25519.data());
    return signature;
  }
  std::unique_ptr<EVP_MD_CTX, Deleter> context(EVP_MD_CTX_new());
  std::size_t size = static_cast<std::size_t>(EVP_PKEY_get_size(impl_->pkey.get()));
  Bytes signature(size);
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, impl_->pkey.get()) <= 0 ||
      EVP_DigestSign(context.get(), signature.data(), &size, message.data(), message.size()) <= 0)
    throw std::runtime_error("RSA signing failed");
  signature.resize(size);
  return signature;
}

}  // namespace cohive
