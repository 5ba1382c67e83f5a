#include "cohive/testing/cheap_keys.hpp"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace cohive::sim {
namespace {

constexpr int kPrimeBits = 1024;
constexpr unsigned long kExponent = 65537;

template <class T>
T* demand(T* made) {
  if (!made) throw std::runtime_error("OpenSSL cannot make a key");
  return made;
}

Bytes der_of(EVP_PKEY* key) {
  Bytes der(static_cast<std::size_t>(i2d_PrivateKey(key, nullptr)));
  std::uint8_t* out = der.data();
  i2d_PrivateKey(key, &out);
  return der;
}

/// The first prime above random bits whose seed is the index. Both highest bits are set, so that two of them have a
/// product of full length; none is 1 modulo the exponent.
BIGNUM* make_prime(std::size_t index) {
  std::mt19937_64 random(index);
  std::array<unsigned char, kPrimeBits / 8> bytes{};
  std::ranges::generate(bytes, [&random] { return static_cast<unsigned char>(random()); });
  BIGNUM* number = demand(BN_bin2bn(bytes.data(), bytes.size(), nullptr));
  for (const int bit : {kPrimeBits - 1, kPrimeBits - 2, 0}) BN_set_bit(number, bit);
  while (BN_mod_word(number, kExponent) == 1 || BN_check_prime(number, nullptr, nullptr) != 1) BN_add_word(number, 2);
  return number;
}

const BIGNUM* prime(std::size_t index) {
  static std::vector<std::unique_ptr<BIGNUM, decltype(&BN_free)>> primes;
  while (primes.size() <= index) primes.emplace_back(make_prime(primes.size()), &BN_free);
  return primes[index].get();
}

}  // namespace

Bytes cheap_key(std::size_t number) {
  std::size_t larger = 1;
  while (larger * (larger + 1) / 2 <= number) ++larger;
  const BIGNUM *q = prime(larger), *p = prime(number - larger * (larger - 1) / 2);
  const std::unique_ptr<BN_CTX, decltype(&BN_CTX_free)> context(demand(BN_CTX_new()), &BN_CTX_free);
  BN_CTX_start(context.get());
  const auto made = [&] { return demand(BN_CTX_get(context.get())); };
  BIGNUM *n = made(), *e = made(), *d = made(), *p1 = made(), *q1 = made(), *phi = made(), *dp = made(), *dq = made(),
         *qi = made();
  BN_set_word(e, kExponent);
  BN_mul(n, p, q, context.get());
  BN_sub(p1, p, BN_value_one());
  BN_sub(q1, q, BN_value_one());
  BN_mul(phi, p1, q1, context.get());
  demand(BN_mod_inverse(d, e, phi, context.get()));
  BN_mod(dp, d, p1, context.get());
  BN_mod(dq, d, q1, context.get());
  demand(BN_mod_inverse(qi, q, p, context.get()));

  const std::unique_ptr<OSSL_PARAM_BLD, decltype(&OSSL_PARAM_BLD_free)> parts(demand(OSSL_PARAM_BLD_new()),
                                                                              &OSSL_PARAM_BLD_free);
  const std::pair<const char*, const BIGNUM*> named[] = {
      {OSSL_PKEY_PARAM_RSA_N, n},          {OSSL_PKEY_PARAM_RSA_E, e},
      {OSSL_PKEY_PARAM_RSA_D, d},          {OSSL_PKEY_PARAM_RSA_FACTOR1, p},
      {OSSL_PKEY_PARAM_RSA_FACTOR2, q},    {OSSL_PKEY_PARAM_RSA_EXPONENT1, dp},
      {OSSL_PKEY_PARAM_RSA_EXPONENT2, dq}, {OSSL_PKEY_PARAM_RSA_COEFFICIENT1, qi}};
  for (const auto& [name, value] : named) OSSL_PARAM_BLD_push_BN(parts.get(), name, value);
  const std::unique_ptr<OSSL_PARAM, decltype(&OSSL_PARAM_free)> parameters(demand(OSSL_PARAM_BLD_to_param(parts.get())),
                                                                           &OSSL_PARAM_free);
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> maker(
      demand(EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr)), &EVP_PKEY_CTX_free);
  EVP_PKEY* made_key = nullptr;
  if (EVP_PKEY_fromdata_init(maker.get()) != 1 ||
      EVP_PKEY_fromdata(maker.get(), &made_key, EVP_PKEY_KEYPAIR, parameters.get()) != 1)
    throw std::runtime_error("OpenSSL cannot make a key");
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(made_key, &EVP_PKEY_free);
  BN_CTX_end(context.get());
  return der_of(key.get());
}

}  // namespace cohive::sim
