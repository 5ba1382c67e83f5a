#include "manifest.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "core/detail/proto_fields.hpp"

namespace cohive::averaging {
namespace {

using namespace wire_format;

constexpr std::uint32_t kMetadata = 1, kHashes = 2, kTensor = 3;
constexpr std::size_t kHashSize = std::tuple_size_v<crypto::Sha256Digest>;
constexpr std::size_t kStepTensors = 1000;

Error malformed(const char* what) {
  return Error(cohive::Errc::malformed, what);
}

std::uint64_t values_per_piece(codec::DType dtype) {
  return kPieceBytes / codec::size_of(dtype);
}
std::uint64_t pieces_of(const ManifestTensor& tensor) {
  const std::uint64_t each = values_per_piece(tensor.dtype);
  return (tensor.values + each - 1) / each;
}

Result<ManifestTensor> parse_entry(ByteView bytes) {
  const auto view = parse_tensor(bytes);
  if (!view) return malformed("tensor of a manifest");
  const auto dtype = codec::dtype_from_name(view->dtype);
  const auto codec = codec::codec_from_wire(view->compression);
  const auto values = codec::element_count(view->shape);
  if (!dtype || !codec || !values) return malformed("unknown codec, dtype or shape in a manifest");
  if (codec::codec_for(*codec, *dtype, {1}) != *codec) return malformed("a codec that does not suit its tensor");
  return ManifestTensor{*dtype, view->shape, view->requires_grad, *codec, *values};
}

/// Puts the tensor behind the others.
Result<> append(Manifest& manifest, ManifestTensor tensor, std::uint64_t& pieces) {
  if (manifest.tensors.size() == kMaxManifestTensors)
    return Error(cohive::Errc::limit_exceeded, "tensors of a manifest");
  tensor.first_piece = static_cast<std::uint32_t>(pieces);
  pieces += pieces_of(tensor);
  if (pieces > kMaxManifestBytes / kHashSize) return Error(cohive::Errc::limit_exceeded, "pieces of a manifest");
  manifest.bytes += tensor.bytes();  // at most as many pieces as above, of 128 KiB
  manifest.tensors.push_back(std::move(tensor));
  return ok();
}

}  // namespace

Piece Manifest::piece(std::size_t index) const {
  const auto after = std::upper_bound(tensors.begin(), tensors.end(), index,
                                      [](std::size_t i, const ManifestTensor& t) { return i < t.first_piece; });
  // An empty tensor has the same first piece as the one behind it, which is the one meant.
  const auto number = static_cast<std::size_t>(after - tensors.begin()) - 1;
  const ManifestTensor& tensor = tensors[number];
  const std::uint64_t each = values_per_piece(tensor.dtype), first = (index - tensor.first_piece) * each;
  return {number, first, static_cast<std::size_t>(std::min(each, tensor.values - first))};
}

std::string encode_manifest(const Manifest& manifest) {
  std::string out;
  put_bytes(out, kMetadata, manifest.metadata);
  put_bytes(out, kHashes, {reinterpret_cast<const char*>(manifest.hashes.data()), manifest.hashes.size() * kHashSize});
  for (const auto& tensor : manifest.tensors) {
    TensorView view;
    view.shape = tensor.shape;
    view.dtype = std::string(codec::name_of(tensor.dtype));
    view.requires_grad = tensor.requires_grad;
    view.compression = static_cast<int>(tensor.codec);
    put_bytes(out, kTensor, tensor_tail(view));
  }
  return out;
}

Result<Manifest> parse_manifest(ByteView rest, std::uint64_t max_bytes) {
  if (rest.size() > kMaxManifestBytes) return Error(cohive::Errc::limit_exceeded, "manifest of a state");
  Manifest manifest;
  ByteView hashes;
  std::uint64_t pieces = 0;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed("manifest");
    if (field.number > kTensor) continue;  // of a later version
    if (field.type != kBytes) return malformed("manifest");
    if (field.number == kMetadata) manifest.metadata = to_string(field.bytes);
    if (field.number == kHashes) hashes = field.bytes;
    if (field.number != kTensor) continue;
    auto tensor = parse_entry(field.bytes);
    if (!tensor) return tensor.error();
    if (auto appended = append(manifest, std::move(*tensor), pieces); !appended) return appended.error();
    if (manifest.bytes > max_bytes) return Error(cohive::Errc::limit_exceeded, "state larger than allowed");
  }
  if (manifest.tensors.empty()) return malformed("a manifest of nothing");
  if (hashes.size() != pieces * kHashSize) return malformed("a manifest with more or fewer hashes than pieces");
  manifest.hashes.resize(pieces);
  if (pieces > 0) std::memcpy(manifest.hashes.data(), hashes.data(), hashes.size());
  return manifest;
}

StateRoot root_of(ByteView manifest) {
  return to_string(ByteView(crypto::sha256(manifest)));
}

/// Steps divide by the root of a mean of squares: where float16 makes it 0, and the mean beside it stays, a newcomer's
/// first step has no bound.
Result<codec::Codec> codec_of(const SharedState& state, std::size_t tensor, const codec::Compression& compression) {
  if (tensor >= state.exact_from) return codec::Codec::none;
  const codec::CompressionInfo info =
      state.infos.empty() ? codec::CompressionInfo{tensor, state.tensors[tensor].shape, state.tensors[tensor].dtype}
                          : state.infos[tensor];
  if (info.role == codec::Role::optimizer && !compression.names(info)) return codec::Codec::none;
  const auto spec = compression.choose(info);
  if (!spec) return spec.error();
  return spec->codec;
}

Result<Slice> encode_piece(Slice bytes, const ManifestTensor& is, const Piece& piece) {
  return codec::encode_tensor(is.codec,
                              {is.dtype, {static_cast<std::uint32_t>(piece.values)}, false, std::move(bytes)});
}

Result<Slice> read_state(const SharedState& state, const StateReader* reader, std::size_t tensor, std::size_t offset,
                         std::size_t size) {
  if (!is_live(reader, tensor)) return state.tensors[tensor].data.sub(offset, size);
  auto bytes = reader->read(tensor, offset, size);
  if (!bytes) return Error(Errc::state_changed);
  return std::move(*bytes);
}

Result<Slice> read_piece(const SharedState& state, const StateReader* reader, const ManifestTensor& is,
                         const Piece& piece) {
  const std::size_t size = codec::size_of(is.dtype);
  auto bytes = read_state(state, reader, piece.tensor, piece.first * size, piece.values * size);
  if (!bytes) return bytes;
  return encode_piece(std::move(*bytes), is, piece);
}

std::size_t size_of(const SharedState& state, const StateReader* reader, std::size_t tensor) {
  return is_live(reader, tensor) ? reader->tensors()->size(tensor) : state.tensors[tensor].data.size();
}

ManifestBuilder::ManifestBuilder(std::shared_ptr<const SharedState> state, std::shared_ptr<const StateReader> reader,
                                 codec::Compression compression)
    : state_(std::move(state)), reader_(std::move(reader)), compression_(std::move(compression)) {
  manifest_.metadata = msgpack::encode(state_->metadata);
}

Result<> ManifestBuilder::describe_tensor(std::size_t index) {
  const codec::Tensor& tensor = state_->tensors[index];
  const auto values = codec::element_count(tensor.shape);
  if (!values || *values * codec::size_of(tensor.dtype) != size_of(*state_, reader_.get(), index))
    return Error(Errc::bad_state, "a tensor of another size than its shape");
  const auto codec = codec_of(*state_, index, compression_);
  if (!codec) return codec.error();
  return append(
      manifest_,
      {tensor.dtype, tensor.shape, tensor.requires_grad, codec::codec_for(*codec, tensor.dtype, {1}), *values},
      pieces_);
}

Result<bool> ManifestBuilder::describe() {
  const auto& tensors = state_->tensors;
  if (!state_->infos.empty() && state_->infos.size() != tensors.size())
    return Error(Errc::bad_state, "infos and tensors differ in number");
  for (std::size_t done = 0; manifest_.tensors.size() < tensors.size();) {
    if (done++ == kStepTensors) return true;
    if (auto described = describe_tensor(manifest_.tensors.size()); !described) return described.error();
  }
  manifest_.hashes.resize(pieces_);
  return false;
}

Result<> ManifestBuilder::hash(std::size_t first, std::size_t count) {
  for (std::size_t index = first; index < first + count; ++index) {
    const Piece piece = manifest_.piece(index);
    auto bytes = read_piece(*state_, reader_.get(), manifest_.tensors[piece.tensor], piece);
    if (!bytes) return bytes.error();
    manifest_.hashes[index] = crypto::sha256(bytes->view());
  }
  return ok();
}

}  // namespace cohive::averaging
