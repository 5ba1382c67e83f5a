#include "cohive/core/crypto.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sodium.h>

#include <stdexcept>

namespace cohive::crypto {
namespace {

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

void require(bool success, const char* what) {
  if (!success) throw std::runtime_error(std::string("crypto: ") + what + " failed");
}

template <std::size_t N>
std::array<std::uint8_t, N> digest(const EVP_MD* algorithm, std::initializer_list<ByteView> parts) {
  thread_local std::unique_ptr<EVP_MD_CTX, ContextDeleter> context(EVP_MD_CTX_new());
  std::array<std::uint8_t, N> out;
  require(EVP_DigestInit_ex(context.get(), algorithm, nullptr), "digest");
  for (ByteView part : parts) require(EVP_DigestUpdate(context.get(), part.data(), part.size()), "digest");
  require(EVP_DigestFinal_ex(context.get(), out.data(), nullptr), "digest");
  return out;
}

std::array<std::uint8_t, 12> nonce_of(Cipher cipher, std::uint64_t counter) {
  std::array<std::uint8_t, 12> nonce{};
  for (int i = 0; i < 8; ++i) {
    const int at = cipher == Cipher::aes256_gcm ? 11 - i : 4 + i;
    nonce[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(counter >> (8 * i));
  }
  return nonce;
}

[[maybe_unused]] const int sodium_ready = sodium_init();

}  // namespace

Sha1Digest sha1(ByteView data) {
  return digest<20>(EVP_sha1(), {data});
}
Sha256Digest sha256(ByteView data) {
  return digest<32>(EVP_sha256(), {data});
}
Sha256Digest sha256(std::initializer_list<ByteView> parts) {
  return digest<32>(EVP_sha256(), parts);
}
Sha512Digest sha512(ByteView data) {
  return digest<64>(EVP_sha512(), {data});
}

Sha256Digest hmac_sha256(ByteView key, ByteView data) {
  Sha256Digest out;
  static constexpr std::uint8_t kNothing = 0;  // OpenSSL takes a null pointer for a missing argument, not for no bytes
  const auto* key_at = key.empty() ? &kNothing : key.data();
  const auto* data_at = data.empty() ? &kNothing : data.data();
  require(HMAC(EVP_sha256(), key_at, static_cast<int>(key.size()), data_at, data.size(), out.data(), nullptr), "HMAC");
  return out;
}

void random_bytes(MutableBytes out) {
  if (!out.empty()) randombytes_buf(out.data(), out.size());
}

X25519KeyPair X25519KeyPair::generate() {
  Key32 secret;
  random_bytes(secret);
  return from_secret(secret);
}

X25519KeyPair X25519KeyPair::from_secret(const Key32& secret) {
  X25519KeyPair pair{secret, {}};
  require(crypto_scalarmult_base(pair.public_.data(), secret.data()) == 0, "X25519");
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

struct Aead::Impl {
  explicit Impl(Cipher kind) : cipher(kind) {}
  const Cipher cipher;
  std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter> encrypt{EVP_CIPHER_CTX_new()};
  std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter> decrypt{EVP_CIPHER_CTX_new()};
};

// Key schedule and cipher are set once; each message only sets its nonce.
Aead::Aead(const Key32& key, Cipher cipher) : impl_(std::make_unique<Impl>(cipher)) {
  const EVP_CIPHER* type = cipher == Cipher::aes256_gcm ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
  require(EVP_EncryptInit_ex(impl_->encrypt.get(), type, nullptr, key.data(), nullptr), "cipher");
  require(EVP_DecryptInit_ex(impl_->decrypt.get(), type, nullptr, key.data(), nullptr), "cipher");
}
Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

void Aead::seal(std::uint64_t counter, ByteView associated, std::span<const ByteView> parts, std::uint8_t* out) {
  EVP_CIPHER_CTX* context = impl_->encrypt.get();
  const auto nonce = nonce_of(impl_->cipher, counter);
  int written = 0;
  require(EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()), "nonce");
  if (!associated.empty())
    require(EVP_EncryptUpdate(context, nullptr, &written, associated.data(), static_cast<int>(associated.size())),
            "AAD");
  for (ByteView part : parts) {
    if (part.empty()) continue;
    require(EVP_EncryptUpdate(context, out, &written, part.data(), static_cast<int>(part.size())), "encryption");
    out += written;
  }
  require(EVP_EncryptFinal_ex(context, out, &written), "encryption");
  require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kTagSize), out), "tag");
}

bool Aead::open(std::uint64_t counter, ByteView associated, ByteView sealed, std::uint8_t* out) {
  if (sealed.size() < kTagSize) return false;
  EVP_CIPHER_CTX* context = impl_->decrypt.get();
  const auto nonce = nonce_of(impl_->cipher, counter);
  const std::size_t size = sealed.size() - kTagSize;
  std::array<std::uint8_t, kTagSize> tag;
  std::memcpy(tag.data(), sealed.data() + size, kTagSize);
  int written = 0;
  require(EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()), "nonce");
  if (!associated.empty())
    require(EVP_DecryptUpdate(context, nullptr, &written, associated.data(), static_cast<int>(associated.size())),
            "AAD");
  if (size > 0) require(EVP_DecryptUpdate(context, out, &written, sealed.data(), static_cast<int>(size)), "decryption");
  require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kTagSize), tag.data()), "tag");
  std::uint8_t none[16];
  return EVP_DecryptFinal_ex(context, none, &written) > 0;
}

}  // namespace cohive::crypto
