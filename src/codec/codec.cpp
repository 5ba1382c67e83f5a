#include "cohive/codec/codec.hpp"

#include <algorithm>
#include <array>

#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"
#include "encoder.hpp"
#include "kernels.hpp"
#include "whole_tensor.hpp"

namespace cohive::codec {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"NONE",          "MEANSTD_16BIT", "FLOAT16",
                                                    "QUANTILE_8BIT", "UNIFORM_8BIT",  "BLOCKWISE_8BIT"};

/// What is not floating point travels as it is.
Result<Tensor> decode_raw(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer,
                          std::uint64_t count) {
  if (codec != Codec::none)
    return Error(Errc::malformed,
                 std::string(name_of(codec)) + " codec with a tensor of " + std::string(name_of(dtype)));
  if (buffer.size() != count * size_of(dtype))
    return Error(Errc::malformed, "tensor buffer of " + std::to_string(buffer.size()) + " bytes where " +
                                      std::to_string(count * size_of(dtype)) + " belong");
  Tensor tensor{dtype, std::move(shape), requires_grad, Slice::copy_of(buffer)};
  // Any other byte in a bool is undefined behaviour wherever it is looked at.
  if (dtype == DType::boolean)
    std::transform(buffer.begin(), buffer.end(), tensor.data.mutable_data(),
                   [](std::uint8_t value) { return std::uint8_t{value != 0}; });
  return tensor;
}

}  // namespace

double compression_ratio(Codec codec, DType dtype) {
  const auto bits = static_cast<double>(size_of(dtype) * 8);
  switch (codec) {
    case Codec::none:
      return 1.0;
    case Codec::float16:
    case Codec::meanstd16:
      return 16.0 / bits;
    default:
      return 8.0 / bits;
  }
}

std::optional<Codec> codec_from_wire(int compression) {
  if (compression < 0 || compression >= static_cast<int>(kNames.size())) return std::nullopt;
  return static_cast<Codec>(compression);
}

std::string_view name_of(Codec codec) {
  return kNames.at(static_cast<std::size_t>(codec));
}

std::optional<Codec> codec_from_name(std::string_view name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<Codec>(at - kNames.begin());
}

Codec codec_for(Codec wanted, DType dtype, const Shape& shape) {
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  const bool sixteen = wanted == Codec::float16 || wanted == Codec::meanstd16;
  if (!is_floating(dtype) || (sixteen && dtype == DType::bfloat16) || (wanted == Codec::meanstd16 && shape.empty()) ||
      (empty && (wanted == Codec::uniform8 || wanted == Codec::quantile8)))
    return Codec::none;
  return wanted;
}

Slice encode(Codec codec, std::span<const float> values) {
  return run_encoder(*make_encoder(codec, Values(values), 1, values.size()));
}

std::optional<Slice> encode_finite(Codec codec, std::span<const float> values) {
  if (codec == Codec::float16) {
    Slice out = Slice::uninitialised(values.size() * 2);
    if (!kernels().to_half_checked(values.data(), out.mutable_data(), values.size())) return std::nullopt;
    return out;
  }
  if (!kernels().all_finite(values.data(), values.size())) return std::nullopt;
  return encode(codec, values);
}

Slice encode_difference(Codec codec, std::span<const float> average, std::span<const float> base) {
  return run_encoder(*make_encoder(codec, Values::difference(average, base), 1, average.size()));
}

Slice encode_difference(Codec codec, std::span<const float> average, const Decoder& base) {
  return run_encoder(*make_encoder(codec, Values::difference(average, base), 1, average.size()));
}

Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out) {
  const auto decoder = Decoder::open(codec, dtype, out.size(), buffer);
  if (!decoder) return decoder.error();
  decoder->decode(0, out);
  return ok();
}

Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator) {
  const auto decoder = Decoder::open(codec, dtype, accumulator.size(), buffer);
  if (!decoder) return decoder.error();
  decoder->accumulate(0, weight, accumulator);
  return ok();
}

Result<std::unique_ptr<Encoder>> tensor_encoder(Codec codec, const Tensor& tensor) {
  const auto count = element_count(tensor.shape);
  if (!count || tensor.data.size() != *count * size_of(tensor.dtype))
    return Error(Errc::invalid_argument, "tensor data of " + std::to_string(tensor.data.size()) + " bytes where " +
                                             std::to_string(count.value_or(0) * size_of(tensor.dtype)) + " belong");
  codec = codec_for(codec, tensor.dtype, tensor.shape);
  // bfloat16 travels as float32: Python's default, which every version decodes.
  if (codec == Codec::none && tensor.dtype != DType::bfloat16) return std::unique_ptr<Encoder>();
  const std::size_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  std::size_t rows = 1;
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return make_encoder(codec, Values::of(tensor.dtype, tensor.data), rows, row);
}

Result<Slice> encode_tensor(Codec codec, const Tensor& tensor) {
  auto encoder = tensor_encoder(codec, tensor);
  if (!encoder) return encoder.error();
  return *encoder ? run_encoder(**encoder) : tensor.data;
}

Result<TensorDecoding> open_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer) {
  const auto count = element_count(shape);
  if (!count) return Error(Errc::limit_exceeded, "tensor shape");
  if (!is_floating(dtype)) {
    auto raw = decode_raw(codec, dtype, std::move(shape), requires_grad, buffer, *count);
    if (!raw) return raw.error();
    return TensorDecoding{std::nullopt, std::move(*raw)};
  }
  if (codec == Codec::meanstd16) {
    const auto rows = shape.empty() ? std::nullopt : element_count({shape.begin(), shape.end() - 1});
    if (!rows || buffer.size() != *count * 2 + *rows * 8)
      return Error(Errc::malformed, "tensor buffer of " + std::to_string(buffer.size()) + " bytes for " +
                                        std::to_string(*count) + " scaled halves of " +
                                        std::to_string(rows.value_or(0)) + " rows");
  }
  const auto decoder = Decoder::open(codec, dtype, *count, buffer);
  if (!decoder) return decoder.error();
  return TensorDecoding{*decoder,
                        Tensor{dtype, std::move(shape), requires_grad, Slice::uninitialised(*count * size_of(dtype))}};
}

Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer) {
  auto decoding = open_tensor(codec, dtype, std::move(shape), requires_grad, buffer);
  if (!decoding) return decoding.error();
  if (const auto& decoder = decoding->decoder)
    decoder->decode_bytes(0, decoder->size(), decoding->tensor.data.mutable_data());
  return std::move(decoding->tensor);
}

}  // namespace cohive::codec
