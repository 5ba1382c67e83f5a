#include "subkey.hpp"

#include <cmath>

namespace cohive::dht {
namespace {

/// A double that is an integer, as that integer.
msgpack::Value plain_number(double number) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (number == std::floor(number)) {
    if (number >= -kTwo63 && number < kTwo63) return static_cast<std::int64_t>(number);
    if (number >= 0 && number < 2 * kTwo63) return static_cast<std::uint64_t>(number);
  }
  return number;
}

/// One representative of each class of equal values; nullopt for unhashable ones.
std::optional<msgpack::Value> representative(const msgpack::Value& value) {
  if (value.get_if<msgpack::Array>() || value.get_if<msgpack::Map>() || value.get_if<msgpack::Ext>())
    return std::nullopt;
  if (const auto* flag = value.get_if<bool>()) return msgpack::Value(*flag ? 1 : 0);
  if (const auto* number = value.get_if<double>()) return plain_number(*number);
  if (const auto* tuple = value.get_if<msgpack::Tuple>()) {
    msgpack::Tuple result;
    for (const auto& item : tuple->items) {
      auto same = representative(item);
      if (!same) return std::nullopt;
      result.items.push_back(std::move(*same));
    }
    return msgpack::Value(std::move(result));
  }
  return value;
}

}  // namespace

std::optional<Subkey> Subkey::from_value(const msgpack::Value& value) {
  if (value.is_nil()) return std::nullopt;  // its encoding is the tag of a regular value
  std::string encoded = msgpack::encode(value);
  if (value.get_if<std::string>() || value.get_if<msgpack::Bin>()) return Subkey{encoded, encoded};
  const auto same = representative(value);
  if (!same) return std::nullopt;
  return Subkey{std::move(encoded), msgpack::encode(*same)};
}

std::optional<Subkey> Subkey::from_tag(std::string_view tag) {
  if (tag.size() > kMaxBytes) return std::nullopt;
  const auto value = msgpack::decode(as_bytes(tag));
  if (!value) return std::nullopt;
  auto subkey = from_value(*value);
  if (!subkey || subkey->encoded != tag) return std::nullopt;
  return subkey;
}

}  // namespace cohive::dht
