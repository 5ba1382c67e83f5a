#include "cohive/core/crypto.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sodium.h>

#include <stdexcept>

namespace cohive::crypto {
namespace {

struct DigestContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

void require_crypto(bool success, const char* what) {
  if (!success) throw std::runtime_error(std::string("crypto: ") + what + " failed");
}

template <std::size_t N>
std::array<std::uint8_t, N> digest(const EVP_MD* algorithm, std::initializer_list<ByteView> parts) {
  thread_local std::unique_ptr<EVP_MD_CTX, DigestContextDeleter> context(EVP_MD_CTX_new());
  std::array<std::uint8_t, N> out;
  require_crypto(EVP_DigestInit_ex(context.get(), algorithm, nullptr), "digest");
  for (ByteView part : parts) require_crypto(EVP_DigestUpdate(context.get(), part.data(), part.size()), "digest");
  require_crypto(EVP_DigestFinal_ex(context.get(), out.data(), nullptr), "digest");
  return out;
}

/// Looked up once: EVP_sha256() is looked up anew for every digest, which takes longer than to hash an identity.
const EVP_MD* fetched_sha256() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

[[maybe_unused]] const int sodium_ready = sodium_init();

}  // namespace

Sha1Digest sha1(ByteView data) {
  return digest<20>(EVP_sha1(), {data});
}
Sha256Digest sha256(ByteView data) {
  return digest<32>(fetched_sha256(), {data});
}
Sha256Digest sha256(std::initializer_list<ByteView> parts) {
  return digest<32>(fetched_sha256(), parts);
}
Sha512Digest sha512(ByteView data) {
  return digest<64>(EVP_sha512(), {data});
}

Sha256Digest hmac_sha256(ByteView key, ByteView data) {
  Sha256Digest out;
  static constexpr std::uint8_t kNothing = 0;  // OpenSSL takes a null pointer for a missing argument, not for no bytes
  const auto* key_at = key.empty() ? &kNothing : key.data();
  const auto* data_at = data.empty() ? &kNothing : data.data();
  require_crypto(HMAC(EVP_sha256(), key_at, static_cast<int>(key.size()), data_at, data.size(), out.data(), nullptr),
                 "HMAC");
  return out;
}

Key32 stretched(ByteView secret, ByteView salt, int iterations) {
  Key32 key;
  require_crypto(PKCS5_PBKDF2_HMAC(reinterpret_cast<const char*>(secret.data()), static_cast<int>(secret.size()),
                                   salt.data(), static_cast<int>(salt.size()), iterations, EVP_sha256(),
                                   static_cast<int>(key.size()), key.data()) == 1,
                 "PBKDF2");
  return key;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

void random_bytes(MutableBytes out) {
  if (!out.empty()) randombytes_buf(out.data(), out.size());
}

void release_thread() noexcept {
  OPENSSL_thread_stop();
}

X25519KeyPair X25519KeyPair::generate() {
  Key32 secret;
  random_bytes(secret);
  return from_secret(secret);
}

X25519KeyPair X25519KeyPair::from_secret(const Key32& secret) {
  X25519KeyPair pair{secret, {}};
  require_crypto(crypto_scalarmult_base(pair.public_.data(), secret.data()) == 0, "X25519");
  return pair;
}

std::optional<Key32> x25519(const Key32& secret, const Key32& their_public) {
  Key32 shared;
  if (crypto_scalarmult(shared.data(), secret.data(), their_public.data()) != 0) return std::nullopt;
  return shared;
}

std::string base64_encode(ByteView data) {
  std::string text(sodium_base64_ENCODED_LEN(data.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), data.data(), data.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the terminating zero
  return text;
}

std::optional<Bytes> base64_decode(std::string_view text) {
  Bytes out(text.size() / 4 * 3 + 3);
  std::size_t size = 0;
  if (sodium_base642bin(out.data(), out.size(), text.data(), text.size(), nullptr, &size, nullptr,
                        sodium_base64_VARIANT_ORIGINAL) != 0)
    return std::nullopt;
  out.resize(size);
  return out;
}

bool has_fast_aes() noexcept {
#if defined(__x86_64__)
  static const bool present = __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
  return present;
#elif defined(__aarch64__) && defined(__ARM_FEATURE_AES)
  return true;
#else
  return false;
#endif
}

}  // namespace cohive::crypto
