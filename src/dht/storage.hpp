// What a node keeps: regular values and dictionaries with expirations. Source: hivemind wire spec, sections 3.5 and 3.6.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <variant>

#include "cohive/dht/dht.hpp"

namespace cohive::dht {

struct Timed {
  std::string value;
  double expiration = 0;
};

/// Subkeys by their msgpack bytes.
struct Dictionary {
  double latest_expiration = 0;
  std::map<std::string, Timed> entries;

  /// The newer of two entries with one subkey wins. True when accepted.
  bool put(const std::string& subkey, std::string value, double expiration);
  void drop_expired(double now);
  /// ext 0x50, and back. Decoding is bounded and keeps expired entries, as senders' clocks may differ.
  std::string encode() const;
  static Result<Dictionary> decode(ByteView bytes, std::size_t max_entries);
};

struct StoredRecord {
  std::variant<std::string, Dictionary> content;
  double expiration = 0;
  bool is_dictionary() const { return content.index() == 1; }
};

class Storage {
 public:
  Storage(std::size_t max_records, std::size_t max_subkeys) : max_records_(max_records), max_subkeys_(max_subkeys) {}

  bool store(const DhtId& key, std::string value, double expiration, double now);
  bool store_subkey(const DhtId& key, const std::string& subkey, std::string value, double expiration, double now);
  /// Null when absent or expired.
  const StoredRecord* get(const DhtId& key, double now);
  std::size_t size(double now) {
    drop_expired(now);
    return records_.size();
  }
  std::vector<DhtId> keys() const;

 private:
  StoredRecord& insert(const DhtId& key, StoredRecord record);
  void set_expiration(const DhtId& key, StoredRecord& record, double expiration);
  void drop_expired(double now);
  void erase(const DhtId& key);
  std::size_t max_records_, max_subkeys_;
  std::unordered_map<DhtId, StoredRecord> records_;
  std::set<std::pair<double, DhtId>> by_expiration_;
};

}  // namespace cohive::dht
