#include "cohive/codec/codec.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "cohive/core/errors.hpp"
#include "half.hpp"

namespace cohive::codec {
namespace {

struct Kind {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array kKinds = {
    Kind{DType::float64, "float64", 8},   Kind{DType::float32, "float32", 4},     Kind{DType::float16, "float16", 2},
    Kind{DType::bfloat16, "bfloat16", 2}, Kind{DType::complex64, "complex64", 8}, Kind{DType::complex128, "complex128", 16},
    Kind{DType::int64, "int64", 8},       Kind{DType::int32, "int32", 4},         Kind{DType::int16, "int16", 2},
    Kind{DType::int8, "int8", 1},         Kind{DType::uint8, "uint8", 1},         Kind{DType::boolean, "bool", 1},
};
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
/// Values converted at a time on the stack, so that buffers of the network need no aligned copy.
constexpr std::size_t kChunk = 1024;

Error wrong_size(std::size_t have, std::size_t want) {
  return Error(Errc::malformed, "tensor buffer of " + std::to_string(have) + " bytes where " + std::to_string(want) + " belong");
}

float bfloat_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// How the values of a buffer are stored: the dtype for none, halves for float16; bfloat16 may travel as float32.
Result<DType> stored_as(Codec codec, DType dtype, std::size_t bytes, std::size_t count) {
  if (!is_floating(dtype)) return Error(Errc::malformed, "tensor of " + std::string(name_of(dtype)) + " cannot be averaged");
  if (codec == Codec::float16 && dtype == DType::bfloat16) return Error(Errc::malformed, "float16 codec with bfloat16 tensor");
  DType stored = codec == Codec::float16 ? DType::float16 : dtype;
  if (codec == Codec::none && dtype == DType::bfloat16 && count > 0 && bytes == count * 4) stored = DType::float32;
  if (bytes != count * size_of(stored)) return wrong_size(bytes, count * size_of(stored));
  return stored;
}

void widen(DType stored, const std::uint8_t* in, float* out, std::size_t count) {
  std::array<std::uint16_t, kChunk> halves;
  switch (stored) {
    case DType::float32: std::memcpy(out, in, count * 4); break;
    case DType::float64:
      for (std::size_t i = 0; i < count; ++i) {
        double value;
        std::memcpy(&value, in + i * 8, 8);
        out[i] = static_cast<float>(value);
      }
      break;
    case DType::float16:
      std::memcpy(halves.data(), in, count * 2);
      from_half(halves.data(), out, count);
      break;
    default:
      std::memcpy(halves.data(), in, count * 2);
      std::transform(halves.begin(), halves.begin() + static_cast<std::ptrdiff_t>(count), out, bfloat_to_float);
  }
}

}  // namespace

std::size_t size_of(DType dtype) { return kKinds[static_cast<std::size_t>(dtype)].size; }
std::string_view name_of(DType dtype) { return kKinds[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return kind.dtype;
  return std::nullopt;
}

std::optional<std::uint64_t> element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (std::uint32_t size : shape) {
    if (size != 0 && count > kMaxElements / size) return std::nullopt;
    count *= size;
  }
  return count;
}

double compression_ratio(Codec codec, DType dtype) {
  return codec == Codec::none ? 1.0 : 16.0 / static_cast<double>(size_of(dtype) * 8);
}

std::optional<Codec> codec_from_wire(int compression) {
  if (compression == 0) return Codec::none;
  if (compression == 2) return Codec::float16;
  return std::nullopt;
}

Slice encode(Codec codec, std::span<const float> values) {
  if (codec == Codec::none)
    return Slice::copy_of({reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()});
  Slice out = Slice::uninitialised(values.size() * 2);
  to_half(values.data(), reinterpret_cast<std::uint16_t*>(out.mutable_data()), values.size());
  return out;
}

Slice encode_difference(Codec codec, std::span<const float> average, std::span<const float> base) {
  Slice out = Slice::uninitialised(average.size() * (codec == Codec::none ? 4 : 2));
  if (codec == Codec::none) {
    auto* to = reinterpret_cast<float*>(out.mutable_data());
    for (std::size_t i = 0; i < average.size(); ++i) to[i] = average[i] - base[i];
    return out;
  }
  std::array<float, kChunk> chunk;
  auto* to = reinterpret_cast<std::uint16_t*>(out.mutable_data());
  for (std::size_t at = 0; at < average.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, average.size() - at);
    for (std::size_t i = 0; i < count; ++i) chunk[i] = average[at + i] - base[at + i];
    to_half(chunk.data(), to + at, count);
  }
  return out;
}

Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out) {
  const auto stored = stored_as(codec, dtype, buffer.size(), out.size());
  if (!stored) return stored.error();
  const std::size_t size = size_of(*stored);
  for (std::size_t at = 0; at < out.size(); at += kChunk)
    widen(*stored, buffer.data() + at * size, out.data() + at, std::min(kChunk, out.size() - at));
  return ok();
}

Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator) {
  const auto stored = stored_as(codec, dtype, buffer.size(), accumulator.size());
  if (!stored) return stored.error();
  const std::size_t size = size_of(*stored);
  std::array<float, kChunk> chunk;
  for (std::size_t at = 0; at < accumulator.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, accumulator.size() - at);
    widen(*stored, buffer.data() + at * size, chunk.data(), count);
    float* to = accumulator.data() + at;
    for (std::size_t i = 0; i < count; ++i) to[i] += weight * chunk[i];
  }
  return ok();
}

Result<Slice> encode_tensor(Codec codec, const Tensor& tensor) {
  const auto count = element_count(tensor.shape);
  if (!count || tensor.data.size() != *count * size_of(tensor.dtype)) return wrong_size(tensor.data.size(), count.value_or(0) * size_of(tensor.dtype));
  const bool by_value = codec == Codec::none || !is_floating(tensor.dtype) || tensor.dtype == DType::bfloat16;
  if (by_value && tensor.dtype != DType::bfloat16) return tensor.data;
  std::vector<float> values(*count);
  for (std::size_t at = 0; at < values.size(); at += kChunk)
    widen(tensor.dtype, tensor.data.data() + at * size_of(tensor.dtype), values.data() + at, std::min(kChunk, values.size() - at));
  // bfloat16 travels as float32: Python's default, which every version decodes.
  return encode(by_value ? Codec::none : codec, values);
}

Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer) {
  const auto count = element_count(shape);
  if (!count) return Error(Errc::limit_exceeded, "tensor shape");
  Tensor tensor{dtype, std::move(shape), requires_grad, {}};
  const std::size_t size = *count * size_of(dtype);
  if (codec == Codec::none && buffer.size() == size) {
    tensor.data = Slice::copy_of(buffer);
    return tensor;
  }
  if (codec == Codec::none && dtype != DType::bfloat16) return wrong_size(buffer.size(), size);
  const auto stored = stored_as(codec, dtype, buffer.size(), *count);  // before memory is taken
  if (!stored) return stored.error();
  std::vector<float> values(*count);
  if (auto decoded = decode(codec, dtype, buffer, values); !decoded) return decoded.error();
  tensor.data = Slice::uninitialised(size);
  std::uint8_t* out = tensor.data.mutable_data();
  switch (dtype) {
    case DType::float32: std::copy(values.begin(), values.end(), reinterpret_cast<float*>(out)); break;
    case DType::float16: to_half(values.data(), reinterpret_cast<std::uint16_t*>(out), values.size()); break;
    case DType::float64:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        std::memcpy(out + i * 8, &value, 8);
      }
      break;
    default: std::transform(values.begin(), values.end(), reinterpret_cast<std::uint16_t*>(out), float_to_bfloat);
  }
  return tensor;
}

}  // namespace cohive::codec
