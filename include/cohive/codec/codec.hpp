/// \file
/// Tensors to bytes and back, bit for bit as hivemind has them. Pure functions: safe on any thread, and slow for large
/// tensors; cohive/codec/parallel.hpp has the same off the loop.
///
/// What is guaranteed beside Python hivemind 1.1.12 (tests/data/codec_vectors.json holds the proof):
///  - decoding gives the same bits, for every codec and dtype; buffers whose scales are NaN or infinite are an error;
///  - none, float16 and blockwise8 encode to the same bytes; quantile8 picks the same index for every value;
///  - meanstd16 and uniform8 take means and deviations in double precision where torch takes them in float32 (relative
///    difference about 1e-6), so that single values may round the other way; the code books of uniform8 and quantile8
///    differ by float32 rounding.
/// Source: hivemind wire spec, section 5.
#pragma once

#include <span>

#include "cohive/codec/tensor.hpp"
#include "cohive/core/result.hpp"

namespace cohive::codec {

class Decoder;

/// Values are the wire's CompressionType.
enum class Codec : std::uint8_t {
  none = 0,        ///< the values themselves
  meanstd16 = 1,   ///< halves of (x - mean) / deviation, scaled along the last axis
  float16 = 2,     ///< halves, clamped to +-65504
  quantile8 = 3,   ///< an index into 256 averages; as many values in each bin
  uniform8 = 4,    ///< an index into 256 averages; bins of one width, six deviations in all
  blockwise8 = 5,  ///< an index into a fixed code book and a scale for every 4096 values (Python: needs bitsandbytes)
};

/// A codec and its parameters.
struct CodecSpec {
  CodecSpec(Codec kind = Codec::none, double share = 0.01) : codec(kind), density(share) {}
  Codec codec;
  double density;  ///< of top_k: the share of values sent, above 0 and at most 1; at least one value is
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

/// Bytes on the wire per byte of the tensor; what parts are cut by.
double compression_ratio(Codec codec, DType dtype);
std::optional<Codec> codec_from_wire(int compression);
/// "FLOAT16" and so on, as hivemind names them.
std::string_view name_of(Codec codec);
std::optional<Codec> codec_from_name(std::string_view name);

/// What encode_tensor really uses where `wanted` is asked for: `wanted`, or none for the tensors hivemind refuses to
/// encode so (not floating point; bfloat16 with the 16-bit codecs; scalars with meanstd16; empty ones with uniform8 and
/// quantile8).
Codec codec_for(Codec wanted, DType dtype, const Shape& shape);

/// Encodes float32 values as a one-dimensional tensor of dtype float32.
Slice encode(Codec codec, std::span<const float> values);
/// The same; nothing where a value is NaN or infinite.
std::optional<Slice> encode_finite(Codec codec, std::span<const float> values);
/// Encodes `average - base`, element by element. Both have one length.
Slice encode_difference(Codec codec, std::span<const float> average, std::span<const float> base);
/// The same with a base that is decoded on the way.
Slice encode_difference(Codec codec, std::span<const float> average, const Decoder& base);

/// Decodes a buffer of `codec` for a tensor of `dtype` into float32. Errors: Errc::malformed for a combination that no
/// hivemind peer sends, a wrong size, a code book that is too short or too long, a scale that is not finite. Values
/// themselves may be NaN or infinite: see Decoder::finite().
Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out);
/// accumulator += weight * decode(buffer), in one pass. On an error nothing was added.
Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator);

/// Any tensor, keeping its dtype: for state downloads. The buffer is one of codec_for(codec, dtype, shape). Errors:
/// data that does not fit the shape.
Result<Slice> encode_tensor(Codec codec, const Tensor& tensor);
/// The reverse. Memory is taken after the buffer was found to fit the shape. Errors as decode().
Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer);

}  // namespace cohive::codec
