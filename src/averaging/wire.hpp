// AveragingData and DownloadData by hand, so that the tensor's bytes are neither copied into nor out of a protobuf:
// sending gathers [head, buffer, tail], receiving yields a view into the received record.
// Source: docs/wire/hivemind.md, sections 1.2 and 1.3.
#pragma once

#include <optional>
#include <string>

#include "cohive/codec/codec.hpp"
#include "cohive/core/result.hpp"

namespace cohive::averaging {

/// Bytes of a group id that are believed; ours have 20.
inline constexpr std::size_t kMaxGroupId = 64;
/// The same of what follows it: Group::view, and the phase where a round has several all-reduces.
inline constexpr std::size_t kMaxPhase = 24;

/// A serialised tensor whose buffer is a view.
struct TensorView {
  ByteView buffer;
  codec::Shape shape;
  std::string dtype;
  int compression = 0;
  bool requires_grad = false;
  int chunks = 0;
};

/// Nothing when malformed. Fields that we know have the type that the message says; others are skipped, as protobuf
/// does.
std::optional<TensorView> parse_tensor(ByteView bytes);
/// The fields of Tensor behind its buffer.
std::string tensor_tail(const TensorView& tensor);

struct PartMessage {
  int code = 0;
  std::string group_id;
  std::optional<TensorView> tensor;
  double weight = 0;
  std::string commitment, transcript_digest;  ///< where averages are checked (transcript.hpp)
};
Result<PartMessage> parse_part(ByteView bytes);

struct DownloadMessage {
  std::string metadata;
  std::optional<TensorView> tensor;
};
Result<DownloadMessage> parse_download(ByteView bytes);

// ---- A state in pieces (state_pieces.hpp), between cohive peers only

/// SHA-256 of a manifest, 32 bytes; empty where none is meant.
using StateRoot = std::string;
inline constexpr std::size_t kRootSize = 32;
/// \param wanted  only this state, whose manifest the caller has; empty: whichever the donor shares, with its manifest
std::string encode_manifest_request(const StateRoot& wanted);
Result<StateRoot> parse_manifest_request(ByteView bytes);

/// Without a root: the donor is still preparing it.
struct ManifestHead {
  StateRoot root;
  std::uint64_t size = 0;  ///< bytes of the manifest; 0: it is too large, only hivemind's exchange is left
};
std::string encode_manifest_head(const ManifestHead& head);
Result<ManifestHead> parse_manifest_head(ByteView bytes);

struct PieceMessage {
  std::uint64_t index = 0;
  ByteView data;  ///< empty in a request
};
std::string encode_piece_request(std::uint64_t index);
/// What goes before the `size` bytes of a piece.
std::string piece_head(std::uint64_t index, std::size_t size);
Result<PieceMessage> parse_piece(ByteView bytes);

/// What goes before and behind the buffer.
struct Envelope {
  std::string head, tail;
};
Envelope envelope_part(int code, std::string_view group_id, std::size_t buffer_size, std::size_t elements,
                       int compression, double weight);
/// Adds what the sender of a part signs; what a reducer binds itself to.
void append_commitment(Envelope& part, std::string_view commitment);
void append_transcript_digest(Envelope& part, std::string_view digest);
/// A message that is only a code.
Envelope envelope_code(int code);
/// \param first  the first chunk of a tensor carries its description, later ones only bytes
Envelope envelope_download(std::string_view metadata, const TensorView& tensor, bool first);

}  // namespace cohive::averaging
