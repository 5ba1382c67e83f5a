#include "wire.hpp"

#include <bit>

#include "cohive/core/errors.hpp"
#include "cohive/core/varint.hpp"
#include "core/detail/proto_fields.hpp"

namespace cohive::averaging {
namespace {

using namespace wire_format;

constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxDTypeName = 32;
constexpr std::size_t kMaxCommitment = 8192;  // keys and signatures of RSA have two kilobytes
constexpr std::uint32_t kCommitment = 1000, kMadeOf = 1001;

Error malformed() {
  return Error(cohive::Errc::malformed, "tensor message");
}

bool add_size(std::uint64_t size, codec::Shape& shape) {
  if (size > UINT32_MAX || shape.size() == kMaxDimensions) return false;
  shape.push_back(static_cast<std::uint32_t>(size));
  return true;
}

bool parse_sizes(ByteView packed, codec::Shape& shape) {
  while (!packed.empty()) {
    const Varint size = read_varint(packed);
    if (size.status != VarintStatus::ok || !add_size(size.value, shape)) return false;
    packed = packed.subspan(size.size);
  }
  return true;
}

/// Opens the submessage `number` that holds a buffer of `size` bytes followed by `tail`.
void open_tensor(std::string& head, std::uint32_t number, std::size_t size, const std::string& tail) {
  std::string inner;
  if (size > 0) {
    put_key(inner, 1, kBytes);
    append_varint(inner, size);
  }
  put_key(head, number, kBytes);
  append_varint(head, inner.size() + size + tail.size());
  head += inner;
}

}  // namespace

std::optional<TensorView> parse_tensor(ByteView rest) {
  TensorView tensor;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return std::nullopt;
    const bool bytes = field.type == kBytes, varint = field.type == kVarint;
    bool good = true;
    switch (field.number) {
      case 1:
        good = bytes;
        tensor.buffer = field.bytes;
        break;
      case 2:
        good = varint ? add_size(field.value, tensor.shape) : bytes && parse_sizes(field.bytes, tensor.shape);
        break;
      case 3:
        good = varint;
        tensor.requires_grad = field.value != 0;
        break;
      case 4:
        good = bytes && field.bytes.size() <= kMaxDTypeName;
        if (good) tensor.dtype = to_string(field.bytes);
        break;
      case 5:
        good = varint;
        tensor.compression = static_cast<int>(field.value);
        break;
      case 6:
        good = varint;
        tensor.chunks = static_cast<int>(field.value);
        break;
      default:
        break;
    }
    if (!good) return std::nullopt;
  }
  return tensor;
}

std::string tensor_tail(const TensorView& tensor) {
  std::string out;
  if (!tensor.shape.empty()) {
    std::string packed;
    for (std::uint32_t size : tensor.shape) append_varint(packed, size);
    put_bytes(out, 2, packed);
  }
  put_varint(out, 3, tensor.requires_grad);
  put_bytes(out, 4, tensor.dtype);
  put_varint(out, 5, static_cast<std::uint64_t>(tensor.compression));
  put_varint(out, 6, static_cast<std::uint64_t>(tensor.chunks));
  return out;
}

Result<PartMessage> parse_part(ByteView rest) {
  PartMessage message;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed();
    bool good = true;
    switch (field.number) {
      case 1:
        good = field.type == kVarint;
        message.code = static_cast<int>(field.value);
        break;
      case 2:
        good = field.type == kBytes && field.bytes.size() <= kMaxGroupId + kMaxPhase;
        if (good) message.group_id = to_string(field.bytes);
        break;
      case 4:
        good = field.type == kBytes && (message.tensor = parse_tensor(field.bytes));
        break;
      case 5:
        good = field.type == kFixed64;
        message.weight = std::bit_cast<double>(field.value);
        break;
      case kCommitment:
      case kMadeOf:
        good = field.type == kBytes && field.bytes.size() <= kMaxCommitment;
        if (good)
          (field.number == kCommitment ? message.commitment : message.transcript_digest) = to_string(field.bytes);
        break;
      default:
        break;
    }
    if (!good) return malformed();
  }
  return message;
}

Result<DownloadMessage> parse_download(ByteView rest) {
  DownloadMessage message;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed();
    const bool bytes = field.type == kBytes;
    if (field.number == 1) {
      if (!bytes) return malformed();
      message.metadata = to_string(field.bytes);
    }
    if (field.number == 2 && !(bytes && (message.tensor = parse_tensor(field.bytes)))) return malformed();
  }
  return message;
}

std::string encode_manifest_request(const StateRoot& wanted) {
  std::string out;
  put_bytes(out, 1, wanted);
  return out;
}

Result<StateRoot> parse_manifest_request(ByteView rest) {
  StateRoot wanted;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed();
    if (field.number != 1) continue;
    if (field.type != kBytes || field.bytes.size() != kRootSize) return malformed();
    wanted = to_string(field.bytes);
  }
  return wanted;
}

std::string encode_manifest_head(const ManifestHead& head) {
  std::string out;
  put_bytes(out, 1, head.root);
  put_varint(out, 2, head.size);
  return out;
}

Result<ManifestHead> parse_manifest_head(ByteView rest) {
  ManifestHead head;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed();
    if (field.number == 1) {
      if (field.type != kBytes || field.bytes.size() != kRootSize) return malformed();
      head.root = to_string(field.bytes);
    }
    if (field.number == 2) {
      if (field.type != kVarint) return malformed();
      head.size = field.value;
    }
  }
  return head;
}

std::string encode_piece_request(std::uint64_t index) {
  std::string out;
  put_varint(out, 1, index);
  return out;
}

std::string piece_head(std::uint64_t index, std::size_t size) {
  std::string out;
  put_varint(out, 1, index);
  put_key(out, 2, kBytes);
  append_varint(out, size);
  return out;
}

Result<PieceMessage> parse_piece(ByteView rest) {
  PieceMessage piece;
  Field field;
  while (!rest.empty()) {
    if (!take_field(rest, field)) return malformed();
    const bool good = field.number == 1 ? field.type == kVarint : field.number != 2 || field.type == kBytes;
    if (!good) return malformed();
    if (field.number == 1) piece.index = field.value;
    if (field.number == 2) piece.data = field.bytes;
  }
  return piece;
}

Envelope envelope_part(int code, std::string_view group_id, std::size_t buffer_size, std::size_t elements,
                       int compression, double weight) {
  TensorView description;
  description.shape = {static_cast<std::uint32_t>(elements)};
  description.dtype = "float32";
  description.compression = compression;
  Envelope out;
  put_varint(out.head, 1, static_cast<std::uint64_t>(code));
  put_bytes(out.head, 2, group_id);
  out.tail = tensor_tail(description);
  open_tensor(out.head, 4, buffer_size, out.tail);
  if (weight != 0) {
    put_key(out.tail, 5, kFixed64);
    out.tail.append(reinterpret_cast<const char*>(&weight), sizeof weight);
  }
  return out;
}

void append_commitment(Envelope& part, std::string_view commitment) {
  put_bytes(part.tail, kCommitment, commitment);
}
void append_transcript_digest(Envelope& part, std::string_view digest) {
  put_bytes(part.tail, kMadeOf, digest);
}

Envelope envelope_code(int code) {
  Envelope out;
  put_varint(out.head, 1, static_cast<std::uint64_t>(code));
  return out;
}

Envelope envelope_download(std::string_view metadata, const TensorView& tensor, bool first) {
  Envelope out;
  put_bytes(out.head, 1, metadata);
  if (first) out.tail = tensor_tail(tensor);
  open_tensor(out.head, 2, tensor.buffer.size(), out.tail);
  return out;
}

}  // namespace cohive::averaging
