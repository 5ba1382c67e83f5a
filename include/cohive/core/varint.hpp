/// \file
/// Unsigned LEB128 varints. Source: docs/wire/libp2p.md, section 1.1.
#pragma once

#include <optional>

#include "cohive/core/bytes.hpp"

namespace cohive {

/// Bytes of the longest number.
inline constexpr std::size_t kMaxVarintSize = 10;

/// Appends `value` to a byte container (Bytes or std::string).
template <class Container>
void append_varint(Container& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<typename Container::value_type>((value & 0x7f) | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<typename Container::value_type>(value));
}

/// Whether bytes begin with a number: not yet all of it, or none that is allowed.
enum class VarintStatus { ok, incomplete, invalid };
/// What decoding a number found.
struct Varint {
  VarintStatus status;      ///< whether the other two mean something
  std::uint64_t value = 0;  ///< of the varint
  std::size_t size = 0;     ///< bytes consumed when ok
};
/// Multiformats rule: at most 9 bytes, minimal. Used for multiaddr, multihash, multistream.
Varint read_strict_varint(ByteView bytes) noexcept;
/// Protobuf rule: at most 10 bytes, non-minimal accepted. Used for length prefixes of protobuf messages.
Varint read_varint(ByteView bytes) noexcept;

}  // namespace cohive
