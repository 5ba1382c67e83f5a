// Which keys of peers are accepted, wherever they come: as identities, or in the certificates of TLS. Huge keys and
// those with parameters of their own cost us time for nothing; small ones prove nothing. Defined in core/keys.cpp.
#pragma once

#include <openssl/evp.h>

namespace cohive::detail {

inline constexpr int kMinRsaBits = 2048;
inline constexpr int kMaxRsaBits = 8192;

/// Tells whether the exponent of an RSA key is as small as Go has it; larger ones make a check take milliseconds.
bool has_quick_exponent(const EVP_PKEY* key);

/// Tells whether a key is on one of the NIST curves, which it names, as Go's x509 has it: a peer's own curve parameters
/// cost time and prove nothing.
bool is_on_named_nist_curve(const EVP_PKEY* key);

}  // namespace cohive::detail
