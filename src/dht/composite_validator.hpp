// Validators in order: sign ascending, validate and strip descending. Source: docs/wire/hivemind.md, section 4.1.
#pragma once

#include <algorithm>

#include "cohive/dht/validation.hpp"

namespace cohive::dht {

class CompositeValidator {
 public:
  void add(std::shared_ptr<RecordValidator> validator) {
    for (const auto& present : validators_)
      if (present->merge_with(*validator)) return;
    const auto at = std::find_if(validators_.begin(), validators_.end(),
                                 [&](const auto& other) { return other->priority() > validator->priority(); });
    validators_.insert(at, std::move(validator));
  }
  bool empty() const { return validators_.empty(); }
  std::size_t size() const { return validators_.size(); }

  std::string sign(Record record) const {
    for (const auto& validator : validators_) record.value = validator->sign_value(record);
    return std::move(record.value);
  }
  /// Returns what all validators together cost, see RecordValidator::cost.
  std::size_t cost(const Record& record) const {
    std::size_t sum = 0;
    for (const auto& validator : validators_) sum += validator->cost(record);
    return sum;
  }
  std::size_t cost(const std::vector<Record>& records) const {
    std::size_t sum = 0;
    for (const Record& record : records) sum += cost(record);
    return sum;
  }
  bool validate(Record record) const {
    for (auto validator = validators_.rbegin(); validator != validators_.rend(); ++validator) {
      if (!(*validator)->validate(record)) return false;
      if (validator + 1 != validators_.rend()) record.value = (*validator)->strip_value(record);
    }
    return true;
  }
  std::string strip(Record record) const {
    for (auto validator = validators_.rbegin(); validator != validators_.rend(); ++validator)
      record.value = (*validator)->strip_value(record);
    return std::move(record.value);
  }

 private:
  std::vector<std::shared_ptr<RecordValidator>> validators_;  // ascending priority
};

}  // namespace cohive::dht
