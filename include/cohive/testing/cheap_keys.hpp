/// \file
/// RSA keys for simulations of many trainers: any two of a few primes make a key, so that hundreds of keys cost no more than a few
/// dozen primes. They protect nothing.
#pragma once

#include <memory>
#include <vector>

#include "cohive/core/bytes.hpp"

struct bignum_st;  // OpenSSL's BIGNUM

namespace cohive::sim {

/// Makes keys. One thread at a time.
class CheapKeys {
 public:
  /// Returns another 2,048-bit key for each number, as a PKCS#1 private key in DER. The same one for the same number.
  Bytes der(std::size_t number);

 private:
  using Number = std::unique_ptr<bignum_st, void (*)(bignum_st*)>;
  const bignum_st* prime(std::size_t index);
  std::vector<Number> primes_;
};

}  // namespace cohive::sim
