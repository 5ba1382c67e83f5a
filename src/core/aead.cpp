// Authenticated encryption: OpenSSL, or for AES-256-GCM something faster where there is it.
#include <openssl/evp.h>

#include <cstring>
#include <optional>
#include <stdexcept>

#include "fast_gcm.hpp"

namespace cohive::crypto {
namespace {

struct ContextDeleter {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

void require(bool success, const char* what) {
  if (!success) throw std::runtime_error(std::string("crypto: ") + what + " failed");
}

std::array<std::uint8_t, 12> nonce_of(Cipher cipher, std::uint64_t counter) {
  std::array<std::uint8_t, 12> nonce{};
  for (int i = 0; i < 8; ++i) {
    const int at = cipher == Cipher::aes256_gcm ? 11 - i : 4 + i;
    nonce[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(counter >> (8 * i));
  }
  return nonce;
}

}  // namespace

struct Aead::Impl {
  explicit Impl(Cipher kind) : cipher(kind) {}
  const Cipher cipher;
  std::optional<FastGcm> fast;  // if set, what follows is not
  std::unique_ptr<EVP_CIPHER_CTX, ContextDeleter> encrypt, decrypt;
};

// Key schedule and cipher are set once; each message only sets its nonce.
Aead::Aead(const Key32& key, Cipher cipher) : impl_(std::make_unique<Impl>(cipher)) {
  if (cipher == Cipher::aes256_gcm && FastGcm::available()) {
    impl_->fast.emplace(key);
    return;
  }
  const EVP_CIPHER* type = cipher == Cipher::aes256_gcm ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
  impl_->encrypt.reset(EVP_CIPHER_CTX_new());
  impl_->decrypt.reset(EVP_CIPHER_CTX_new());
  require(EVP_EncryptInit_ex(impl_->encrypt.get(), type, nullptr, key.data(), nullptr), "cipher");
  require(EVP_DecryptInit_ex(impl_->decrypt.get(), type, nullptr, key.data(), nullptr), "cipher");
}
Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

void Aead::seal(std::uint64_t counter, ByteView associated, std::span<const ByteView> parts, std::uint8_t* out) {
  const auto nonce = nonce_of(impl_->cipher, counter);
  if (impl_->fast) return impl_->fast->seal(nonce, associated, parts, out);
  EVP_CIPHER_CTX* context = impl_->encrypt.get();
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
  const auto nonce = nonce_of(impl_->cipher, counter);
  if (impl_->fast) return impl_->fast->open(nonce, associated, sealed, out);
  EVP_CIPHER_CTX* context = impl_->decrypt.get();
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

bool Aead::open(std::uint64_t counter, MutableBytes sealed, const Destination& destination) {
  if (sealed.size() < kFirst + kTagSize) return false;
  const auto nonce = nonce_of(impl_->cipher, counter);
  if (impl_->fast) return impl_->fast->open(nonce, sealed, destination);
  EVP_CIPHER_CTX* context = impl_->decrypt.get();
  std::uint8_t* const first = sealed.data();
  const std::size_t size = sealed.size() - kTagSize;
  int written = 0;
  require(EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()), "nonce");
  require(EVP_DecryptUpdate(context, first, &written, first, static_cast<int>(kFirst)), "decryption");
  std::uint8_t* const rest = destination({first, kFirst});
  if (size > kFirst)
    require(EVP_DecryptUpdate(context, rest ? rest : first + kFirst, &written, first + kFirst,
                              static_cast<int>(size - kFirst)),
            "decryption");
  require(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kTagSize), first + size), "tag");
  std::uint8_t none[16];
  return EVP_DecryptFinal_ex(context, none, &written) > 0;
}

}  // namespace cohive::crypto
