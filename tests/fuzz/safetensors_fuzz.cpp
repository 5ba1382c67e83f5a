// The header of a checkpoint that came from anywhere: two bytes that say how much data follow it, then the header.
#include "cohive/checkpoint/safetensors.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(safetensors)(ByteView bytes) {
  Input input(bytes);
  const std::uint64_t data_size = input.byte() | std::uint64_t{input.byte()} << 8;
  const auto header = checkpoint::parse_header(input.rest(), data_size);
  if (!header) return;
  std::uint64_t end = 0;
  for (const auto& tensor : header->tensors) {
    expect(tensor.begin == end && tensor.end >= end, "tensors one behind the other");
    expect(tensor.end - tensor.begin == *codec::element_count(tensor.shape) * codec::size_of(tensor.dtype),
           "as many bytes as its shape says");
    end = tensor.end;
  }
  expect(end == data_size, "tensors that cover every byte");
  const auto encoded = checkpoint::encode_header(*header);
  expect(encoded.has_value(), "what was read can be written");
  const auto again = checkpoint::parse_header(as_bytes(*encoded).subspan(8), data_size);
  expect(again && again->metadata == header->metadata && again->tensors == header->tensors,
         "what is written is read again");
}

}  // namespace cohive::fuzz
