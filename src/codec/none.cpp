// NONE: the values themselves. Source: docs/wire/hivemind.md, section 5.2.
#include "plain.hpp"

namespace cohive::codec {

Slice encode_none(const CodecSpec&, const Values& values, Rows) {
  Slice out = Slice::uninitialised(values.size() * 4);
  for_blocks(values, 0, values.size(), [&](const float* block, std::size_t first, std::size_t count) {
    std::memcpy(out.mutable_data() + first * 4, block, count * 4);
  });
  return out;
}

Result<DecoderPtr> open_none(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  // bfloat16 travels as float32 by default, and as its own two bytes from peers told to be efficient.
  const bool widened = dtype == DType::bfloat16 && count > 0 && buffer.size() == count * 4;
  return open_plain(widened ? DType::float32 : dtype, dtype, count, buffer);
}

}  // namespace cohive::codec
