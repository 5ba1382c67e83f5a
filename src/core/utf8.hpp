// UTF-8 as RFC 3629 has it: no surrogates, nothing above U+10FFFF, no longer encoding than needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace cohive::utf8 {

/// Bytes of the character that `text` begins with; 0 for what is none.
inline std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return text.empty() ? 0 : 1;
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return too_long || beyond ? 0 : size;
}

/// The same of what is no control character (C0, DEL, C1).
inline std::size_t printable(std::string_view text) {
  const std::size_t size = character(text);
  const auto first = static_cast<unsigned char>(size > 0 ? text[0] : 0);
  if (size == 1) return first >= 0x20 && first != 0x7f ? 1 : 0;
  return size == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0 ? 0 : size;
}

/// Tells whether all of a text is UTF-8. ASCII takes a few instructions for eight bytes.
inline bool is_valid(std::string_view text) {
  constexpr std::uint64_t kBeyondAscii = 0x8080808080808080;
  while (!text.empty()) {
    std::uint64_t word = kBeyondAscii;
    if (text.size() >= sizeof word) std::memcpy(&word, text.data(), sizeof word);
    const std::size_t size = (word & kBeyondAscii) == 0 ? sizeof word : character(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

}  // namespace cohive::utf8
