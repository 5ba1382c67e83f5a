/// \file
/// Sha256: the SHA-256 of bytes that come in parts. For bytes in one place there is crypto::sha256.
#pragma once

#include <memory>

#include "cohive/core/crypto.hpp"

namespace cohive::crypto {

/// SHA-256 of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  /// Goes on with these bytes.
  void add(ByteView bytes);
  /// Returns the hash of all that was added. The last call.
  Sha256Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::crypto
