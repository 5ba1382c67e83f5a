// What a stranger says its state consists of.
#include "averaging/states/manifest.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(manifest)(ByteView input) {
  using namespace averaging;
  constexpr std::uint64_t kAllowed = std::uint64_t{1} << 32;
  const auto manifest = parse_manifest(input, kAllowed);
  if (!manifest) return;
  expect(manifest->bytes <= kAllowed, "a state within its limit");
  expect(manifest->hashes.size() * sizeof manifest->hashes[0] <= input.size(), "no more hashes than came");
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < manifest->hashes.size(); ++i) {
    const Piece piece = manifest->piece(i);
    expect(piece.tensor < manifest->tensors.size(), "a piece of a tensor");
    expect(piece.values > 0 && piece.first + piece.values <= manifest->tensors[piece.tensor].values,
           "a piece within its tensor");
    expect(manifest->bytes_of(piece) <= kPieceBytes, "a piece of bounded size");
    bytes += manifest->bytes_of(piece);
  }
  expect(bytes == manifest->bytes, "pieces that cover every byte once");
  const auto again = parse_manifest(as_bytes(encode_manifest(*manifest)), kAllowed);
  expect(again && again->metadata == manifest->metadata && again->tensors == manifest->tensors &&
             again->hashes == manifest->hashes,
         "what is encoded is parsed again");
}

}  // namespace cohive::fuzz
