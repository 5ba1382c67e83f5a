#include "cohive/core/varint.hpp"

namespace cohive {
namespace {

Varint read(ByteView bytes, std::size_t longest, bool minimal) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < longest; ++i) {
    if (i == bytes.size()) return {VarintStatus::incomplete};
    const std::uint64_t group = bytes[i] & 0x7f;
    if (i == 9 && group > 1) return {VarintStatus::invalid};
    value |= group << (7 * i);
    if (bytes[i] & 0x80) continue;
    if (minimal && i > 0 && group == 0) return {VarintStatus::invalid};
    return {VarintStatus::ok, value, i + 1};
  }
  return {VarintStatus::invalid};
}

}  // namespace

Varint read_strict_varint(ByteView bytes) noexcept {
  return read(bytes, 9, true);
}
Varint read_varint(ByteView bytes) noexcept {
  return read(bytes, kMaxVarintSize, false);
}

}  // namespace cohive
