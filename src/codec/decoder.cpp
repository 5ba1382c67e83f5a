#include "cohive/codec/decoder.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "kernels.hpp"
#include "table.hpp"

namespace cohive::codec {

Result<DecoderPtr> Decoder::open(Codec codec, DType dtype, std::size_t count, ByteView buffer, const Shape* shape) {
  const auto* entry = find_entry(codec);
  if (!entry) return malformed("codec " + std::to_string(static_cast<int>(codec)));
  const bool refused = !is_floating(dtype) || (entry->refuses.bfloat16 && dtype == DType::bfloat16);
  if (refused) return wrong_dtype(codec, dtype);
  return entry->open(dtype, count, buffer, shape);
}

void Decoder::decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const {
  alignas(64) float values[Values::kBlock];
  for (std::size_t at = 0; at < count;) {
    const std::size_t here = std::min(Values::kBlock, count - at);
    decode(first + at, {values, here});
    narrow(dtype_, values, out + at * size_of(dtype_), here);
    at += here;
  }
}

bool Decoder::finite(std::size_t first, std::size_t count) const {
  alignas(64) float values[Values::kBlock];
  for (std::size_t at = 0; at < count;) {
    const std::size_t here = std::min(Values::kBlock, count - at);
    decode(first + at, {values, here});
    if (!kernels().all_finite(values, here)) return false;
    at += here;
  }
  return true;
}

}  // namespace cohive::codec
