#include "cohive/core/sha256.hpp"

#include <openssl/evp.h>

#include <stdexcept>

namespace cohive::crypto {

struct Sha256::Impl {
  Impl() {
    if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1)
      throw std::runtime_error("OpenSSL: SHA-256 is not to be had");
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::add(ByteView bytes) {
  if (EVP_DigestUpdate(impl_->context.get(), bytes.data(), bytes.size()) != 1)
    throw std::runtime_error("OpenSSL: SHA-256 failed");
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  if (EVP_DigestFinal_ex(impl_->context.get(), digest.data(), nullptr) != 1)
    throw std::runtime_error("OpenSSL: SHA-256 failed");
  return digest;
}

}  // namespace cohive::crypto
