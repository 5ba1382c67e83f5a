// Validators as the caller holds them.
#pragma once

#include <memory>
#include <string>

#include "cohive/cohive.h"
#include "cohive/dht/validation.hpp"
#include "fork.hpp"

struct cohive_validator {
  std::shared_ptr<cohive::dht::RecordValidator> validator;
  std::shared_ptr<cohive::dht::RsaSignatureValidator> rsa;  ///< the same one, if it signs
  std::string private_key;                                  ///< of rsa, PKCS#1 DER
  cohive::c::Origin origin;
};
