// Messages of averaging that are parsed by hand: parts of tensors, chunks of a state, gathered data.
#include "averaging/wire.hpp"
#include "cohive/averaging/group.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {
namespace {

void examine(const averaging::TensorView& tensor, ByteView message) {
  const bool inside =
      tensor.buffer.empty() || (tensor.buffer.data() >= message.data() &&
                                tensor.buffer.data() + tensor.buffer.size() <= message.data() + message.size());
  expect(inside, "a tensor's buffer lies in its message");
  (void)codec::element_count(tensor.shape);
  (void)codec::dtype_from_name(tensor.dtype);
}

}  // namespace

COHIVE_FUZZ_TARGET(averaging_wire)(ByteView input) {
  if (const auto part = averaging::parse_part(input); part && part->tensor) examine(*part->tensor, input);
  if (const auto chunk = averaging::parse_download(input); chunk && chunk->tensor) examine(*chunk->tensor, input);
  (void)averaging::parse_manifest_request(input);
  (void)averaging::parse_manifest_head(input);
  if (const auto piece = averaging::parse_piece(input); piece && !piece->data.empty())
    expect(piece->data.data() >= input.data() && piece->data.data() + piece->data.size() <= input.data() + input.size(),
           "a piece's bytes lie in its message");
  (void)averaging::decode_gathered(PeerId(), as_text(input));
}

}  // namespace cohive::fuzz
