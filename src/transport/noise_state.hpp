// Noise's SymmetricState for Noise_XX_25519_ChaChaPoly_SHA256: the running hash, the chaining key and the cipher they
// yield. Source: docs/wire/libp2p.md, section 3.1.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "cohive/core/crypto.hpp"

namespace cohive::transport::noise {

using crypto::Aead;
using crypto::Key32;

constexpr std::string_view kProtocolName = "Noise_XX_25519_ChaChaPoly_SHA256";

/// HKDF with two outputs, as Noise defines it.
inline std::pair<Key32, Key32> hkdf(const Key32& chaining_key, ByteView input) {
  const Key32 temp = crypto::hmac_sha256(chaining_key, input);
  const std::uint8_t one[] = {1};
  const Key32 first = crypto::hmac_sha256(temp, one);
  Bytes rest(first.begin(), first.end());
  rest.push_back(2);
  return {first, crypto::hmac_sha256(temp, rest)};
}

/// Noise's SymmetricState.
class SymmetricState {
 public:
  SymmetricState() {
    std::copy(kProtocolName.begin(), kProtocolName.end(), hash_.begin());
    chaining_key_ = hash_;
    mix_hash({});  // the empty prologue
  }
  void mix_hash(ByteView data) { hash_ = crypto::sha256({ByteView(hash_), data}); }
  bool mix_dh(const Key32& secret, const Key32& their_public) {
    const auto shared = crypto::x25519(secret, their_public);
    if (!shared) return false;
    auto [chaining, key] = hkdf(chaining_key_, *shared);
    chaining_key_ = chaining;
    cipher_.emplace(key);
    counter_ = 0;
    return true;
  }
  Bytes encrypt_and_hash(ByteView plaintext) {
    Bytes sealed(plaintext.size() + (cipher_ ? Aead::kTagSize : 0));
    if (cipher_) {
      const ByteView parts[] = {plaintext};
      cipher_->seal(counter_++, hash_, parts, sealed.data());
    } else {
      std::copy(plaintext.begin(), plaintext.end(), sealed.begin());
    }
    mix_hash(sealed);
    return sealed;
  }
  std::optional<Bytes> decrypt_and_hash(ByteView sealed) {
    Bytes plaintext = to_bytes(sealed);
    if (cipher_) {
      if (sealed.size() < Aead::kTagSize) return std::nullopt;
      plaintext.resize(sealed.size() - Aead::kTagSize);
      if (!cipher_->open(counter_++, hash_, sealed, plaintext.data())) return std::nullopt;
    }
    mix_hash(sealed);
    return plaintext;
  }
  std::pair<Key32, Key32> split() const { return hkdf(chaining_key_, {}); }
  const Key32& hash() const { return hash_; }

 private:
  Key32 hash_{};
  Key32 chaining_key_{};
  std::optional<Aead> cipher_;
  std::uint64_t counter_ = 0;
};

}  // namespace cohive::transport::noise
