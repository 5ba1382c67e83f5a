/// \file
/// RSA keys for simulations of many trainers: any two of a few primes make a key, so that hundreds of keys cost no more
/// than a few dozen primes. They protect nothing.
#pragma once

#include <cstddef>

#include "cohive/core/bytes.hpp"

namespace cohive::sim {

/// Returns another 2,048-bit key for each number, as a PKCS#1 private key in DER. The same one for the same number, in
/// every process, so that a simulated run with the same seed is the same run. One thread at a time.
Bytes cheap_key(std::size_t number);

}  // namespace cohive::sim
