#include "cohive/core/bytes.hpp"

#include <cstdlib>
#include <new>

namespace cohive {

std::string to_hex(ByteView bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Bytes from_hex(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() % 2) return {};
  Bytes bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes.push_back(static_cast<std::uint8_t>(high << 4 | low));
  }
  return bytes;
}

Block* Block::allocate(std::size_t capacity) {
  void* memory = std::malloc(sizeof(Block) + capacity);
  if (!memory) throw std::bad_alloc();
  return new (memory) Block(capacity);
}

void Block::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  this->~Block();
  std::free(this);
}

Slice Slice::uninitialised(std::size_t size) { return Slice(Block::allocate(size), 0, size); }

Slice Slice::copy_of(ByteView bytes) {
  Slice slice = uninitialised(bytes.size());
  if (!bytes.empty()) std::memcpy(slice.mutable_data(), bytes.data(), bytes.size());
  return slice;
}

}  // namespace cohive
