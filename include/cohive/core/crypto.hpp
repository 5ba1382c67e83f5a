/// \file
/// Hashes and the ciphers Noise needs. OpenSSL EVP for bulk work, libsodium for curves.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>

#include "cohive/core/bytes.hpp"

namespace cohive::crypto {

/// A digest of SHA-1.
using Sha1Digest = std::array<std::uint8_t, 20>;
/// A digest of SHA-256.
using Sha256Digest = std::array<std::uint8_t, 32>;
/// A digest of SHA-512.
using Sha512Digest = std::array<std::uint8_t, 64>;
/// A key of 32 bytes: secret or public, of X25519, ChaCha20 or AES-256.
using Key32 = std::array<std::uint8_t, 32>;

/// Returns the SHA-1 of bytes.
Sha1Digest sha1(ByteView data);
/// Returns the SHA-256 of bytes.
Sha256Digest sha256(ByteView data);
/// Returns the SHA-256 of parts, one after the other.
Sha256Digest sha256(std::initializer_list<ByteView> parts);
/// Returns the SHA-512 of bytes.
Sha512Digest sha512(ByteView data);
/// Returns the HMAC of `data` with SHA-256.
Sha256Digest hmac_sha256(ByteView key, ByteView data);
/// A key made slowly from a secret that people choose (PBKDF2).
Key32 stretched(ByteView secret, ByteView salt, int iterations);
/// Whether two texts are equal, in a time that does not depend on where they differ.
bool equal_secrets(std::string_view a, std::string_view b);
/// Cryptographically secure random bytes (never seeded; protocol randomness comes from Runtime).
void random_bytes(MutableBytes out);

/// Frees what OpenSSL keeps for this thread, as the thread's end does: for a thread that nobody waits for, before it
/// tells that its work is done. The process may end first, and OpenSSL with it.
void release_thread() noexcept;

/// A key pair for a key agreement.
struct X25519KeyPair {
  Key32 secret;   ///< what its owner keeps to itself
  Key32 public_;  ///< what the other side is told
  /// Makes a pair of random bytes.
  static X25519KeyPair generate();
  /// Makes the pair of a secret: the same one each time.
  static X25519KeyPair from_secret(const Key32& secret);
};
/// nullopt when the result is all zero (a hostile public key).
std::optional<Key32> x25519(const Key32& secret, const Key32& their_public);

/// Returns base64 with padding.
std::string base64_encode(ByteView data);
/// Returns the bytes; nullopt for text that is not base64.
std::optional<Bytes> base64_decode(std::string_view text);

/// The ciphers of the Noise framework, section 12.
enum class Cipher { chacha20_poly1305, aes256_gcm };
/// Whether this processor computes AES and GCM in hardware; without, AES is slow and leaks through its timing.
bool has_fast_aes() noexcept;

/// Authenticated encryption with one reusable context per key and direction. Not thread-safe.
class Aead {
 public:
  static constexpr std::size_t kTagSize = 16;  ///< bytes that sealing adds
  /// Makes the context of a key. One key seals in one direction only.
  explicit Aead(const Key32& key, Cipher cipher = Cipher::chacha20_poly1305);
  ~Aead();
  Aead(Aead&&) noexcept;
  Aead& operator=(Aead&&) noexcept;

  /// Encrypts the concatenation of `parts` into `out` (sum of sizes + kTagSize bytes). Nonce: 4 zero bytes, then the
  /// counter, little-endian for ChaCha20 and big-endian for AES.
  void seal(std::uint64_t counter, ByteView associated, std::span<const ByteView> parts, std::uint8_t* out);
  /// Decrypts `sealed` (ciphertext + tag) into `out` (sealed.size() - kTagSize bytes; may alias `sealed`). False:
  /// forged.
  bool open(std::uint64_t counter, ByteView associated, ByteView sealed, std::uint8_t* out);
  /// Where the plaintext behind the first kFirst bytes goes, now that those are known; null: behind them. Nothing has
  /// proven the bytes yet.
  using Destination = std::function<std::uint8_t*(ByteView first)>;
  static constexpr std::size_t kFirst = 16;  ///< bytes of plaintext that a Destination is shown
  /// The same in place, without associated data, for a message of kFirst bytes or more.
  bool open(std::uint64_t counter, MutableBytes sealed, const Destination& destination);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::crypto
