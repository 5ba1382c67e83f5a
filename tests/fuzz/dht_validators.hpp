// The validators of a trainer, made once: a key takes tens of milliseconds.
#pragma once

#include "cohive/dht/schema.hpp"
#include "cohive/dht/validation.hpp"

namespace cohive::fuzz {

inline const std::shared_ptr<dht::RsaSignatureValidator>& rsa_validator() {
  static const auto validator = std::make_shared<dht::RsaSignatureValidator>();
  return validator;
}
/// Of "run_progress".
inline const std::shared_ptr<dht::SchemaValidator>& schema_validator() {
  static const auto validator = std::make_shared<dht::SchemaValidator>(dht::training_progress_schema(), "run");
  return validator;
}

}  // namespace cohive::fuzz
