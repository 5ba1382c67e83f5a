// A state by content. Every tensor is cut into pieces of 128 KiB of its memory; a piece travels as a one-dimensional
// tensor in the tensor's codec. The manifest names the tensors and the SHA-256 of every piece as it travels; the
// SHA-256 of the manifest itself, the root, therefore names the whole state: equal roots are equal bytes.
// Tensors are cut and encoded the same way everywhere, so that peers with equal states have equal roots.
#pragma once

#include <memory>

#include "averaging/wire.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/crypto.hpp"

namespace cohive::averaging {

inline constexpr std::size_t kPieceBytes = LiveTensors::kChunk;  ///< of a tensor in memory
/// Of a state that is shared in pieces; 16 MiB have room for the hashes of 64 GiB.
inline constexpr std::size_t kMaxManifestBytes = 16 << 20, kMaxManifestTensors = 100'000;

struct ManifestTensor {
  codec::DType dtype = codec::DType::float32;
  codec::Shape shape;
  bool requires_grad = false;
  codec::Codec codec = codec::Codec::none;
  std::uint64_t values = 0;       ///< product of the shape
  std::uint32_t first_piece = 0;  ///< the pieces of tensor i end where those of tensor i + 1 begin
  std::uint64_t bytes() const { return values * codec::size_of(dtype); }
  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

/// Which values of which tensor.
struct Piece {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
  std::size_t values = 0;
};

struct Manifest {
  std::string metadata;  ///< msgpack
  std::vector<ManifestTensor> tensors;
  std::vector<crypto::Sha256Digest> hashes;  ///< of all pieces, in the order of the tensors
  std::uint64_t bytes = 0;                   ///< of all tensors in memory

  /// \param index  below the number of hashes
  Piece piece(std::size_t index) const;
  std::size_t bytes_of(const Piece& piece) const { return piece.values * codec::size_of(tensors[piece.tensor].dtype); }
};

std::string encode_manifest(const Manifest& manifest);
/// Errors: malformed; limit_exceeded for more than `max_bytes` of tensors, or more tensors than above. Memory is taken
/// in proportion to the bytes given.
Result<Manifest> parse_manifest(ByteView bytes, std::uint64_t max_bytes);
StateRoot root_of(ByteView manifest);

/// The codec that a tensor of a state travels in: a statistic of an optimizer as it is, unless a rule by role or key
/// names another one. Errors: as codec::Compression::choose.
Result<codec::Codec> codec_of(const SharedState& state, std::size_t tensor, const codec::Compression& compression);
/// A piece as it travels. \param bytes  its values in memory
Result<Slice> encode_piece(Slice bytes, const ManifestTensor& is, const Piece& piece);
/// Tells whether a tensor of a state is where the model has it. \param reader  of the state; null: none is
inline bool is_live(const StateReader* reader, std::size_t tensor) {
  return reader && tensor < reader->tensors()->count();
}
/// Bytes [offset, offset + size) of a tensor of a state, wherever they are. \param reader  of the state; null: it has
/// none. Errors: state_changed.
Result<Slice> read_state(const SharedState& state, const StateReader* reader, std::size_t tensor, std::size_t offset,
                         std::size_t size);
/// The piece as it travels. The same errors.
Result<Slice> read_piece(const SharedState& state, const StateReader* reader, const ManifestTensor& is,
                         const Piece& piece);
/// The bytes of a tensor of a state, wherever they are.
std::size_t size_of(const SharedState& state, const StateReader* reader, std::size_t tensor);

/// Reads a shared state step by step, a few milliseconds each, on any thread, one after another.
class ManifestBuilder {
 public:
  ManifestBuilder(std::shared_ptr<const SharedState> state, std::shared_ptr<const StateReader> reader,
                  codec::Compression compression);
  /// Describes some more tensors; false when all are. Errors: bad_state, limit_exceeded.
  Result<bool> describe();
  /// Of all tensors, once they are described.
  std::size_t pieces() const { return manifest_.hashes.size(); }
  /// Hashes pieces [first, first + count). Any thread: others may hash other pieces meanwhile.
  Result<> hash(std::size_t first, std::size_t count);
  Manifest take() { return std::move(manifest_); }

 private:
  Result<> describe_tensor(std::size_t index);

  std::shared_ptr<const SharedState> state_;
  std::shared_ptr<const StateReader> reader_;
  codec::Compression compression_;
  Manifest manifest_;
  std::uint64_t pieces_ = 0;
};

}  // namespace cohive::averaging
