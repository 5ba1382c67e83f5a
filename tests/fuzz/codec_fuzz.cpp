// Serialised tensors. Input: codec, dtype, dimensions, size of each, then the buffer.
#include "cohive/codec/codec.hpp"
#include "cohive/codec/decoder.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(codec)(ByteView bytes) {
  constexpr std::uint64_t kMaxElements = 1 << 16;
  Input input(bytes);
  const auto codec = codec::codec_from_wire(input.byte() % 16);
  const auto dtype = static_cast<codec::DType>(input.byte() % (static_cast<int>(codec::DType::boolean) + 1));
  codec::Shape shape(input.byte() % 4);
  for (auto& size : shape) {
    const std::uint32_t high = input.byte();
    size = high << 8 | input.byte();
  }
  const auto elements = codec::element_count(shape);
  if (!codec || !elements || *elements > kMaxElements) return;
  std::vector<float> values(*elements);
  (void)codec::decode(*codec, dtype, input.rest(), values);
  (void)codec::decode_and_accumulate(*codec, dtype, input.rest(), 0.5f, values);
  if (const auto decoder = codec::Decoder::open(*codec, dtype, *elements, input.rest()))
    expect(decoder->finite() == decoder->finite(0, *elements), "values are looked at one way or the other");
  const auto tensor = codec::decode_tensor(*codec, dtype, shape, false, input.rest());
  if (tensor) expect(tensor->data.size() == *elements * codec::size_of(dtype), "a tensor has the size of its shape");
}

}  // namespace cohive::fuzz
