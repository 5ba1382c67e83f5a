/// \file
/// Schemas of DHT records: which values a key may hold. Source: docs/wire/hivemind.md, sections 4.3 and 4.4.
/// Types are exact, as hivemind's strict types are: an integer is not a float, a list is not a tuple.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohive/dht/validation.hpp"

namespace cohive::dht {

/// What a value must be. Immutable, cheap to copy, safe to share between threads.
class SchemaType {
 public:
  /// Tells whether a value is accepted; called on any thread.
  using Predicate = std::function<bool(const msgpack::Value&)>;

  /// Accepts every value.
  static SchemaType any();
  /// Accepts nil.
  static SchemaType null();
  /// Accepts true and false, no numbers.
  static SchemaType boolean();
  /// Accepts integers from `min` on, no floats.
  static SchemaType integer(std::int64_t min = std::numeric_limits<std::int64_t>::min());
  /// A float64 that is not NaN.
  static SchemaType number(double min = -std::numeric_limits<double>::infinity());
  /// Accepts text, no bytes.
  static SchemaType string();
  /// Accepts bytes, no text.
  static SchemaType bytes();
  /// Bytes that name an owner: "...[owner:...]...", so that only the owner can write under this subkey.
  static SchemaType bytes_with_public_key();
  /// Accepts arrays of any length whose items all fit; no tuples.
  static SchemaType list(SchemaType item);
  /// Accepts tuples of exactly these items.
  static SchemaType tuple(std::vector<SchemaType> items);
  /// As the type of a field: a dictionary record, each entry checked by itself. Inside a value: a map.
  static SchemaType map(SchemaType key, SchemaType value);
  /// A map with exactly these text keys.
  static SchemaType model(std::vector<std::pair<std::string, SchemaType>> fields);
  /// Accepts what one of the types accepts.
  static SchemaType any_of(std::vector<SchemaType> alternatives);
  /// Accepts nil, and what the type accepts.
  static SchemaType optional(SchemaType type) { return any_of({null(), std::move(type)}); }
  /// Accepts what the predicate accepts.
  static SchemaType satisfies(Predicate predicate);

  /// Tells whether the value is as this type demands.
  bool accepts(const msgpack::Value& value) const;

 private:
  friend class SchemaValidator;
  struct Node;
  explicit SchemaType(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

/// The types of a set of keys.
using SchemaFields = std::vector<std::pair<std::string, SchemaType>>;

/// Accepts records of the schema's keys only when they match. Two of them merge: either schema may match then, and
/// extra keys are allowed if one of them allowed them.
class SchemaValidator final : public RecordValidator {
 public:
  /// \param prefix            key of a field is "<prefix>_<field>", or the field's name when empty
  /// \param allow_extra_keys  accept records of keys that are not in the schema
  explicit SchemaValidator(SchemaFields fields, const std::string& prefix = {}, bool allow_extra_keys = true);
  ~SchemaValidator() override;

  /// Tells whether the record's value fits a type of its key, or its key is an extra one and these are allowed.
  bool validate(const Record& record) const override;
  bool merge_with(const RecordValidator& other) override;

 private:
  struct Rules;
  std::shared_ptr<const Rules> rules() const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Any dictionary under the key, and no plain value, which somebody could put in its place for as long as a record
/// lives.
SchemaFields dictionary_schema(std::string key);

/// "<run_id>_progress": what each trainer reports about itself, under a subkey that it owns. Section 4.4.
SchemaFields training_progress_schema();

/// "<run_id>_metrics": what a trainer tells monitors of the epoch that it has ended, the same way. Section 4.4.
SchemaFields training_metrics_schema();

}  // namespace cohive::dht
