// Serialised tensors. Input: codec, dtype, dimensions, size of each, then the buffer.
#include <algorithm>
#include <cmath>

#include "cohive/codec/codec_set.hpp"
#include "cohive/codec/decoder.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(codec)(ByteView bytes) {
  constexpr std::uint64_t kMaxElements = 1 << 16;
  Input input(bytes);
  codec::CodecSet all;
  for (const auto& one : codec::all_codecs()) all.insert(one.codec);
  const auto codec = codec::codec_from_wire(input.byte() % 80, all);
  const auto dtype = static_cast<codec::DType>(input.byte() % (static_cast<int>(codec::DType::boolean) + 1));
  codec::Shape shape(input.byte() % 4);
  for (auto& size : shape) {
    const std::uint32_t high = input.byte();
    size = high << 8 | input.byte();
  }
  const auto elements = codec::element_count(shape);
  if (!codec || !elements || *elements > kMaxElements) return;
  std::vector<float> values(*elements);
  if (const auto decoder = codec::Decoder::open(*codec, dtype, *elements, input.rest())) {
    const bool finite = (*decoder)->finite();
    expect(finite == (*decoder)->finite(0, *elements), "values are looked at one way or the other");
    (*decoder)->decode(0, values);
    if (finite)
      for (float value : values) expect(std::isfinite(value), "only finite values are let through");
    std::vector<float> part(*elements / 2);
    (*decoder)->decode(*elements / 3, part);
    expect(std::equal(part.begin(), part.end(), values.begin() + static_cast<std::ptrdiff_t>(*elements / 3),
                      [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }),
           "a stretch decodes as the whole does");
  }
  const bool decoded = codec::decode(*codec, dtype, input.rest(), values).has_value();
  const bool added = codec::decode_and_accumulate(*codec, dtype, input.rest(), 0.5f, values).has_value();
  expect(decoded == added, "decoding and accumulating agree on what is malformed");
  const auto tensor = codec::decode_tensor(*codec, dtype, shape, false, input.rest());
  if (tensor) expect(tensor->data.size() == *elements * codec::size_of(dtype), "a tensor has the size of its shape");
}

}  // namespace cohive::fuzz
