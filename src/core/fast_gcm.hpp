// AES-256-GCM by Intel's Multi-Buffer Crypto library, on processors with the wide AES instructions (VAES): more than
// twice the speed of the OpenSSL 3.0 that Debian 12 has. Optional at build: without the library it is never available.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "cohive/core/crypto.hpp"

namespace cohive::crypto {

using GcmNonce = std::array<std::uint8_t, 12>;

class FastGcm {
 public:
  static bool available() noexcept;
  /// Only where it is available.
  explicit FastGcm(const Key32& key);

  /// As Aead::seal and Aead::open, with the nonce.
  void seal(const GcmNonce& nonce, ByteView associated, std::span<const ByteView> parts, std::uint8_t* out) const;
  bool open(const GcmNonce& nonce, ByteView associated, ByteView sealed, std::uint8_t* out) const;
  bool open(const GcmNonce& nonce, MutableBytes sealed, const Aead::Destination& destination) const;

 private:
  struct Keys;
  struct KeysDeleter {
    void operator()(Keys* keys) const noexcept;
  };
  std::unique_ptr<Keys, KeysDeleter> keys_;
};

}  // namespace cohive::crypto
