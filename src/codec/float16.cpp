// FLOAT16: halves, clamped to the finite range. Source: docs/wire/hivemind.md, section 5.3.
#include "kernels.hpp"
#include "plain.hpp"

namespace cohive::codec {

Slice encode_float16(const CodecSpec&, const Values& values, Rows) {
  Slice out = Slice::uninitialised(values.size() * 2);
  if (const auto pair = values.half_difference(0)) {  // as hivemind's reducers answer: in one pass
    kernels().half_difference(pair->from, pair->halves, out.mutable_data(), values.size());
    return out;
  }
  for_blocks(values, 0, values.size(), [&](const float* block, std::size_t first, std::size_t count) {
    kernels().to_half(block, out.mutable_data() + first * 2, count);
  });
  return out;
}

std::optional<Slice> encode_finite_float16(std::span<const float> values) {
  Slice out = Slice::uninitialised(values.size() * 2);
  if (!kernels().to_half_checked(values.data(), out.mutable_data(), values.size())) return std::nullopt;
  return out;
}

Result<DecoderPtr> open_float16(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  return open_plain(DType::float16, dtype, count, buffer);
}

}  // namespace cohive::codec
