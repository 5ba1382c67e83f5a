#include "validators.hpp"

#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include "cohive/core/msgpack.hpp"
#include "errors.hpp"
#include "events.hpp"

namespace cohive::c {
namespace {

constexpr unsigned kRsaBits = 2048;

/// A fresh key as PKCS#1 DER.
std::string make_rsa_key() {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_RSA_gen(kRsaBits), EVP_PKEY_free);
  unsigned char* der = nullptr;
  const int size = key ? i2d_PrivateKey(key.get(), &der) : -1;
  if (size <= 0) throw std::runtime_error("an RSA key could not be made");
  std::string bytes(reinterpret_cast<const char*>(der), static_cast<std::size_t>(size));
  OPENSSL_clear_free(der, static_cast<std::size_t>(size));
  return bytes;
}

/// Asks the process that the library is in. Its answer takes a while, so it is never waited for on the loop: a cost
/// above what is checked there has records checked on a thread of low priority.
class CustomValidator final : public dht::RecordValidator {
 public:
  CustomValidator(std::uint64_t tag, int priority, std::chrono::milliseconds timeout)
      : tag_(tag), priority_(priority), timeout_(timeout) {}

  bool validate(const dht::Record& record) const override {
    const std::pair question(this, &record);
    return ask(
        [](std::uint64_t, const void* argument) {
          const auto& [self, record] =
              *static_cast<const std::pair<const CustomValidator*, const dht::Record*>*>(argument);
          using msgpack::Bin;
          return msgpack::encode(msgpack::Array{{self->tag_, Bin{record->key},
                                                 record->subkey == kRegular ? msgpack::Value() : Bin{record->subkey},
                                                 Bin{record->value}, record->expiration}});
        },
        &question, timeout_);
  }
  std::size_t cost(const dht::Record& record) const override {
    return kMoreThanInline + dht::RecordValidator::cost(record);
  }
  int priority() const override { return priority_; }

 private:
  static constexpr std::string_view kRegular = "\xc0";  // the msgpack of nil
  static constexpr std::size_t kMoreThanInline = 49;    // of src/dht/protocol.cpp
  std::uint64_t tag_;
  int priority_;
  std::chrono::milliseconds timeout_;
};

const dht::RsaSignatureValidator& signer(cohive_validator* validator) {
  if (!there(validator, "validator").rsa)
    refuse("this validator has no key: only cohive_validator_rsa() makes one that has");
  return *validator->rsa;
}

}  // namespace
}  // namespace cohive::c

using namespace cohive::c;

std::int32_t cohive_validator_rsa(const std::uint8_t* pkcs1_der, std::size_t size, cohive_validator** validator) {
  return guarded([&] {
    there(validator, "validator") = nullptr;
    std::string der = pkcs1_der ? std::string(reinterpret_cast<const char*>(pkcs1_der), size) : make_rsa_key();
    auto rsa = std::make_shared<cohive::dht::RsaSignatureValidator>(cohive::as_bytes(der));
    *validator = new cohive_validator{rsa, rsa, std::move(der), {}};
  });
}

std::int32_t cohive_validator_custom(std::uint64_t tag, std::int32_t priority, double timeout,
                                     cohive_validator** validator) {
  return guarded([&] {
    there(validator, "validator") = nullptr;
    if (!(timeout > 0 && timeout <= 60)) refuse("timeout must be more than 0 and at most 60 seconds");
    const auto limit = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000) + 1);
    *validator = new cohive_validator{std::make_shared<CustomValidator>(tag, priority, limit), nullptr, {}, {}};
  });
}

void cohive_validator_free(cohive_validator* validator) {
  if (validator && !validator->origin.elsewhere()) delete validator;
}

std::int32_t cohive_validator_describe(cohive_validator* validator, cohive_bytes* description) {
  return guarded([&] {
    using namespace cohive::msgpack;
    const auto& rsa = signer(validator);
    give(description, encode(Map{{{"public_key", rsa.public_key()},
                                  {"marker", Bin{rsa.ownership_marker()}},
                                  {"private_key", Bin{validator->private_key}}}}));
  });
}

std::int32_t cohive_rsa_sign(cohive_validator* validator, const std::uint8_t* data, std::size_t size,
                             cohive_bytes* signature) {
  return guarded([&] {
    if (size > 0) there(data, "data");
    give(signature, signer(validator).sign(std::string(reinterpret_cast<const char*>(data), size)));
  });
}

std::int32_t cohive_rsa_verify(const char* public_key, const std::uint8_t* data, std::size_t size,
                               const std::uint8_t* signature, std::size_t signature_size) {
  return guarded([&] {
    there(public_key, "public_key");
    if (size > 0) there(data, "data");
    if (signature_size > 0) there(signature, "signature");
    // Any key verifies; this one is made once, for the cache of parsed keys that it has.
    static const cohive::dht::RsaSignatureValidator verifier(cohive::as_bytes(make_rsa_key()));
    const std::string bytes(reinterpret_cast<const char*>(data), size);
    const std::string_view text(reinterpret_cast<const char*>(signature), signature_size);
    if (verifier.verify(public_key, bytes, text)) return static_cast<std::int32_t>(COHIVE_OK);
    return fail(COHIVE_INVALID_RECORD, "the signature is not one of this key");
  });
}
