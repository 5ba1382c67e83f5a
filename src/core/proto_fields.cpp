#include "core/detail/proto_fields.hpp"

#include <cstring>

#include "cohive/core/varint.hpp"

namespace cohive::wire_format {
namespace {

constexpr std::uint64_t kMaxFieldNumber = (1u << 29) - 1;

}  // namespace

bool take_field(ByteView& rest, Field& field) {
  const Varint key = read_varint(rest);
  if (key.status != VarintStatus::ok) return false;
  rest = rest.subspan(key.size);
  field = {static_cast<std::uint32_t>(key.value >> 3), static_cast<std::uint32_t>(key.value & 7), 0, {}};
  if (key.value >> 3 == 0 || key.value >> 3 > kMaxFieldNumber) return false;
  switch (field.type) {
    case kVarint:
    case kBytes: {
      const Varint value = read_varint(rest);
      if (value.status != VarintStatus::ok) return false;
      rest = rest.subspan(value.size);
      field.value = value.value;
      if (field.type == kVarint) return true;
      if (value.value > rest.size()) return false;
      field.bytes = rest.first(value.value);
      rest = rest.subspan(value.value);
      return true;
    }
    case kFixed64:
    case kFixed32: {
      const std::size_t size = field.type == kFixed64 ? 8 : 4;
      if (rest.size() < size) return false;
      std::memcpy(&field.value, rest.data(), size);
      rest = rest.subspan(size);
      return true;
    }
    default:
      return false;
  }
}

void put_key(std::string& out, std::uint32_t number, WireType type) {
  append_varint(out, number << 3 | type);
}
void put_varint(std::string& out, std::uint32_t number, std::uint64_t value) {
  if (value == 0) return;
  put_key(out, number, kVarint);
  append_varint(out, value);
}
void put_bytes(std::string& out, std::uint32_t number, std::string_view bytes) {
  if (bytes.empty()) return;
  put_key(out, number, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

}  // namespace cohive::wire_format
