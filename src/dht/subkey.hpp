// Subkeys of dictionary records: their bytes on the wire, and when two of them are the same.
// Source: docs/wire/hivemind.md, section 3.4.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cohive/core/msgpack.hpp"

namespace cohive::dht {

/// What the `subkeys` field says instead of a subkey.
inline constexpr std::string_view kRegularTag = "\xc0";  ///< an ordinary value
inline constexpr std::string_view kDictionaryTag = "";   ///< a whole dictionary
inline bool is_subkey_tag(std::string_view tag) {
  return tag != kRegularTag && tag != kDictionaryTag;
}

struct Subkey {
  static constexpr std::size_t kMaxBytes = 4096;  ///< longer tags of peers are not even decoded
  std::string encoded;                            ///< msgpack: what is signed, stored and sent
  std::string identity;                           ///< equal for subkeys that Python holds equal: 1, true and 1.0

  /// nullopt for what Python cannot use as a dictionary key (lists, maps), for nil and for unknown extensions.
  static std::optional<Subkey> from_value(const msgpack::Value& value);
  /// nullopt also when `tag` is not the encoding that this program would write, as signatures cover the bytes.
  static std::optional<Subkey> from_tag(std::string_view tag);
};

}  // namespace cohive::dht
