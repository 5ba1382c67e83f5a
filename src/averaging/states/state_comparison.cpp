// Whether two peers hold the same parameters, without a download: the manifest of one state tells the hashes of all its
// pieces, which are made of the other one in the same codecs.
//   client -> manifest request;  donor -> manifest;  the client drops the call        (state_pieces.hpp)
#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kComparedAtOnce = 32;  // pieces: about three milliseconds, as other work uses the pool too
constexpr std::uint64_t kMostCompared = std::uint64_t{64} << 30;  // bytes; the manifest itself is bounded

/// Off the loop.
Result<bool> are_equal(const Manifest& theirs, const SharedState& ours, std::size_t first, std::size_t end) {
  for (std::size_t index = first; index < end; ++index) {
    const Piece piece = theirs.piece(index);
    const auto bytes = read_piece(ours, ours.reader.get(), theirs.tensors[piece.tensor], piece);
    if (!bytes) return bytes.error();
    if (crypto::sha256(bytes->view()) != theirs.hashes[index]) return false;
  }
  return true;
}

}  // namespace

Task<Result<StateComparison>> compare_with(p2p::Host& host, PeerId peer, std::string protocol, Duration chunk_timeout,
                                           std::shared_ptr<const SharedState> ours, std::size_t tensors) {
  if (ours->reader) ours->reader->keep_from(TimePoint::max());
  CO_TRY(auto call, co_await call_donor(host, peer, std::move(protocol), {}, chunk_timeout, kMostCompared));
  call.call.reset();
  const auto theirs = std::make_shared<const Manifest>(std::move(call.manifest));
  auto metadata = co_await host.runtime().offload([theirs] { return msgpack::decode(as_bytes(theirs->metadata)); });
  if (!metadata) co_return metadata.error().with_peer(peer);
  StateComparison result{std::move(*metadata), false};
  if (theirs->tensors.size() < tensors || ours->tensors.size() < tensors) co_return result;
  for (std::size_t i = 0; i < tensors; ++i) {
    const ManifestTensor& is = theirs->tensors[i];
    const codec::Tensor& own = ours->tensors[i];
    if (is.dtype != own.dtype || is.shape != own.shape || is.bytes() != size_of(*ours, ours->reader.get(), i))
      co_return result;
  }
  const std::size_t pieces =
      tensors < theirs->tensors.size() ? theirs->tensors[tensors].first_piece : theirs->hashes.size();
  for (std::size_t at = 0; at < pieces; at += kComparedAtOnce) {
    const std::size_t end = std::min(pieces, at + kComparedAtOnce);
    CO_TRY(const bool equal,
           co_await host.runtime().offload([theirs, ours, at, end] { return are_equal(*theirs, *ours, at, end); }));
    if (!equal) co_return result;
  }
  result.equal = true;
  co_return result;
}

}  // namespace cohive::averaging
