#include "storage.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/validation.hpp"
#include "core/detail/assertion.hpp"
#include "core/detail/msgpack_reader.hpp"

namespace cohive::dht {

namespace {
constexpr std::int8_t kDictionaryType = 0x50;
constexpr std::size_t kEntryOverhead = 24;  // headers and expiration of an encoded entry, rounded up
// A table that holds so many has room for this many at once: moving a hundred thousand to a larger one takes long.
constexpr std::size_t kFewRecords = 4096, kMostReserved = 1 << 17;
constexpr std::size_t kMaxDropsAtOnce = 1024;  // entries: keeps one call short when very many expire together
// More objects than an entry can be made of: a subkey, a value and an expiration.
constexpr std::size_t kMaxValuesOfAnEntry = Subkey::kMaxBytes + 8;

std::size_t cost_of(const Dictionary::Entry& entry) {
  return entry.subkey.size() + entry.value.size() + kEntryOverhead;
}

void append_number(std::string& out, std::size_t number, std::size_t bytes) {
  for (std::size_t i = bytes; i-- > 0;) out.push_back(static_cast<char>(number >> 8 * i));
}

std::size_t header_of_array(std::size_t size) {
  return size < 16 ? 1 : size <= 0xffff ? 3 : 5;
}

void append_array_header(std::string& out, std::size_t size) {
  if (size < 16) {
    out.push_back(static_cast<char>(0x90 | size));
    return;
  }
  out.push_back(static_cast<char>(size <= 0xffff ? 0xdc : 0xdd));
  append_number(out, size, header_of_array(size) - 1);
}

std::size_t header_of_bin(std::size_t size) {
  return size <= 0xff ? 2 : size <= 0xffff ? 3 : 5;
}

void append_bin(std::string& out, std::string_view bytes) {
  const std::size_t width = header_of_bin(bytes.size()) - 1;
  out.push_back(static_cast<char>(width == 1 ? 0xc4 : width == 2 ? 0xc5 : 0xc6));
  append_number(out, bytes.size(), width);
  out += bytes;
}

constexpr std::size_t kLongestExtHeader = 6;

/// For more than sixteen bytes, as all dictionaries have.
void append_ext_header(std::string& out, std::int8_t type, std::size_t size) {
  const std::size_t width = header_of_bin(size) - 1;
  out.push_back(static_cast<char>(width == 1 ? 0xc7 : width == 2 ? 0xc8 : 0xc9));
  append_number(out, size, width);
  out.push_back(static_cast<char>(type));
}

/// Python may write a list as a tuple.
ByteView untupled(ByteView object) {
  constexpr std::int8_t kTupleType = 0x40;
  const auto ext = msgpack::extension_of(object);
  return ext && ext->type == kTupleType ? ext->payload : object;
}

/// The items of a list of exactly `count`; false when it is none.
bool take_items(ByteView list, std::span<ByteView> items) {
  list = untupled(list);
  const auto size = msgpack::take_array(list);
  if (!size || *size != items.size()) return false;
  for (ByteView& item : items) {
    const auto taken = msgpack::take(list, list.size());
    if (!taken) return false;
    item = *taken;
  }
  return list.empty();
}
}  // namespace

Dictionary::Dictionary(const Dictionary& other)
    : entries_(other.entries_), latest_(other.latest_), bytes_(other.bytes_), identities_(other.identities_) {}

void Dictionary::Index::add(const std::string& identity, const Entry& entry) {
  by_expiration.emplace(entry.expiration, Name{&identity});
  shares.add(entry.from, entry.expiration, Name{&identity}, cost_of(entry));
  auto& list = list_of(entry);
  entry.place = list.size();
  list.push_back(&entry);
}

void Dictionary::Index::remove(const std::string& identity, const Entry& entry) {
  shares.remove(entry.from, entry.expiration, Name{&identity}, cost_of(entry));
  by_expiration.erase({entry.expiration, Name{&identity}});
  auto& list = list_of(entry);
  swap(list, entry.place, list.size() - 1);
  list.pop_back();
}

std::vector<const Dictionary::Entry*>& Dictionary::Index::list_of(const Entry& entry) {
  return entry.subkey.find(kOwnerMarker) != std::string::npos ? owned : others;
}

void Dictionary::Index::swap(std::vector<const Entry*>& list, std::size_t a, std::size_t b) {
  std::swap(list[a], list[b]);
  list[a]->place = a;
  list[b]->place = b;
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
  identities_ += identity.size();
  if (index_) index_->add(identity, entry);
  latest_ = std::max(latest_, expiration);
  return true;
}

void Dictionary::erase(const std::string& identity) {
  const auto at = entries_.find(identity);
  if (at == entries_.end()) return;
  bytes_ -= cost_of(at->second);
  identities_ -= at->first.size();
  if (index_) index_->remove(at->first, at->second);
  entries_.erase(at);
}

bool Dictionary::has_expired(double now) const {
  const auto& by_expiration = index().by_expiration;
  return !by_expiration.empty() && by_expiration.begin()->first < now;
}

void Dictionary::drop_expired(double now) {
  std::size_t dropped = 0;
  if (index_) {
    for (; dropped < kMaxDropsAtOnce && has_expired(now); ++dropped)
      erase(*index_->by_expiration.begin()->second.identity);
    return;
  }
  for (auto at = entries_.begin(); at != entries_.end() && dropped < kMaxDropsAtOnce;) {
    const auto next = std::next(at);
    if (at->second.expiration < now) {
      erase(at->first);
      ++dropped;
    }
    at = next;
  }
}

void Dictionary::shrink(const StorageLimits& limits) {
  while (entries_.size() > limits.max_subkeys) erase(*index().shares.first_by_count().identity);
  while (bytes_ > limits.max_dictionary_bytes) erase(*index().shares.first_by_bytes().identity);
}

void Dictionary::drop_of_largest(std::size_t enough) {
  const PeerId largest = largest_sender();
  const std::size_t before = memory();
  do {
    erase(*index().shares.first_by_bytes().identity);
  } while (largest_sender() == largest && before - memory() < enough);
}

std::size_t Dictionary::memory() const {
  return bytes_ + identities_ + entries_.size() * kEntryMemory + senders() * kSenderMemory;
}

std::string Dictionary::encoded() const {
  std::vector<const Entry*> all;
  all.reserve(entries_.size());
  for (const auto& [identity, entry] : entries_) all.push_back(&entry);
  return encode(all);
}

std::string Dictionary::encode(std::span<const Entry* const> entries) const {
  constexpr std::size_t kDouble = 9;
  std::size_t size = header_of_array(3) + 2 * kDouble + header_of_array(entries.size());
  for (const Entry* entry : entries)
    size +=
        header_of_array(3) + entry->subkey.size() + header_of_bin(entry->value.size()) + entry->value.size() + kDouble;
  std::string out;
  out.reserve(kLongestExtHeader + size);
  append_ext_header(out, kDictionaryType, size);
  append_array_header(out, 3);
  msgpack::encode_to(out, std::numeric_limits<double>::infinity());  // the size limit, which no node sets
  msgpack::encode_to(out, latest_);
  append_array_header(out, entries.size());
  for (const Entry* entry : entries) {
    append_array_header(out, 3);
    out += entry->subkey;
    append_bin(out, entry->value);
    msgpack::encode_to(out, entry->expiration);
  }
  return out;
}

Result<Dictionary> Dictionary::decode(ByteView bytes, const StorageLimits& limits, std::size_t* dropped) {
  TRY(auto reader, DictionaryReader::open(bytes, limits));
  Dictionary result;
  while (reader.left() > 0) {
    TRY(auto item, reader.next());
    if (item) {
      result.put(std::move(item->subkey), to_string(item->value), item->expiration);
    } else if (dropped) {
      ++*dropped;
    }
  }
  return result;
}

Result<DictionaryReader> DictionaryReader::open(ByteView bytes, const StorageLimits& limits) {
  const Error bad(cohive::Errc::malformed, "dictionary record");
  const auto ext = msgpack::extension_of(bytes);
  if (!ext || ext->type != kDictionaryType) return bad;
  ByteView rest = untupled(ext->payload);
  const auto fields = msgpack::take_array(rest);
  if (!fields || *fields != 3) return bad;
  const auto most = msgpack::take(rest, 1), latest = msgpack::take(rest, 1);  // of which nothing is believed
  if (!most || !latest) return bad;
  const auto is_number = msgpack::decode(*latest, 1);
  if (!is_number || !is_number->as_number()) return bad;
  rest = untupled(rest);
  const auto entries = msgpack::take_array(rest);
  if (!entries) return bad;
  if (*entries > limits.max_subkeys) return Error(cohive::Errc::limit_exceeded, "dictionary record");
  if (*entries == 0 && !rest.empty()) return bad;
  return DictionaryReader(rest, *entries, limits);
}

Result<std::optional<DictionaryReader::Item>> DictionaryReader::next() {
  const auto entry = msgpack::take(rest_, kMaxValuesOfAnEntry);
  --left_;
  if (!entry || (left_ == 0 && !rest_.empty())) {
    left_ = 0;
    return Error(cohive::Errc::malformed, "dictionary record");
  }
  std::array<ByteView, 3> parts;
  if (!take_items(*entry, parts)) return std::optional<Item>();
  const auto [subkey, value, expiration] = parts;
  const auto bytes = msgpack::bin_of(value);
  if (!bytes || bytes->size() > limits_->max_value_bytes || subkey.size() > Subkey::kMaxBytes)
    return std::optional<Item>();
  const auto name = msgpack::decode(subkey), number = msgpack::decode(expiration, 1);
  const auto until = number ? number->as_number() : std::nullopt;
  auto parsed = name ? Subkey::from_value(*name) : std::nullopt;
  if (!parsed || parsed->encoded.size() > Subkey::kMaxBytes || !until || !std::isfinite(*until))
    return std::optional<Item>();
  return std::optional(Item{std::move(*parsed), *bytes, *until});
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
  return kRecordMemory + (is_dictionary() ? dictionary()->memory() : value()->size());
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
  memory_ += record.memory();
  by_expiration_.insert({record.expiration, key});
  shares_.add(payer(record), record.expiration, key, record.memory());
}

void Storage::uncount(const DhtId& key, const StoredRecord& record) {
  COHIVE_ASSERT(memory_ >= record.memory());
  memory_ -= record.memory();
  const bool counted = by_expiration_.erase({record.expiration, key}) == 1;
  COHIVE_ASSERT(counted);
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
  std::size_t dropped = 0;
  while (dropped < kMaxDropsAtOnce && !by_expiration_.empty() && by_expiration_.begin()->first < now) {
    const DhtId key = by_expiration_.begin()->second;
    const auto* dictionary = records_.at(key).dictionary();
    dropped += 1 + (dictionary ? dictionary->entries().size() : 0);
    erase(key);
  }
}

void Storage::evict() {
  while (records_.size() > limits_.max_records) erase(shares_.first_by_count());
  while (memory() > limits_.max_bytes && !records_.empty()) {
    const std::size_t excess = memory() - limits_.max_bytes;
    const DhtId key = shares_.first_by_bytes();
    StoredRecord& record = records_.at(key);
    auto* dictionary = std::get_if<Dictionary>(&record.content);
    if (!dictionary || dictionary->senders() < 2) {
      erase(key);
      continue;
    }
    uncount(key, record);  // entries of other senders stay
    dictionary->drop_of_largest(excess);
    count(key, record);
  }
}

void Storage::replace(const DhtId& key, StoredRecord record) {
  erase(key);
  count(key, record);
  if (records_.size() == kFewRecords) records_.reserve(std::min(limits_.max_records, kMostReserved));
  records_.insert_or_assign(key, std::move(record));
  evict();
  COHIVE_ASSERT(by_expiration_.size() == records_.size() && (memory() <= limits_.max_bytes || records_.empty()));
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
  if (found->second.is_of_several()) return false;
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
                           const PeerId& from, bool whole) {
  drop_expired(now);
  if (!std::isfinite(expiration) || value.size() > limits_.max_value_bytes || limits_.max_records == 0) return false;
  if (subkey.encoded.size() > Subkey::kMaxBytes || !would_accept(key, &subkey, expiration, now)) return false;
  const auto found = records_.find(key);
  if (found == records_.end() || !found->second.is_dictionary()) {
    Dictionary fresh;
    fresh.put(std::move(subkey), std::move(value), expiration, from);
    replace(key, {std::move(fresh), expiration, from, whole});
    return records_.contains(key);
  }
  StoredRecord& record = found->second;
  record.came_whole |= whole;
  auto& dictionary = std::get<Dictionary>(record.content);
  uncount(key, record);
  dictionary.drop_expired(now);
  dictionary.put(subkey, std::move(value), expiration, from);
  dictionary.shrink(limits_);
  const bool kept = dictionary.contains(subkey);
  if (kept) record.expiration = std::max(record.expiration, expiration);
  count(key, record);
  if (dictionary.entries().empty()) {
    erase(key);
    return false;
  }
  evict();
  return kept && records_.contains(key);
}

bool Storage::store_dictionary(const DhtId& key, const Dictionary& dictionary, double now) {
  bool all = !dictionary.entries().empty();
  for (const auto& [identity, entry] : dictionary.entries()) {
    const bool stored = store_subkey(key, {entry.subkey, identity}, entry.value, entry.expiration, now, entry.from);
    all = all && stored;
  }
  return all;
}

std::size_t Storage::size(double now) {
  drop_expired(now);
  return records_.size();
}

std::vector<DhtId> Storage::keys(Cursor& cursor, std::size_t count) const {
  std::vector<DhtId> result;
  result.reserve(std::min(count, records_.size()));
  auto at = std::make_reverse_iterator(by_expiration_.lower_bound({cursor.expiration, cursor.key}));
  for (; at != by_expiration_.rend() && result.size() < count; ++at) {
    result.push_back(at->second);
    cursor = {at->first, at->second};
  }
  return result;
}

}  // namespace cohive::dht
