// Protobuf fields one by one, for messages whose bytes are neither copied nor trusted with memory before they are
// looked at. Source: protobuf's encoding, proto3.
#pragma once

#include <cstdint>
#include <string>

#include "cohive/core/result.hpp"

namespace cohive::wire_format {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  std::uint32_t number = 0, type = 0;
  std::uint64_t value = 0;  ///< of a varint or fixed-width field
  ByteView bytes;           ///< of a length-delimited one
};

/// Takes one field off `rest`; false when malformed.
bool take_field(ByteView& rest, Field& field);

void put_key(std::string& out, std::uint32_t number, WireType type);
/// Zero and empty are absent, as in proto3.
void put_varint(std::string& out, std::uint32_t number, std::uint64_t value);
void put_bytes(std::string& out, std::uint32_t number, std::string_view bytes);

}  // namespace cohive::wire_format
