// What a node keeps: regular values and dictionaries, each with an expiration, within bounds.
// Source: docs/wire/hivemind.md, sections 3.5 and 3.6.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"
#include "cohive/dht/dht_id.hpp"
#include "shares.hpp"
#include "subkey.hpp"

namespace cohive::dht {

struct StorageLimits {
  std::size_t max_records = 100'000;
  std::size_t max_subkeys = 10'000;                    ///< per dictionary
  std::size_t max_value_bytes = 1 << 20;               ///< per value
  std::size_t max_dictionary_bytes = 3 * 1024 * 1024;  ///< so that a whole one fits into a 4 MiB frame
  std::size_t max_bytes = 256 * 1024 * 1024;           ///< of memory, all together: see Storage::memory
};

// What things take beside their bytes, measured with the allocator of glibc: the nodes of the trees that hold them.
inline constexpr std::size_t kRecordMemory = 448;
inline constexpr std::size_t kEntryMemory = 400;   ///< of a dictionary
inline constexpr std::size_t kSenderMemory = 384;  ///< of a store, and of each dictionary

/// subkey -> (value, expiration): the newer of two values with one subkey wins.
class Dictionary {
 public:
  struct Entry {
    std::string subkey;  ///< msgpack
    std::string value;
    double expiration = 0;
    PeerId from{};                  ///< the peer that stored it, or sent it to a reader; empty: this node
    mutable std::size_t place = 0;  ///< among those that are drawn with it, once there is an index
  };

  Dictionary() = default;
  Dictionary(Dictionary&&) = default;
  Dictionary& operator=(Dictionary&&) = default;
  /// Copies the entries: the copy makes an index of its own when it needs one.
  Dictionary(const Dictionary& other);
  Dictionary& operator=(const Dictionary& other) { return *this = Dictionary(other); }

  /// True when accepted: the subkey is new or `expiration` is later than the present one.
  bool put(Subkey subkey, std::string value, double expiration, const PeerId& from = {});
  /// Whether put would accept.
  bool would_accept(const std::string& identity, double expiration) const;
  bool contains(const Subkey& subkey) const { return entries_.contains(subkey.identity); }
  /// Drops so many at most that one call stays short: readers pass over those that are left.
  void drop_expired(double now);
  bool has_expired(double now) const;
  /// Drops entries of the largest sender until the bounds hold.
  void shrink(const StorageLimits& limits);
  /// Drops entries of the largest sender until so much memory is free or another sender has as much.
  void drop_of_largest(std::size_t memory);
  void erase(const std::string& identity);

  /// By identity of the subkey.
  const std::map<std::string, Entry>& entries() const noexcept { return entries_; }
  /// The latest expiration of any entry ever put; -inf when none was.
  double latest_expiration() const noexcept { return latest_; }
  /// As encoded, rounded up.
  std::size_t bytes() const noexcept { return bytes_; }
  /// All that it takes, which is far more for many small entries.
  std::size_t memory() const;
  /// How many peers stored entries, and the one whose take up most room.
  std::size_t senders() const { return index().shares.senders(); }
  PeerId largest_sender() const { return index().shares.largest(); }

  /// ext 0x50.
  std::string encoded() const;
  /// Returns how many entries there are, or how many of owners.
  std::size_t drawable(bool only_owned) const { return only_owned ? index().owned.size() : entries_.size(); }
  /// The same as encoded() with so many entries, drawn at random: it costs what these cost, however many others there
  /// are.
  template <class Random>
  std::string encoded_sample(std::size_t count, bool only_owned, Random& random) const {
    Index& of = index();
    const std::size_t all = drawable(only_owned), owned = of.owned.size();
    count = std::min(count, all);
    // Both lists are drawn from as if they were one: from the first as often as chance has it.
    std::size_t of_owned = all == owned ? count : 0;
    if (owned > 0 && owned < all)
      for (std::size_t i = 0; i < count; ++i)
        of_owned += std::uniform_int_distribution<std::size_t>(1, all - i)(random) <= owned - of_owned;
    std::vector<const Entry*> drawn = Index::draw(of.owned, of_owned, random);
    std::ranges::copy(Index::draw(of.others, count - of_owned, random), std::back_inserter(drawn));
    return encode(drawn);
  }
  /// Decodes ext 0x50 within the bounds; keeps expired entries, as clocks may differ. Single malformed entries are left
  /// out and counted in `dropped`.
  static Result<Dictionary> decode(ByteView bytes, const StorageLimits& limits, std::size_t* dropped = nullptr);

 private:
  /// An entry by its subkey, which the tree of entries holds.
  struct Name {
    const std::string* identity;
    friend auto operator<=>(const Name& a, const Name& b) { return *a.identity <=> *b.identity; }
    friend bool operator==(const Name& a, const Name& b) { return *a.identity == *b.identity; }
  };
  std::string encode(std::span<const Entry* const> entries) const;
  /// What makes room, drops what has expired and draws. Made when it is first asked: what a search merges needs none.
  struct Index {
    std::set<std::pair<double, Name>> by_expiration;
    Shares<Name> shares;
    std::vector<const Entry*> owned, others;  // in any order; the subkeys of the first name owners
    void add(const std::string& identity, const Entry& entry);
    void remove(const std::string& identity, const Entry& entry);
    static void swap(std::vector<const Entry*>& list, std::size_t a, std::size_t b);
    std::vector<const Entry*>& list_of(const Entry& entry);
    template <class Random>
    static std::vector<const Entry*> draw(std::vector<const Entry*>& list, std::size_t count, Random& random) {
      for (std::size_t i = 0; i < count; ++i)
        swap(list, i, std::uniform_int_distribution<std::size_t>(i, list.size() - 1)(random));
      return {list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count)};
    }
  };
  Index& index() const;

  std::map<std::string, Entry> entries_;  // ordered, so that equal dictionaries encode alike
  double latest_ = -std::numeric_limits<double>::infinity();
  mutable std::unique_ptr<Index> index_;
  std::size_t bytes_ = 0;
  std::size_t identities_ = 0;  // bytes of all keys of entries_
};

/// Reads an encoded dictionary entry by entry, so that a large one need not be decoded in one turn of the loop. A view:
/// the bytes have to stay.
class DictionaryReader {
 public:
  /// Errors: cohive::Errc::malformed; limit_exceeded where it says that it has more entries than the limits allow.
  static Result<DictionaryReader> open(ByteView bytes, const StorageLimits& limits);

  struct Item {
    Subkey subkey;
    ByteView value;
    double expiration = 0;
  };
  /// How many entries are left.
  std::size_t left() const noexcept { return left_; }
  /// The next one, while any is left; nullopt where it is malformed by itself and the others may be good. An error
  /// where nothing behind it can be read.
  Result<std::optional<Item>> next();

 private:
  DictionaryReader(ByteView rest, std::size_t entries, const StorageLimits& limits)
      : rest_(rest), left_(entries), limits_(&limits) {}
  ByteView rest_;
  std::size_t left_;
  const StorageLimits* limits_;
};

struct StoredRecord {
  std::variant<std::string, Dictionary> content;
  double expiration = 0;
  /// The peer that stored it, or sent it to a reader; empty: this node. Of a dictionary see Dictionary::largest_sender.
  PeerId from{};
  bool came_whole = false;  ///< a dictionary, of which those that wrote its entries are not known any more
  /// Tells whether it is a dictionary that several peers keep up, or may.
  bool is_of_several() const {
    return is_dictionary() && (dictionary()->senders() > 1 || (came_whole && dictionary()->entries().size() > 1));
  }
  bool is_dictionary() const { return content.index() == 1; }
  const std::string* value() const { return std::get_if<std::string>(&content); }
  const Dictionary* dictionary() const { return std::get_if<Dictionary>(&content); }
  /// As it is sent, rounded up.
  std::size_t bytes() const { return is_dictionary() ? dictionary()->bytes() : value()->size(); }
  /// All that it takes in a store.
  std::size_t memory() const;
  /// The same for equal content; of records that differ, almost never.
  std::size_t fingerprint() const;
};

/// Has no clock: each call is told the time. When it is full, what expires first of the peer with most bytes goes, so
/// that no peer can push out the records of other peers by storing many or long-lived ones.
class Storage {
 public:
  explicit Storage(StorageLimits limits) : limits_(limits) {}

  /// A regular value. Refused when expired, too large, or not newer than what is there; in place of a dictionary that
  /// several peers keep up, or may, it is refused however late it expires.
  bool store(const DhtId& key, std::string value, double expiration, double now, const PeerId& from = {});
  /// One entry of a dictionary.
  /// \param whole  `from` is not who wrote it: it came with all other entries
  bool store_subkey(const DhtId& key, Subkey subkey, std::string value, double expiration, double now,
                    const PeerId& from = {}, bool whole = false);
  /// Stores all entries, each as its sender's; true if all were accepted.
  bool store_dictionary(const DhtId& key, const Dictionary& dictionary, double now);
  /// Whether a store with this expiration could succeed, so that signatures of stale records need no checking.
  /// \param subkey null for a regular value
  bool would_accept(const DhtId& key, const Subkey* subkey, double expiration, double now) const;

  /// Null when absent or expired. The pointer holds until the next non-const call.
  const StoredRecord* get(const DhtId& key, double now);
  bool contains(const DhtId& key) const { return records_.contains(key); }
  /// Drops a regular value, or an entry of a dictionary, if it still has this expiration.
  void erase(const DhtId& key, std::string_view tag, double expiration);

  /// Drops the whole record.
  void forget(const DhtId& key) { erase(key); }

  std::size_t size(double now);
  std::size_t size() const noexcept { return records_.size(); }
  /// All that it takes, the accounts of senders included: never more than StorageLimits::max_bytes for long.
  std::size_t memory() const noexcept { return memory_ + shares_.senders() * kSenderMemory; }
  /// A place in the order of records, what expires last first; a new one is before the first.
  struct Cursor {
    double expiration = std::numeric_limits<double>::infinity();
    DhtId key;
  };
  /// The keys that follow the cursor, so many at most, and moves it on. Records may come and go between two calls.
  std::vector<DhtId> keys(Cursor& cursor, std::size_t count) const;
  const StorageLimits& limits() const noexcept { return limits_; }

 private:
  void erase(const DhtId& key);
  void replace(const DhtId& key, StoredRecord record);
  void count(const DhtId& key, const StoredRecord& record);
  void uncount(const DhtId& key, const StoredRecord& record);
  void evict();
  void drop_expired(double now);
  static PeerId payer(const StoredRecord& record);

  StorageLimits limits_;
  std::unordered_map<DhtId, StoredRecord> records_;
  using ByExpiration = std::set<std::pair<double, DhtId>>;
  ByExpiration by_expiration_;
  Shares<DhtId> shares_;
  std::size_t memory_ = 0;  // of the records
};

}  // namespace cohive::dht
