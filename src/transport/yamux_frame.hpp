// yamux's frames: version 0 | type | flags (2) | stream (4) | length (4), big-endian, then `length` bytes of data
// frames. Source: docs/wire/libp2p.md, section 4.1.
#pragma once

#include <array>

#include "secure_channel.hpp"

namespace cohive::transport::yamux {

enum Type : std::uint8_t { kData = 0, kWindowUpdate = 1, kPing = 2, kGoAway = 3 };
enum Flag : std::uint16_t { kSyn = 1, kAck = 2, kFin = 4, kRst = 8 };

inline constexpr std::size_t kHeaderSize = 12;
/// A full frame fills one encrypted record exactly.
inline constexpr std::size_t kMaxPayload = SecureChannel::kMaxAppend - kHeaderSize;

struct Header {
  std::uint8_t version = 0, type = 0;
  std::uint16_t flags = 0;
  std::uint32_t id = 0, length = 0;

  static Header parse(const std::uint8_t* at) {
    const auto number = [at](std::size_t i) {
      return std::uint32_t{at[i]} << 24 | std::uint32_t{at[i + 1]} << 16 | std::uint32_t{at[i + 2]} << 8 | at[i + 3];
    };
    return {at[0], at[1], static_cast<std::uint16_t>(at[2] << 8 | at[3]), number(4), number(8)};
  }
  std::array<std::uint8_t, kHeaderSize> bytes() const {
    std::array<std::uint8_t, kHeaderSize> out{version, type, static_cast<std::uint8_t>(flags >> 8),
                                              static_cast<std::uint8_t>(flags)};
    for (std::size_t i = 0; i < 4; ++i) {
      out[4 + i] = static_cast<std::uint8_t>(id >> (24 - 8 * i));
      out[8 + i] = static_cast<std::uint8_t>(length >> (24 - 8 * i));
    }
    return out;
  }
};

}  // namespace cohive::transport::yamux
