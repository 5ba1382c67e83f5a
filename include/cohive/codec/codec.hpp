/// \file
/// Tensors to bytes and back, as hivemind has them. Pure functions: safe on any thread.
/// Source: hivemind wire spec, section 5.
#pragma once

#include <span>

#include "cohive/codec/tensor.hpp"
#include "cohive/core/result.hpp"

namespace cohive::codec {

/// Values are the wire's CompressionType.
enum class Codec : std::uint8_t { none = 0, float16 = 2 };

/// Bytes on the wire per byte of the tensor; what parts are cut by.
double compression_ratio(Codec codec, DType dtype);
std::optional<Codec> codec_from_wire(int compression);

/// Encodes float32 values: 4 bytes each for none, clamped IEEE halves (round to nearest even) for float16.
Slice encode(Codec codec, std::span<const float> values);
/// Encodes `average - base`, element by element.
Slice encode_difference(Codec codec, std::span<const float> average, std::span<const float> base);

/// Decodes a buffer of `codec` for a tensor of `dtype` into float32. Errors: unknown combination, wrong size.
Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out);
/// accumulator += weight * decode(buffer).
Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator);

/// Any tensor, keeping its dtype: for state downloads.
Result<Slice> encode_tensor(Codec codec, const Tensor& tensor);
Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer);

}  // namespace cohive::codec
