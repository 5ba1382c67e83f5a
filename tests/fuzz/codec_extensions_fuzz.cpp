// Buffers of the codecs that only cohive peers agree on. Input: which one, how many values (two bytes), the buffer.
#include <cmath>

#include "cohive/codec/extensions.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(codec_extensions)(ByteView bytes) {
  Input input(bytes);
  const auto kind = input.byte() % 2 ? codec::Extension::top_k : codec::Extension::block4;
  const std::size_t high = input.byte();
  std::vector<float> values(high << 8 | input.byte()), sum(values.size());
  const bool decoded = codec::decode_extension(kind, input.rest(), values).has_value();
  const bool added = codec::accumulate_extension(kind, input.rest(), 1, sum).has_value();
  expect(decoded == added, "decoding and accumulating agree on what is malformed");
  for (float value : values) expect(std::isfinite(value), "only finite values are let through");
}

}  // namespace cohive::fuzz
