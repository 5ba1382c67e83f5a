#include "cohive/core/msgpack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "utf8.hpp"

namespace cohive::msgpack {
namespace {

constexpr std::int8_t kTupleType = 0x40;
constexpr int kMaxDepth = 64;
constexpr std::size_t kFreeValues = 64 * 1024, kBytesPerValue = 32;

void put(std::string& out, std::uint8_t byte) {
  out.push_back(static_cast<char>(byte));
}
template <class Number>
void put_big_endian(std::string& out, Number value) {
  for (int shift = (static_cast<int>(sizeof value) - 1) * 8; shift >= 0; shift -= 8)
    put(out, static_cast<std::uint8_t>(value >> shift));
}

/// One-byte, two-byte and four-byte length forms; `fix` is the form with the length in the tag, if it has one.
void put_length(std::string& out, std::size_t size, int fix, std::size_t fix_limit, int tag8, std::uint8_t tag16,
                std::uint8_t tag32) {
  if (fix >= 0 && size < fix_limit) {
    put(out, static_cast<std::uint8_t>(static_cast<std::size_t>(fix) | size));
  } else if (tag8 >= 0 && size <= 0xff) {
    put(out, static_cast<std::uint8_t>(tag8));
    put(out, static_cast<std::uint8_t>(size));
  } else if (size <= 0xffff) {
    put(out, tag16);
    put_big_endian(out, static_cast<std::uint16_t>(size));
  } else {
    put(out, tag32);
    put_big_endian(out, static_cast<std::uint32_t>(size));
  }
}

struct Encoder {
  std::string& out;
  void operator()(std::monostate) const { put(out, 0xc0); }
  void operator()(bool v) const { put(out, v ? 0xc3 : 0xc2); }
  void operator()(std::uint64_t v) const {
    if (v < 0x80) {
      put(out, static_cast<std::uint8_t>(v));
    } else if (v <= 0xff) {
      put(out, 0xcc), put(out, static_cast<std::uint8_t>(v));
    } else if (v <= 0xffff) {
      put(out, 0xcd), put_big_endian(out, static_cast<std::uint16_t>(v));
    } else if (v <= 0xffffffff) {
      put(out, 0xce), put_big_endian(out, static_cast<std::uint32_t>(v));
    } else {
      put(out, 0xcf), put_big_endian(out, v);
    }
  }
  void operator()(std::int64_t v) const {
    if (v >= 0) return (*this)(static_cast<std::uint64_t>(v));
    if (v >= -32) {
      put(out, static_cast<std::uint8_t>(v));
    } else if (v >= INT8_MIN) {
      put(out, 0xd0), put(out, static_cast<std::uint8_t>(v));
    } else if (v >= INT16_MIN) {
      put(out, 0xd1), put_big_endian(out, static_cast<std::uint16_t>(v));
    } else if (v >= INT32_MIN) {
      put(out, 0xd2), put_big_endian(out, static_cast<std::uint32_t>(v));
    } else {
      put(out, 0xd3), put_big_endian(out, static_cast<std::uint64_t>(v));
    }
  }
  void operator()(double v) const {
    put(out, 0xcb);
    put_big_endian(out, std::bit_cast<std::uint64_t>(v));
  }
  void operator()(const std::string& v) const {
    put_length(out, v.size(), 0xa0, 32, 0xd9, 0xda, 0xdb);
    out += v;
  }
  void operator()(const Bin& v) const {
    put_length(out, v.data.size(), -1, 0, 0xc4, 0xc5, 0xc6);
    out += v.data;
  }
  void items(const std::vector<Value>& values) const {
    put_length(out, values.size(), 0x90, 16, -1, 0xdc, 0xdd);
    for (const Value& value : values) encode_to(out, value);
  }
  void operator()(const Array& v) const { items(v.items); }
  void operator()(const Tuple& v) const {
    std::string payload;
    Encoder{payload}.items(v.items);
    append_ext(out, kTupleType, payload);
  }
  void operator()(const Map& v) const {
    put_length(out, v.entries.size(), 0x80, 16, -1, 0xde, 0xdf);
    for (const auto& [key, value] : v.entries) {
      encode_to(out, key);
      encode_to(out, value);
    }
  }
  void operator()(const Ext& v) const { append_ext(out, v.type, v.data); }
};

class Decoder {
 public:
  /// \param left  how many more values there may be
  Decoder(ByteView bytes, std::size_t& left) : rest_(bytes), left_(left) {}
  Result<Value> value(int depth = 0);
  bool done() const { return rest_.empty(); }

 private:
  static Error broken(const char* why) { return Error(Errc::malformed, std::string("msgpack: ") + why); }
  std::optional<std::uint64_t> number(std::size_t bytes) {
    if (rest_.size() < bytes) return std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | rest_[i];
    rest_ = rest_.subspan(bytes);
    return value;
  }
  std::optional<ByteView> take(std::optional<std::uint64_t> size) {
    if (!size || *size > rest_.size()) return std::nullopt;
    const ByteView result = rest_.first(*size);
    rest_ = rest_.subspan(*size);
    return result;
  }
  Result<std::vector<Value>> items(std::optional<std::uint64_t> count, int depth) {
    // Every item takes at least a byte: a longer announcement is a lie and takes no memory.
    if (!count || *count > rest_.size()) return broken("truncated array");
    std::vector<Value> result;
    result.reserve(std::min<std::uint64_t>(*count, 64));  // nested lies must not add up
    for (std::uint64_t i = 0; i < *count; ++i) {
      TRY(auto item, value(depth + 1));
      result.push_back(std::move(item));
    }
    return result;
  }
  Result<Value> array(std::optional<std::uint64_t> count, int depth) {
    TRY(auto list, items(count, depth));
    return Value(Array{std::move(list)});
  }
  Result<Value> map(std::optional<std::uint64_t> count, int depth) {
    if (!count || *count > rest_.size() / 2) return broken("truncated map");
    Map result;
    result.entries.reserve(std::min<std::uint64_t>(*count, 64));
    for (std::uint64_t i = 0; i < *count; ++i) {
      TRY(auto key, value(depth + 1));
      if (!key.get_if<std::string>() && !key.get_if<Bin>()) return broken("map key is neither text nor bytes");
      TRY(auto entry, value(depth + 1));
      result.entries.emplace_back(std::move(key), std::move(entry));
    }
    return Value(std::move(result));
  }
  Result<Value> string(std::optional<std::uint64_t> size) {
    const auto content = take(size);
    if (!content) return broken("truncated string");
    if (!utf8::is_valid(as_text(*content))) return broken("text that is not UTF-8");
    return Value(as_text(*content));
  }
  Result<Value> binary(std::optional<std::uint64_t> size) {
    const auto content = take(size);
    if (!content) return broken("truncated bytes");
    return Value::bin(*content);
  }
  Result<Value> extension(std::optional<std::uint64_t> size, int depth) {
    const auto type = number(1);
    const auto payload = type ? take(size) : std::nullopt;
    if (!payload) return broken("truncated extension");
    const auto code = static_cast<std::int8_t>(*type);
    return code == kTupleType ? tuple(*payload, depth) : Value(Ext{code, to_string(*payload)});
  }
  /// No copies on the way out: tuples may be nested, with all the bytes in the innermost one.
  Result<Value> tuple(ByteView payload, int depth) {
    Decoder inner(payload, left_);
    TRY(auto list, inner.tuple_items(depth + 1));
    if (!inner.done()) return broken("bytes behind a tuple");
    return Value(Tuple{std::move(list)});
  }
  Result<std::vector<Value>> tuple_items(int depth) {
    const auto tag = number(1);
    if (tag && *tag >= 0x90 && *tag < 0xa0) return items(*tag & 15, depth);
    if (tag == 0xdc) return items(number(2), depth);
    if (tag == 0xdd) return items(number(4), depth);
    return broken("tuple is not an array");
  }
  Result<Value> unsigned_of(std::size_t bytes) {
    const auto value = number(bytes);
    if (!value) return broken("truncated integer");
    return Value(*value);
  }
  Result<Value> signed_of(std::size_t bytes) {
    const auto value = number(bytes);
    if (!value) return broken("truncated integer");
    const int shift = static_cast<int>(64 - bytes * 8);
    return Value(static_cast<std::int64_t>(*value << shift) >> shift);
  }
  Result<Value> floating(std::size_t bytes) {
    const auto bits = number(bytes);
    if (!bits) return broken("truncated float");
    if (bytes == 8) return Value(std::bit_cast<double>(*bits));
    return Value(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(*bits))));
  }

  ByteView rest_;
  std::size_t& left_;
};

Result<Value> Decoder::value(int depth) {
  if (depth > kMaxDepth) return broken("nested too deeply");
  if (left_ == 0) return Error(Errc::limit_exceeded, "msgpack: too many values");
  --left_;
  const auto tag = number(1);
  if (!tag) return broken("truncated");
  const auto t = static_cast<std::uint8_t>(*tag);
  if (t < 0x80) return Value(std::uint64_t{t});
  if (t < 0x90) return map(t & 15, depth);
  if (t < 0xa0) return array(t & 15, depth);
  if (t < 0xc0) return string(t & 31);
  if (t >= 0xe0) return Value(static_cast<std::int64_t>(static_cast<std::int8_t>(t)));
  if (t == 0xc0) return Value();
  if (t == 0xc2 || t == 0xc3) return Value(t == 0xc3);
  if (t < 0xc4) return broken("unknown type");
  // The tags of a kind follow one another, each for twice as many bytes of its value or length as the one before.
  const auto bytes_from = [t](std::uint8_t first) { return std::size_t{1} << (t - first); };
  if (t <= 0xc6) return binary(number(bytes_from(0xc4)));
  if (t <= 0xc9) return extension(number(bytes_from(0xc7)), depth);
  if (t <= 0xcb) return floating(bytes_from(0xca) * 4);
  if (t <= 0xcf) return unsigned_of(bytes_from(0xcc));
  if (t <= 0xd3) return signed_of(bytes_from(0xd0));
  if (t <= 0xd8) return extension(bytes_from(0xd4), depth);
  if (t <= 0xdb) return string(number(bytes_from(0xd9)));
  if (t <= 0xdd) return array(number(bytes_from(0xdc) * 2), depth);
  return map(number(bytes_from(0xde) * 2), depth);
}

}  // namespace

bool operator==(const Array& a, const Array& b) {
  return a.items == b.items;
}
bool operator==(const Tuple& a, const Tuple& b) {
  return a.items == b.items;
}
bool operator==(const Map& a, const Map& b) {
  return a.entries == b.entries;
}

const Value* Map::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (const auto* text = name.get_if<std::string>(); text && *text == key) return &value;
  return nullptr;
}

std::optional<std::uint64_t> Value::as_uint() const {
  if (const auto* v = get_if<std::uint64_t>()) return *v;
  return std::nullopt;
}

std::optional<std::int64_t> Value::as_int() const {
  if (const auto* v = get_if<std::int64_t>()) return *v;
  if (const auto* v = get_if<std::uint64_t>(); v && *v <= INT64_MAX) return static_cast<std::int64_t>(*v);
  return std::nullopt;
}

std::optional<double> Value::as_number() const {
  if (const auto* v = get_if<double>()) return *v;
  if (const auto* v = get_if<std::uint64_t>()) return static_cast<double>(*v);
  if (const auto* v = get_if<std::int64_t>()) return static_cast<double>(*v);
  return std::nullopt;
}

bool Value::truthy() const {
  struct Truth {
    bool operator()(std::monostate) const { return false; }
    bool operator()(bool v) const { return v; }
    bool operator()(std::int64_t v) const { return v != 0; }
    bool operator()(std::uint64_t v) const { return v != 0; }
    bool operator()(double v) const { return v != 0; }
    bool operator()(const std::string& v) const { return !v.empty(); }
    bool operator()(const Bin& v) const { return !v.data.empty(); }
    bool operator()(const Array& v) const { return !v.items.empty(); }
    bool operator()(const Tuple& v) const { return !v.items.empty(); }
    bool operator()(const Map& v) const { return !v.entries.empty(); }
    bool operator()(const Ext&) const { return true; }
  };
  return std::visit(Truth{}, storage_);
}

void append_ext(std::string& out, std::int8_t type, std::string_view payload) {
  const std::size_t size = payload.size();
  if (size == 1 || size == 2 || size == 4 || size == 8 || size == 16) {
    put(out, static_cast<std::uint8_t>(0xd4 + std::countr_zero(size)));
  } else {
    put_length(out, size, -1, 0, 0xc7, 0xc8, 0xc9);
  }
  put(out, static_cast<std::uint8_t>(type));
  out += payload;
}

void encode_to(std::string& out, const Value& value) {
  std::visit(Encoder{out}, value.storage());
}

std::string encode(const Value& value) {
  std::string out;
  encode_to(out, value);
  return out;
}

Result<Value> decode(ByteView bytes) {
  return decode(bytes, kFreeValues + bytes.size() / kBytesPerValue);
}

Result<Value> decode(ByteView bytes, std::size_t max_values) {
  Decoder decoder(bytes, max_values);
  auto value = decoder.value();
  if (value && !decoder.done()) return Error(Errc::malformed, "msgpack: bytes behind the object");
  return value;
}

}  // namespace cohive::msgpack
