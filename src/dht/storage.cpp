#include "storage.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"

namespace cohive::dht {

namespace {
constexpr std::int8_t kDictionaryType = 0x50;
constexpr std::size_t kEntryOverhead = 24;     // headers and expiration of an encoded entry, rounded up
constexpr std::size_t kEntryMemory = 400;      // what an entry takes beside its bytes: the nodes of three trees
constexpr std::size_t kMaxDropsAtOnce = 1024;  // keeps one call short when very many records expire together

std::size_t cost_of(const Dictionary::Entry& entry) {
  return entry.subkey.size() + entry.value.size() + kEntryOverhead;
}

void append_array_header(std::string& out, std::size_t size) {
  const bool wide = size > 0xffff;
  if (size < 16) {
    out.push_back(static_cast<char>(0x90 | size));
    return;
  }
  out.push_back(static_cast<char>(wide ? 0xdd : 0xdc));
  for (int shift = wide ? 24 : 8; shift >= 0; shift -= 8) out.push_back(static_cast<char>(size >> shift));
}

const std::vector<msgpack::Value>* sequence(const msgpack::Value& value) {
  if (const auto* array = value.get_if<msgpack::Array>()) return &array->items;
  if (const auto* tuple = value.get_if<msgpack::Tuple>()) return &tuple->items;
  return nullptr;
}
}  // namespace

Dictionary::Dictionary(const Dictionary& other)
    : entries_(other.entries_), latest_(other.latest_), bytes_(other.bytes_), encoded_(other.encoded_) {}

void Dictionary::Index::add(const std::string& identity, const Entry& entry) {
  by_expiration.emplace(entry.expiration, identity);
  shares.add(entry.from, entry.expiration, identity, cost_of(entry));
}

void Dictionary::Index::remove(const std::string& identity, const Entry& entry) {
  shares.remove(entry.from, entry.expiration, identity, cost_of(entry));
  by_expiration.erase({entry.expiration, identity});
}

Dictionary::Index& Dictionary::index() const {
  if (!index_) {
    index_ = std::make_unique<Index>();
    for (const auto& [identity, entry] : entries_) index_->add(identity, entry);
  }
  return *index_;
}

bool Dictionary::would_accept(const std::string& identity, double expiration) const {
  const auto at = entries_.find(identity);
  return at == entries_.end() || expiration > at->second.expiration;
}

bool Dictionary::put(Subkey subkey, std::string value, double expiration, const PeerId& from) {
  // Dictionaries travel in order: the last place is mostly the right one.
  const bool last = entries_.empty() || entries_.rbegin()->first < subkey.identity;
  auto at = last ? entries_.end() : entries_.lower_bound(subkey.identity);
  if (at != entries_.end() && at->first == subkey.identity) {
    if (!(expiration > at->second.expiration)) return false;
    const auto next = std::next(at);
    erase(subkey.identity);
    at = next;
  }
  const auto& [identity, entry] = *entries_.emplace_hint(
      at, std::move(subkey.identity), Entry{std::move(subkey.encoded), std::move(value), expiration, from});
  bytes_ += cost_of(entry);
  if (index_) index_->add(identity, entry);
  latest_ = std::max(latest_, expiration);
  encoded_.clear();
  return true;
}

void Dictionary::erase(const std::string& identity) {
  const auto at = entries_.find(identity);
  if (at == entries_.end()) return;
  bytes_ -= cost_of(at->second);
  if (index_) index_->remove(identity, at->second);
  entries_.erase(at);
  encoded_.clear();
}

bool Dictionary::has_expired(double now) const {
  const auto& by_expiration = index().by_expiration;
  return !by_expiration.empty() && by_expiration.begin()->first < now;
}

void Dictionary::drop_expired(double now) {
  if (index_) {
    const auto& by_expiration = index_->by_expiration;
    while (!by_expiration.empty() && by_expiration.begin()->first < now)
      erase(std::string(by_expiration.begin()->second));
    return;
  }
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    if (at->second.expiration < now) erase(std::string(at->first));
    at = next;
  }
}

bool Dictionary::shrink(const StorageLimits& limits, const Subkey& subkey) {
  while (entries_.size() > limits.max_subkeys) erase(index().shares.first_by_count());
  while (bytes_ > limits.max_dictionary_bytes) erase(index().shares.first_by_bytes());
  return entries_.contains(subkey.identity);
}

void Dictionary::drop_of_largest(std::size_t bytes) {
  const PeerId largest = largest_sender();
  const std::size_t before = bytes_;
  do {
    erase(index().shares.first_by_bytes());
  } while (largest_sender() == largest && before - bytes_ < bytes);
}

const std::string& Dictionary::encoded() const {
  if (!encoded_.empty()) return encoded_;
  return encoded_ = encode(all_entries());
}

std::vector<const Dictionary::Entry*> Dictionary::all_entries() const {
  std::vector<const Entry*> all;
  all.reserve(entries_.size());
  for (const auto& [identity, entry] : entries_) all.push_back(&entry);
  return all;
}

std::string Dictionary::encode(const std::vector<const Entry*>& entries) const {
  std::string payload, encoded;
  payload.reserve(entries.size() == entries_.size() ? bytes_ + kEntryOverhead : 0);
  append_array_header(payload, 3);
  msgpack::encode_to(payload, std::numeric_limits<double>::infinity());  // the size limit, which no node sets
  msgpack::encode_to(payload, latest_);
  append_array_header(payload, entries.size());
  for (const Entry* entry : entries) {
    append_array_header(payload, 3);
    payload += entry->subkey;
    msgpack::encode_to(payload, msgpack::Value::bin(as_bytes(entry->value)));
    msgpack::encode_to(payload, entry->expiration);
  }
  msgpack::append_ext(encoded, kDictionaryType, payload);
  return encoded;
}

Result<Dictionary> Dictionary::decode(ByteView bytes, const StorageLimits& limits, std::size_t* dropped) {
  const Error bad(cohive::Errc::malformed, "dictionary record");
  TRY(auto outer, msgpack::decode(bytes, 1));
  const auto* ext = outer.get_if<msgpack::Ext>();
  if (!ext || ext->type != kDictionaryType) return bad;
  // An entry is four values, more when its subkey is a tuple.
  TRY(auto inner, msgpack::decode(as_bytes(ext->data), 16 * (limits.max_subkeys + 1)));
  const auto* fields = sequence(inner);
  if (!fields || fields->size() != 3 || !(*fields)[1].as_number()) return bad;
  const auto* list = sequence((*fields)[2]);
  if (!list) return bad;
  if (list->size() > limits.max_subkeys) return Error(cohive::Errc::limit_exceeded, "dictionary record");
  Dictionary result;
  for (const auto& item : *list) {
    const auto* entry = sequence(item);
    const auto* value = entry && entry->size() == 3 ? (*entry)[1].get_if<msgpack::Bin>() : nullptr;
    const auto expiration = value ? (*entry)[2].as_number() : std::nullopt;
    auto subkey = expiration ? Subkey::from_value((*entry)[0]) : std::nullopt;
    if (!subkey || !std::isfinite(*expiration) || value->data.size() > limits.max_value_bytes ||
        subkey->encoded.size() > Subkey::kMaxBytes) {
      if (dropped) ++*dropped;
      continue;
    }
    result.put(std::move(*subkey), value->data, *expiration);
  }
  return result;
}

std::size_t StoredRecord::fingerprint() const {
  std::size_t sum = content.index();
  const auto add = [&sum](std::string_view bytes, double until) {
    for (const std::size_t part : {std::hash<std::string_view>()(bytes), std::hash<double>()(until)})
      sum = (sum ^ part) * 0x9e3779b97f4a7c15 + 1;  // the golden ratio spreads the bits
  };
  if (const auto* plain = value()) {
    add(*plain, expiration);
  } else {
    for (const auto& [identity, entry] : dictionary()->entries()) {
      add(identity, entry.expiration);
      add(entry.value, entry.expiration);
    }
  }
  return sum;
}

std::size_t StoredRecord::memory() const {
  const auto* entries = dictionary();
  return bytes() + (entries ? entries->entries().size() * kEntryMemory : 0);
}

void Storage::erase(const DhtId& key) {
  const auto found = records_.find(key);
  if (found == records_.end()) return;
  uncount(key, found->second);
  records_.erase(found);
}

/// The largest sender of a dictionary pays for it, not the peer that began it.
PeerId Storage::payer(const StoredRecord& record) {
  const auto* dictionary = record.dictionary();
  return dictionary && dictionary->senders() > 0 ? dictionary->largest_sender() : record.from;
}

void Storage::count(const DhtId& key, const StoredRecord& record) {
  bytes_ += record.memory();
  by_expiration_.insert({record.expiration, key});
  shares_.add(payer(record), record.expiration, key, record.memory());
}

void Storage::uncount(const DhtId& key, const StoredRecord& record) {
  bytes_ -= record.memory();
  by_expiration_.erase({record.expiration, key});
  shares_.remove(payer(record), record.expiration, key, record.memory());
}

void Storage::erase(const DhtId& key, std::string_view tag, double expiration) {
  const auto found = records_.find(key);
  if (found == records_.end()) return;
  auto* dictionary = std::get_if<Dictionary>(&found->second.content);
  if (!dictionary) {
    if (tag == kRegularTag && found->second.expiration == expiration) erase(key);
    return;
  }
  const auto subkey = Subkey::from_tag(tag);
  const auto entry = subkey ? dictionary->entries().find(subkey->identity) : dictionary->entries().end();
  if (entry == dictionary->entries().end() || entry->second.expiration != expiration) return;
  uncount(key, found->second);
  dictionary->erase(subkey->identity);
  count(key, found->second);
  if (dictionary->entries().empty()) erase(key);
}

void Storage::drop_expired(double now) {
  for (std::size_t i = 0; i < kMaxDropsAtOnce && !by_expiration_.empty() && by_expiration_.begin()->first < now; ++i)
    erase(DhtId(by_expiration_.begin()->second));
}

void Storage::make_room() {
  while (records_.size() > limits_.max_records) erase(shares_.first_by_count());
  while (bytes_ > limits_.max_bytes && !records_.empty()) {
    const DhtId key = shares_.first_by_bytes();
    StoredRecord& record = records_.at(key);
    auto* dictionary = std::get_if<Dictionary>(&record.content);
    if (!dictionary || dictionary->senders() < 2) {
      erase(key);
      continue;
    }
    uncount(key, record);  // entries of other senders stay
    dictionary->drop_of_largest(bytes_ + record.memory() - limits_.max_bytes);
    count(key, record);
  }
}

void Storage::replace(const DhtId& key, StoredRecord record) {
  erase(key);
  count(key, record);
  records_.insert_or_assign(key, std::move(record));
  make_room();
}

const StoredRecord* Storage::get(const DhtId& key, double now) {
  const auto found = records_.find(key);
  if (found == records_.end()) return nullptr;
  if (found->second.expiration < now) {
    erase(key);
    return nullptr;
  }
  auto* dictionary = std::get_if<Dictionary>(&found->second.content);
  if (dictionary && dictionary->has_expired(now)) {
    uncount(key, found->second);
    dictionary->drop_expired(now);
    count(key, found->second);
  }
  return &found->second;
}

bool Storage::would_accept(const DhtId& key, const Subkey* subkey, double expiration, double now) const {
  if (!(expiration >= now)) return false;
  const auto found = records_.find(key);
  if (found == records_.end()) return true;
  const auto* dictionary = found->second.dictionary();
  if (subkey && dictionary) return dictionary->would_accept(subkey->identity, expiration);
  if (dictionary && dictionary->senders() > 1) return false;
  return expiration > found->second.expiration;
}

bool Storage::store(const DhtId& key, std::string value, double expiration, double now, const PeerId& from) {
  drop_expired(now);
  if (!std::isfinite(expiration) || value.size() > limits_.max_value_bytes || limits_.max_records == 0) return false;
  if (!would_accept(key, nullptr, expiration, now)) return false;
  replace(key, {std::move(value), expiration, from});
  return records_.contains(key);
}

bool Storage::store_subkey(const DhtId& key, Subkey subkey, std::string value, double expiration, double now,
                           const PeerId& from) {
  drop_expired(now);
  if (!std::isfinite(expiration) || value.size() > limits_.max_value_bytes || limits_.max_records == 0) return false;
  if (subkey.encoded.size() > Subkey::kMaxBytes || !would_accept(key, &subkey, expiration, now)) return false;
  const auto found = records_.find(key);
  if (found == records_.end() || !found->second.is_dictionary()) {
    Dictionary fresh;
    fresh.put(std::move(subkey), std::move(value), expiration, from);
    replace(key, {std::move(fresh), expiration, from});
    return records_.contains(key);
  }
  StoredRecord& record = found->second;
  auto& dictionary = std::get<Dictionary>(record.content);
  uncount(key, record);
  dictionary.drop_expired(now);
  dictionary.put(subkey, std::move(value), expiration, from);
  const bool kept = dictionary.shrink(limits_, subkey);
  if (kept) record.expiration = std::max(record.expiration, expiration);
  count(key, record);
  if (dictionary.entries().empty()) {
    erase(key);
    return false;
  }
  make_room();
  return kept && records_.contains(key);
}

bool Storage::store_dictionary(const DhtId& key, const Dictionary& dictionary, double now) {
  bool all = !dictionary.entries().empty();
  for (const auto& [identity, entry] : dictionary.entries()) {
    const bool stored = store_subkey(key, {entry.subkey, identity}, entry.value, entry.expiration, now);
    all = all && stored;
  }
  return all;
}

std::size_t Storage::size(double now) {
  drop_expired(now);
  return records_.size();
}

std::vector<DhtId> Storage::keys() const {
  std::vector<DhtId> result;
  result.reserve(records_.size());
  for (auto item = by_expiration_.rbegin(); item != by_expiration_.rend(); ++item) result.push_back(item->second);
  return result;
}

}  // namespace cohive::dht
