/// \file
/// MSGPack as Python hivemind writes it: shortest integers, float64 only, tuples as ext 0x40, DHT dictionaries as ext
/// 0x50. Source: docs/wire/hivemind.md, section 3.1.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohive/core/result.hpp"

namespace cohive::msgpack {

class Value;
/// A value of type bin.
struct Bin {
  std::string data;  ///< the bytes
  friend auto operator<=>(const Bin&, const Bin&) = default;
};
/// A value of type array, Python's list.
struct Array {
  std::vector<Value> items;  ///< in order
  friend bool operator==(const Array&, const Array&);
};
/// A Python tuple, which hivemind writes as an extension.
struct Tuple {               ///< ext 0x40
  std::vector<Value> items;  ///< in order
  friend bool operator==(const Tuple&, const Tuple&);
};
/// A value of type map, Python's dict.
struct Map {                                     ///< insertion order is kept; keys are str or bin
  std::vector<std::pair<Value, Value>> entries;  ///< key and value
  /// Returns the value of the first entry whose key is this str; null when there is none.
  const Value* find(std::string_view key) const;
  friend bool operator==(const Map&, const Map&);
};
/// A value of another extension type.
struct Ext {         ///< any other extension type, payload as received
  std::int8_t type;  ///< of the extension
  std::string data;  ///< its payload
  friend bool operator==(const Ext&, const Ext&) = default;
};

/// One decoded object. Integers: negative ones are int64, all other ones uint64.
class Value {
 public:
  /// What a value may be; std::monostate is nil.
  using Storage =
      std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Bin, Array, Tuple, Map, Ext>;

  Value() = default;
  /// @{
  /// Holds the value; null is nil.
  Value(std::nullptr_t) {}
  Value(bool v) : storage_(v) {}
  Value(int v) : Value(static_cast<std::int64_t>(v)) {}
  Value(std::int64_t v) { v < 0 ? void(storage_ = v) : void(storage_ = static_cast<std::uint64_t>(v)); }
  Value(std::uint64_t v) : storage_(v) {}
  Value(double v) : storage_(v) {}
  Value(const char* v) : storage_(std::string(v)) {}
  Value(std::string v) : storage_(std::move(v)) {}
  Value(std::string_view v) : storage_(std::string(v)) {}
  Value(Bin v) : storage_(std::move(v)) {}
  Value(Array v) : storage_(std::move(v)) {}
  Value(Tuple v) : storage_(std::move(v)) {}
  Value(Map v) : storage_(std::move(v)) {}
  Value(Ext v) : storage_(std::move(v)) {}
  /// @}

  /// Returns a value of type bin with these bytes.
  static Value bin(ByteView bytes) { return Bin{to_string(bytes)}; }

  /// Tells whether it is nil.
  bool is_nil() const { return std::holds_alternative<std::monostate>(storage_); }
  /// Returns what it holds, where that is a T of Storage; else null.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&storage_);
  }
  /// Returns an integer that is not negative; nullopt for anything else.
  std::optional<std::uint64_t> as_uint() const;
  /// Returns an integer that fits; nullopt for anything else.
  std::optional<std::int64_t> as_int() const;
  /// Returns a number of any kind as double; nullopt for anything else.
  std::optional<double> as_number() const;
  /// Returns what it holds.
  const Storage& storage() const { return storage_; }
  /// Python truthiness: nil, false, 0, 0.0 and empty containers are false.
  bool truthy() const;
  friend bool operator==(const Value&, const Value&) = default;

 private:
  Storage storage_;
};

/// Appends the encoding of `value`.
void encode_to(std::string& out, const Value& value);
/// Returns the bytes that hivemind's MSGPackSerializer makes.
std::string encode(const Value& value);
/// Decodes exactly one object: trailing bytes, a str that is not UTF-8, which Python would not read, map keys other
/// than str or bin, nesting over 64 (tuples count twice) and truncation are errors. A value may take one byte here and
/// takes 48 decoded: there are at most 65,536 values, containers and what they hold counted together, and one more for
/// every 32 bytes. More are Errc::limit_exceeded.
Result<Value> decode(ByteView bytes);
/// The same with at most `max_values`.
Result<Value> decode(ByteView bytes, std::size_t max_values);
/// Raw ext header + payload, for types that this codec does not know.
void append_ext(std::string& out, std::int8_t type, std::string_view payload);

}  // namespace cohive::msgpack
