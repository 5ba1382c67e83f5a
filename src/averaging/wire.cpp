#include "wire.hpp"

#include <bit>
#include <cstring>

#include "cohive/core/errors.hpp"
#include "cohive/core/varint.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxDimensions = 64;
constexpr std::uint64_t kMaxFieldNumber = (1u << 29) - 1;
constexpr std::uint32_t kSkippedField = 1000, kHaveMetadataField = 1000, kHaveTensorsField = 1001;  // ours
constexpr std::size_t kMaxGroupId = 64, kMaxDTypeName = 32;

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

Error malformed() {
  return Error(Errc::malformed, "tensor message");
}

struct Field {
  std::uint32_t number = 0, type = 0;
  std::uint64_t value = 0;  // of a varint or fixed-width field
  ByteView bytes;           // of a length-delimited one
};

/// Takes one field off `rest`; false when malformed.
bool take(ByteView& rest, Field& field) {
  const Varint key = read_varint(rest);
  if (key.status != VarintStatus::ok) return false;
  rest = rest.subspan(key.size);
  field = {static_cast<std::uint32_t>(key.value >> 3), static_cast<std::uint32_t>(key.value & 7), 0, {}};
  if (key.value >> 3 == 0 || key.value >> 3 > kMaxFieldNumber) return false;
  switch (field.type) {
    case kVarint:
    case kBytes: {
      const Varint value = read_varint(rest);
      if (value.status != VarintStatus::ok) return false;
      rest = rest.subspan(value.size);
      field.value = value.value;
      if (field.type == kVarint) return true;
      if (value.value > rest.size()) return false;
      field.bytes = rest.first(value.value);
      rest = rest.subspan(value.value);
      return true;
    }
    case kFixed64:
    case kFixed32: {
      const std::size_t size = field.type == kFixed64 ? 8 : 4;
      if (rest.size() < size) return false;
      std::memcpy(&field.value, rest.data(), size);
      rest = rest.subspan(size);
      return true;
    }
    default:
      return false;
  }
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

/// Fields that we know have the type that the message says; others are passed over, as protobuf does.
std::optional<TensorView> parse_tensor(ByteView rest) {
  TensorView tensor;
  Field field;
  while (!rest.empty()) {
    if (!take(rest, field)) return std::nullopt;
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

void put_key(std::string& out, std::uint32_t number, WireType type) {
  append_varint(out, number << 3 | type);
}
void put_varint(std::string& out, std::uint32_t number, std::uint64_t value) {
  if (value == 0) return;  // proto3: zero is absent
  put_key(out, number, kVarint);
  append_varint(out, value);
}
void put_bytes(std::string& out, std::uint32_t number, std::string_view bytes) {
  if (bytes.empty()) return;
  put_key(out, number, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

/// The fields of Tensor behind its buffer.
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

Result<PartMessage> parse_part(ByteView rest) {
  PartMessage message;
  Field field;
  while (!rest.empty()) {
    if (!take(rest, field)) return malformed();
    bool good = true;
    switch (field.number) {
      case 1:
        good = field.type == kVarint;
        message.code = static_cast<int>(field.value);
        break;
      case 2:
        good = field.type == kBytes && field.bytes.size() <= kMaxGroupId;
        if (good) message.group_id = to_string(field.bytes);
        break;
      case 4:
        good = field.type == kBytes && (message.tensor = parse_tensor(field.bytes));
        break;
      case 5:
        good = field.type == kFixed64;
        message.weight = std::bit_cast<double>(field.value);
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
    if (!take(rest, field)) return malformed();
    const bool bytes = field.type == kBytes;
    if (field.number == 1) {
      if (!bytes) return malformed();
      message.metadata = to_string(field.bytes);
    }
    if (field.number == kSkippedField) {
      if (field.type != kVarint) return malformed();
      message.skipped = field.value;
    }
    if (field.number == 2 && !(bytes && (message.tensor = parse_tensor(field.bytes)))) return malformed();
  }
  return message;
}

std::string encode_request(const DownloadRequest& request) {
  std::string out;
  put_bytes(out, kHaveMetadataField, request.metadata);
  put_varint(out, kHaveTensorsField, request.tensors);
  return out;
}

Result<DownloadRequest> parse_request(ByteView rest) {
  DownloadRequest request;
  Field field;
  while (!rest.empty()) {
    if (!take(rest, field)) return malformed();
    if (field.number == kHaveMetadataField) {
      if (field.type != kBytes) return malformed();
      request.metadata = to_string(field.bytes);
    }
    if (field.number == kHaveTensorsField) {
      if (field.type != kVarint) return malformed();
      request.tensors = field.value;
    }
  }
  return request;
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

Envelope envelope_code(int code) {
  Envelope out;
  put_varint(out.head, 1, static_cast<std::uint64_t>(code));
  return out;
}

Envelope envelope_download(std::string_view metadata, const TensorView& tensor, bool first, std::uint64_t skipped) {
  Envelope out;
  put_bytes(out.head, 1, metadata);
  if (first) out.tail = tensor_tail(tensor);
  put_varint(out.head, kSkippedField, skipped);
  open_tensor(out.head, 2, tensor.buffer.size(), out.tail);
  return out;
}

}  // namespace cohive::averaging
