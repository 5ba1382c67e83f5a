#include "core/detail/msgpack_reader.hpp"

namespace cohive::msgpack {
namespace {

/// The beginning of an object: its tag with the length that follows it.
struct Head {
  std::size_t size = 1;        // of tag and length
  std::uint64_t payload = 0;   // bytes that belong to the object itself
  std::uint64_t children = 0;  // objects that follow and belong to it
};

std::optional<std::uint64_t> length_at(ByteView bytes, std::size_t size) {
  if (bytes.size() < 1 + size) return std::nullopt;
  std::uint64_t length = 0;
  for (std::size_t i = 1; i <= size; ++i) length = length << 8 | bytes[i];
  return length;
}

std::optional<Head> with_length(ByteView bytes, std::size_t size, std::uint64_t payload_each,
                                std::uint64_t children_each, std::uint64_t beside = 0) {
  const auto length = length_at(bytes, size);
  if (!length) return std::nullopt;
  return Head{1 + size, *length * payload_each + beside, *length * children_each};
}

std::optional<Head> head_of(ByteView bytes) {
  if (bytes.empty()) return std::nullopt;
  const std::uint8_t tag = bytes[0];
  if (tag < 0x80 || tag >= 0xe0) return Head{};
  if (tag < 0x90) return Head{1, 0, 2 * (tag & 15u)};
  if (tag < 0xa0) return Head{1, 0, tag & 15u};
  if (tag < 0xc0) return Head{1, tag & 31u, 0};
  switch (tag) {
    case 0xc0:
    case 0xc2:
    case 0xc3:
      return Head{};
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return with_length(bytes, std::size_t{1} << (tag - 0xc4), 1, 0);
    case 0xc7:
    case 0xc8:
    case 0xc9:
      return with_length(bytes, std::size_t{1} << (tag - 0xc7), 1, 0, 1);  // the type comes first
    case 0xca:
      return Head{1, 4, 0};
    case 0xcb:
      return Head{1, 8, 0};
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      return Head{1, std::uint64_t{1} << (tag - 0xcc), 0};
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return Head{1, std::uint64_t{1} << (tag - 0xd0), 0};
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      return Head{1, 1 + (std::uint64_t{1} << (tag - 0xd4)), 0};
    case 0xd9:
    case 0xda:
    case 0xdb:
      return with_length(bytes, std::size_t{1} << (tag - 0xd9), 1, 0);
    case 0xdc:
    case 0xdd:
      return with_length(bytes, std::size_t{2} << (tag - 0xdc), 0, 1);
    case 0xde:
    case 0xdf:
      return with_length(bytes, std::size_t{2} << (tag - 0xde), 0, 2);
    default:
      return std::nullopt;
  }
}

bool is_array(std::uint8_t tag) {
  return (tag >= 0x90 && tag < 0xa0) || tag == 0xdc || tag == 0xdd;
}
bool is_bin(std::uint8_t tag) {
  return tag >= 0xc4 && tag <= 0xc6;
}
bool is_extension(std::uint8_t tag) {
  return (tag >= 0xc7 && tag <= 0xc9) || (tag >= 0xd4 && tag <= 0xd8);
}

/// What an object holds behind its head, where that is all of it.
std::optional<ByteView> payload_of(ByteView object) {
  const auto head = head_of(object);
  if (!head || object.size() - head->size != head->payload) return std::nullopt;
  return object.subspan(head->size);
}

}  // namespace

std::optional<ByteView> take(ByteView& bytes, std::size_t max_values) {
  std::size_t at = 0;
  for (std::uint64_t pending = 1; pending > 0; --pending) {
    const auto head = max_values-- > 0 ? head_of(bytes.subspan(at)) : std::nullopt;
    if (!head || head->payload > bytes.size() - at - head->size) return std::nullopt;
    at += head->size + static_cast<std::size_t>(head->payload);
    pending += head->children;
  }
  const ByteView object = bytes.first(at);
  bytes = bytes.subspan(at);
  return object;
}

std::optional<std::size_t> take_array(ByteView& bytes) {
  const auto head = head_of(bytes);
  if (!head || !is_array(bytes[0])) return std::nullopt;
  bytes = bytes.subspan(head->size);
  return static_cast<std::size_t>(head->children);
}

std::optional<ByteView> bin_of(ByteView object) {
  return !object.empty() && is_bin(object[0]) ? payload_of(object) : std::nullopt;
}

std::optional<Extension> extension_of(ByteView object) {
  const auto payload = !object.empty() && is_extension(object[0]) ? payload_of(object) : std::nullopt;
  if (!payload) return std::nullopt;
  return Extension{static_cast<std::int8_t>((*payload)[0]), payload->subspan(1)};
}

}  // namespace cohive::msgpack
