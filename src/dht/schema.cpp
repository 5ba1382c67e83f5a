#include "cohive/dht/schema.hpp"

#include <cmath>
#include <mutex>
#include <unordered_map>

#include "subkey.hpp"

namespace cohive::dht {

using msgpack::Value;

struct SchemaType::Node {
  Predicate accepts;
  // Set for map(): dictionary records are checked entry by entry.
  std::optional<std::pair<SchemaType, SchemaType>> entry;
};

namespace {

bool names_owner(std::string_view bytes) {
  // From the start and without newlines before the marker's end, as the pattern that hivemind matches.
  const auto line = bytes.substr(0, bytes.find('\n'));
  const auto at = line.find(kOwnerMarker);
  return at != std::string_view::npos && line.find(']', at + kOwnerMarker.size() + 1) != std::string_view::npos;
}

}  // namespace

SchemaType SchemaType::satisfies(Predicate predicate) {
  return SchemaType(std::make_shared<const Node>(Node{std::move(predicate), std::nullopt}));
}

bool SchemaType::accepts(const Value& value) const {
  return node_->accepts(value);
}

SchemaType SchemaType::any() {
  return satisfies([](const Value&) { return true; });
}
SchemaType SchemaType::null() {
  return satisfies([](const Value& value) { return value.is_nil(); });
}
SchemaType SchemaType::boolean() {
  return satisfies([](const Value& value) { return value.get_if<bool>() != nullptr; });
}
SchemaType SchemaType::integer(std::int64_t min) {
  return satisfies([min](const Value& value) {
    if (const auto* large = value.get_if<std::uint64_t>()) return min < 0 || *large >= static_cast<std::uint64_t>(min);
    const auto* small = value.get_if<std::int64_t>();
    return small && *small >= min;
  });
}
SchemaType SchemaType::number(double min) {
  return satisfies([min](const Value& value) {
    const auto* number = value.get_if<double>();
    return number && *number >= min;
  });
}
SchemaType SchemaType::string() {
  return satisfies([](const Value& value) { return value.get_if<std::string>() != nullptr; });
}
SchemaType SchemaType::bytes() {
  return satisfies([](const Value& value) { return value.get_if<msgpack::Bin>() != nullptr; });
}
SchemaType SchemaType::bytes_with_public_key() {
  return satisfies([](const Value& value) {
    const auto* raw = value.get_if<msgpack::Bin>();
    return raw && names_owner(raw->data);
  });
}

SchemaType SchemaType::list(SchemaType item) {
  return satisfies([item](const Value& value) {
    const auto* array = value.get_if<msgpack::Array>();
    if (!array) return false;
    for (const auto& one : array->items)
      if (!item.accepts(one)) return false;
    return true;
  });
}

SchemaType SchemaType::tuple(std::vector<SchemaType> items) {
  return satisfies([items](const Value& value) {
    const auto* tuple = value.get_if<msgpack::Tuple>();
    if (!tuple || tuple->items.size() != items.size()) return false;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (!items[i].accepts(tuple->items[i])) return false;
    return true;
  });
}

SchemaType SchemaType::map(SchemaType key, SchemaType value) {
  const auto accepts = [key, value](const Value& candidate) {
    const auto* entries = candidate.get_if<msgpack::Map>();
    if (!entries) return false;
    for (const auto& [name, content] : entries->entries)
      if (!key.accepts(name) || !value.accepts(content)) return false;
    return true;
  };
  return SchemaType(std::make_shared<const Node>(Node{accepts, std::pair(key, value)}));
}

SchemaType SchemaType::model(std::vector<std::pair<std::string, SchemaType>> fields) {
  return satisfies([fields](const Value& value) {
    const auto* map = value.get_if<msgpack::Map>();
    if (!map || map->entries.size() != fields.size()) return false;
    for (const auto& [name, type] : fields) {
      const Value* field = map->find(name);
      if (!field || !type.accepts(*field)) return false;
    }
    return true;
  });
}

SchemaType SchemaType::any_of(std::vector<SchemaType> alternatives) {
  return satisfies([alternatives](const Value& value) {
    for (const auto& one : alternatives)
      if (one.accepts(value)) return true;
    return false;
  });
}

/// Key id -> the types that its field has in the merged schemas.
struct SchemaValidator::Rules {
  std::unordered_map<DhtId, std::vector<SchemaType>> types;
  bool allow_extra_keys = true;
};

struct SchemaValidator::Impl {
  mutable std::mutex mutex;
  std::shared_ptr<const Rules> rules;
};

SchemaValidator::SchemaValidator(SchemaFields fields, const std::string& prefix, bool allow_extra_keys)
    : impl_(std::make_unique<Impl>()) {
  auto rules = std::make_shared<Rules>();
  rules->allow_extra_keys = allow_extra_keys;
  for (auto& [name, type] : fields)
    rules->types[DhtId::of(prefix.empty() ? name : prefix + "_" + name)].push_back(std::move(type));
  impl_->rules = std::move(rules);
}

SchemaValidator::~SchemaValidator() = default;

std::shared_ptr<const SchemaValidator::Rules> SchemaValidator::rules() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->rules;
}

bool SchemaValidator::validate(const Record& record) const {
  const auto current = rules();
  const auto id = DhtId::from_bytes(as_bytes(record.key));
  const auto found = id ? current->types.find(*id) : current->types.end();
  if (found == current->types.end()) return current->allow_extra_keys;
  const auto value = msgpack::decode(as_bytes(record.value));
  if (!value) return false;
  if (is_subkey_tag(record.subkey)) {
    const auto subkey = msgpack::decode(as_bytes(record.subkey));
    if (!subkey) return false;
    for (const auto& type : found->second) {
      const auto& entry = type.node_->entry;
      if (entry && entry->first.accepts(*subkey) && entry->second.accepts(*value)) return true;
    }
    return false;
  }
  // A map would be taken for a dictionary record by readers.
  if (value->get_if<msgpack::Map>()) return false;
  for (const auto& type : found->second)
    if (type.accepts(*value)) return true;
  return false;
}

bool SchemaValidator::merge_with(const RecordValidator& other) {
  const auto* schema = dynamic_cast<const SchemaValidator*>(&other);
  if (!schema) return false;
  const auto theirs = schema->rules();
  auto merged = std::make_shared<Rules>(*rules());
  merged->allow_extra_keys = merged->allow_extra_keys || theirs->allow_extra_keys;
  for (const auto& [key, types] : theirs->types) {
    auto& all = merged->types[key];
    all.insert(all.end(), types.begin(), types.end());
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->rules = std::move(merged);
  return true;
}

SchemaFields dictionary_schema(std::string key) {
  return {{std::move(key), SchemaType::map(SchemaType::any(), SchemaType::any())}};
}

SchemaFields training_progress_schema() {
  const auto report = SchemaType::model({{"peer_id", SchemaType::bytes()},
                                         {"epoch", SchemaType::integer(0)},
                                         {"samples_accumulated", SchemaType::integer(0)},
                                         {"samples_per_second", SchemaType::number(0)},
                                         {"time", SchemaType::number()},
                                         {"client_mode", SchemaType::boolean()}});
  return {{"progress", SchemaType::map(SchemaType::bytes_with_public_key(), SchemaType::optional(report))}};
}

SchemaFields training_metrics_schema() {
  const auto report = SchemaType::model({{"step", SchemaType::integer(0)},
                                         {"samples_per_second", SchemaType::number(0)},
                                         {"samples_accumulated", SchemaType::integer(0)},
                                         {"loss", SchemaType::number()},
                                         {"mini_steps", SchemaType::integer(0)}});
  return {{"metrics", SchemaType::map(SchemaType::bytes_with_public_key(), report)}};
}

}  // namespace cohive::dht
