#include "storage.hpp"

#include <algorithm>
#include <limits>

#include "cohive/core/errors.hpp"

namespace cohive::dht {

namespace {
constexpr std::int8_t kDictionaryType = 0x50;
}

bool Dictionary::put(const std::string& subkey, std::string value, double expiration) {
  const auto [at, inserted] = entries.try_emplace(subkey);
  if (!inserted && at->second.expiration >= expiration) return false;
  at->second = {std::move(value), expiration};
  latest_expiration = std::max(latest_expiration, expiration);
  return true;
}

void Dictionary::drop_expired(double now) {
  std::erase_if(entries, [now](const auto& item) { return item.second.expiration < now; });
}

std::string Dictionary::encode() const {
  using namespace msgpack;
  Array list;
  list.items.reserve(entries.size());
  for (const auto& [subkey, timed] : entries)
    list.items.push_back(Array{{msgpack::decode(as_bytes(subkey)).value(), Value::bin(as_bytes(timed.value)), timed.expiration}});
  const std::string payload =
      msgpack::encode(Array{{std::numeric_limits<double>::infinity(), latest_expiration, std::move(list)}});
  std::string out;
  append_ext(out, kDictionaryType, payload);
  return out;
}

Result<Dictionary> Dictionary::decode(ByteView bytes, std::size_t max_entries) {
  const Error bad(cohive::Errc::malformed, "dictionary record");
  auto outer = msgpack::decode(bytes);
  if (!outer) return outer.error();
  const auto* ext = outer->get_if<msgpack::Ext>();
  if (!ext || ext->type != kDictionaryType) return bad;
  auto inner = msgpack::decode(as_bytes(ext->data));
  if (!inner) return inner.error();
  const auto* fields = inner->get_if<msgpack::Array>();
  if (!fields || fields->items.size() != 3) return bad;
  const auto latest = fields->items[1].as_number();
  const auto* list = fields->items[2].get_if<msgpack::Array>();
  if (!latest || !list) return bad;
  if (list->items.size() > max_entries) return Error(cohive::Errc::limit_exceeded, "dictionary record");
  Dictionary result;
  for (const auto& item : list->items) {
    const auto* entry = item.get_if<msgpack::Array>();
    if (!entry || entry->items.size() != 3) return bad;
    const auto* value = entry->items[1].get_if<msgpack::Bin>();
    const auto expiration = entry->items[2].as_number();
    if (!value || !expiration) return bad;
    result.put(msgpack::encode(entry->items[0]), value->data, *expiration);
  }
  result.latest_expiration = *latest;
  return result;
}

void Storage::erase(const DhtId& key) {
  const auto found = records_.find(key);
  if (found == records_.end()) return;
  by_expiration_.erase({found->second.expiration, key});
  records_.erase(found);
}

void Storage::drop_expired(double now) {
  while (!by_expiration_.empty() && by_expiration_.begin()->first < now) {
    records_.erase(by_expiration_.begin()->second);
    by_expiration_.erase(by_expiration_.begin());
  }
}

StoredRecord& Storage::insert(const DhtId& key, StoredRecord record) {
  erase(key);
  // The record that expires first makes room.
  while (records_.size() >= max_records_ && !by_expiration_.empty()) erase(DhtId(by_expiration_.begin()->second));
  by_expiration_.insert({record.expiration, key});
  return records_.insert_or_assign(key, std::move(record)).first->second;
}

void Storage::set_expiration(const DhtId& key, StoredRecord& record, double expiration) {
  by_expiration_.erase({record.expiration, key});
  record.expiration = expiration;
  by_expiration_.insert({expiration, key});
}

const StoredRecord* Storage::get(const DhtId& key, double now) {
  const auto found = records_.find(key);
  if (found == records_.end()) return nullptr;
  if (found->second.expiration < now) {
    erase(key);
    return nullptr;
  }
  if (auto* dictionary = std::get_if<Dictionary>(&found->second.content)) dictionary->drop_expired(now);
  return &found->second;
}

bool Storage::store(const DhtId& key, std::string value, double expiration, double now) {
  drop_expired(now);
  if (!(expiration >= now)) return false;
  if (const auto* present = get(key, now); present && !(expiration > present->expiration)) return false;
  insert(key, {std::move(value), expiration});
  return true;
}

bool Storage::store_subkey(const DhtId& key, const std::string& subkey, std::string value, double expiration, double now) {
  drop_expired(now);
  if (!(expiration >= now)) return false;
  const auto* present = get(key, now);
  if (!present || (!present->is_dictionary() && present->expiration < expiration)) {
    Dictionary fresh;
    fresh.put(subkey, std::move(value), expiration);
    insert(key, {std::move(fresh), expiration});
    return true;
  }
  if (!present->is_dictionary()) return false;
  StoredRecord& record = records_.at(key);
  auto& dictionary = std::get<Dictionary>(record.content);
  if (dictionary.entries.size() >= max_subkeys_ && !dictionary.entries.contains(subkey)) return false;
  if (!dictionary.put(subkey, std::move(value), expiration)) return false;
  if (expiration > record.expiration) set_expiration(key, record, expiration);
  return true;
}

std::vector<DhtId> Storage::keys() const {
  std::vector<DhtId> result;
  result.reserve(records_.size());
  for (const auto& [key, record] : records_) result.push_back(key);
  return result;
}

}  // namespace cohive::dht
