#include "cohive/core/base_encoding.hpp"

#include <algorithm>

namespace cohive {
namespace {

constexpr std::string_view kBase58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
constexpr std::string_view kBase36 = "0123456789abcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kBase32 = "abcdefghijklmnopqrstuvwxyz234567";
/// Quadratic work: longer input is never an id.
constexpr std::size_t kMaxInput = 1024;

/// Big-number conversion; leading zero bytes become leading zero digits.
std::string encode_big(ByteView data, std::string_view alphabet) {
  const unsigned base = static_cast<unsigned>(alphabet.size());
  std::size_t zeros = 0;
  while (zeros < data.size() && data[zeros] == 0) ++zeros;
  std::vector<std::uint8_t> digits;  // least significant first
  for (std::uint8_t byte : data.subspan(zeros)) {
    unsigned carry = byte;
    for (auto& digit : digits) {
      carry += unsigned{digit} << 8;
      digit = static_cast<std::uint8_t>(carry % base);
      carry /= base;
    }
    for (; carry; carry /= base) digits.push_back(static_cast<std::uint8_t>(carry % base));
  }
  std::string text(zeros, alphabet[0]);
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) text.push_back(alphabet[*digit]);
  return text;
}

std::optional<Bytes> decode_big(std::string_view text, std::string_view alphabet) {
  if (text.size() > kMaxInput) return std::nullopt;
  std::size_t zeros = 0;
  while (zeros < text.size() && text[zeros] == alphabet[0]) ++zeros;
  Bytes bytes;  // least significant first
  for (char c : text.substr(zeros)) {
    const auto index = alphabet.find(c);
    if (index == std::string_view::npos) return std::nullopt;
    unsigned carry = static_cast<unsigned>(index);
    for (auto& byte : bytes) {
      carry += byte * static_cast<unsigned>(alphabet.size());
      byte = static_cast<std::uint8_t>(carry);
      carry >>= 8;
    }
    for (; carry; carry >>= 8) bytes.push_back(static_cast<std::uint8_t>(carry));
  }
  bytes.insert(bytes.end(), zeros, 0);
  std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

}  // namespace

std::string base58_encode(ByteView data) {
  return encode_big(data, kBase58);
}
std::optional<Bytes> base58_decode(std::string_view text) {
  return decode_big(text, kBase58);
}
std::string base36_encode(ByteView data) {
  return encode_big(data, kBase36);
}
std::optional<Bytes> base36_decode(std::string_view text) {
  return decode_big(text, kBase36);
}

std::string base32_encode(ByteView data) {
  std::string text;
  unsigned buffer = 0;
  int bits = 0;
  for (std::uint8_t byte : data) {
    buffer = buffer << 8 | byte;
    for (bits += 8; bits >= 5; bits -= 5) text.push_back(kBase32[buffer >> (bits - 5) & 31]);
  }
  if (bits > 0) text.push_back(kBase32[buffer << (5 - bits) & 31]);
  return text;
}

std::optional<Bytes> base32_decode(std::string_view text) {
  if (text.size() > kMaxInput) return std::nullopt;
  Bytes bytes;
  unsigned buffer = 0;
  int bits = 0;
  for (char c : text) {
    const auto index = kBase32.find(c);
    if (index == std::string_view::npos) return std::nullopt;
    buffer = buffer << 5 | static_cast<unsigned>(index);
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes.push_back(static_cast<std::uint8_t>(buffer >> bits));
    }
  }
  if (bits >= 5 || (buffer & ((1u << bits) - 1))) return std::nullopt;  // stray or non-zero padding bits
  return bytes;
}

}  // namespace cohive
