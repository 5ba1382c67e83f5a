/// \file
/// Tensors to bytes and back, bit for bit as hivemind has them, and three codecs of our own. Pure functions: safe on
/// any thread, and slow for large tensors.
///
/// What is guaranteed beside Python hivemind 1.1.12 (tests/data/codec_vectors.json holds the proof):
///  - decoding gives the same bits, for every codec and dtype; buffers whose scales are NaN or infinite are an error;
///  - none, float16 and blockwise8 encode to the same bytes; quantile8 picks the same index for every value;
///  - meanstd16 and uniform8 take means and deviations in double precision where torch takes them in float32 (relative
///    difference about 1e-6), so that single values may round the other way; the code books of uniform8 and quantile8
///    differ by float32 rounding.
/// Source: docs/wire/hivemind.md, section 5.
#pragma once

#include <span>

#include "cohive/codec/tensor.hpp"
#include "cohive/core/result.hpp"

namespace cohive::codec {

class Decoder;
class CodecSet;

/// Values are the wire's CompressionType. hivemind has those below 64; a new codec is an enumerator here, a file with
/// its encoder and decoder, and a line in the table of src/codec/table.cpp.
enum class Codec : std::uint8_t {
  none = 0,        ///< the values themselves
  meanstd16 = 1,   ///< halves of (x - mean) / deviation, scaled along the last axis
  float16 = 2,     ///< halves, clamped to +-65504
  quantile8 = 3,   ///< an index into 256 averages; as many values in each bin
  uniform8 = 4,    ///< an index into 256 averages; bins of one width, six deviations in all
  blockwise8 = 5,  ///< an index into a fixed code book and a scale for every 4096 values (Python: needs bitsandbytes)
  // Ours, for updates where 0 means "nothing new", such as gradients.
  block4 = 64,  ///< 4 bits, and a bfloat16 scale for every 64 values: 4.25 bits a value
  top_k = 65,   ///< the k values of largest magnitude as halves, and where they are: 32 bits for each of those
  /// The 64 values of largest magnitude of every 4096 (SparseLoCo, https://arxiv.org/abs/2508.15706) with 2 bits for
  /// each and Rice codes of where they are: 0.16 bits a value.
  sparse2 = 66,
};

/// A codec and its parameters.
struct CodecSpec {
  /// Takes a codec with its usual density.
  CodecSpec(Codec kind = Codec::none) : CodecSpec(kind, kind == Codec::sparse2 ? 1.0 / 64 : 0.01) {}
  /// Takes a codec and, for top_k and sparse2, its density.
  CodecSpec(Codec kind, double share) : codec(kind), density(share) {}
  Codec codec;  ///< the kind of encoding
  /// The share of values that top_k and sparse2 send, above 0 and at most 1; at least one value is sent, of each block.
  double density;
  /// Returns how many of `count` values that is: of all with top_k, of a block with sparse2.
  std::size_t sent_of(std::size_t count) const;
  bool fixed_places = false;  ///< of sparse2: 12 bits for each place in place of a Rice code, which is less work
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

/// What is known about a codec.
struct CodecInfo {
  Codec codec = Codec::none;  ///< the codec that this entry is about
  std::string_view name;      ///< as hivemind names it ("FLOAT16"); in lower case those of ours
  /// Per value on the wire, without scales and code books; of top_k, per value that is sent; of sparse2, with its usual
  /// density. 0: as many as the dtype has.
  double bits = 0;
  bool exact = false;  ///< to encode what was decoded gives the same bytes again
  /// Bytes per value where every value is encoded by itself, so that a buffer can be made and read in any pieces; 0: it
  /// cannot. Of none, for any dtype but bfloat16 the size of the dtype.
  std::size_t streaming_width = 0;
  bool needs_agreement = false;  ///< Python peers do not know it: all members of a group must have offered it
  bool error_feedback = false;   ///< loses much on purpose: what it loses is sent later, see residuals.hpp
};

/// Returns the entry of a codec. Throws std::logic_error for a number that no codec has.
const CodecInfo& info(Codec codec);
/// Returns all codecs, in the order of their numbers.
std::span<const CodecInfo> all_codecs();

/// Returns the codec of a number that a peer sent, unless it needs an agreement and is not among `agreed`.
std::optional<Codec> codec_from_wire(int compression, const CodecSet& agreed);
/// Returns the codec of a number that a peer sent, if it needs no agreement.
std::optional<Codec> codec_from_wire(int compression);
/// Returns the codec's name, as hivemind's CompressionType has it.
std::string_view name_of(Codec codec);
/// Returns the codec of a name; nullopt for other text.
std::optional<Codec> codec_from_name(std::string_view name);

/// Returns the bytes on the wire per byte of the tensor: what parts are cut by.
double compression_ratio(Codec codec, DType dtype);
/// Returns the bytes per value, where a codec encodes every value of a dtype by itself; else 0.
std::size_t streaming_width(Codec codec, DType dtype);
/// Tells whether the encoded tensor is its own memory, so that nothing has to be computed.
bool travels_as_it_is(Codec codec, DType dtype);

/// Returns what encode_tensor really uses where `wanted` is asked for: `wanted`, or none for tensors that it cannot
/// encode (not floating point; bfloat16 with the 16-bit codecs; scalars with meanstd16; empty ones with uniform8 and
/// quantile8).
Codec codec_for(Codec wanted, DType dtype, const Shape& shape);

/// Encodes float32 values as a one-dimensional tensor of dtype float32; top_k: at most 2^32 values. Values that are not
/// finite reach the decoder, which finds or refuses them.
Slice encode(CodecSpec codec, std::span<const float> values);
/// Encodes, or returns nullopt where a value is NaN or infinite.
std::optional<Slice> encode_finite(CodecSpec codec, std::span<const float> values);
/// Encodes `average - base`, element by element. Both have one length.
Slice encode_difference(CodecSpec codec, std::span<const float> average, std::span<const float> base);
/// The same with a base that is decoded on the way.
Slice encode_difference(CodecSpec codec, std::span<const float> average, const Decoder& base);

/// Decodes a buffer of `codec` for a tensor of `dtype` into float32. Errors: Errc::malformed for a combination that no
/// peer sends, a wrong size, a code book that is too short or too long, places out of order or range, a scale that is
/// not finite. Values themselves may be NaN or infinite: see Decoder::finite().
Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out);
/// accumulator += weight * decode(buffer), in one pass; for top_k it takes time by the values sent only. On an error
/// nothing was added.
Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator);

/// Encodes any tensor, keeping its dtype: for state downloads. The buffer is one of codec_for(codec, dtype, shape).
/// Errors: data that does not fit the shape.
Result<Slice> encode_tensor(CodecSpec codec, const Tensor& tensor);
/// The reverse. Memory is taken after the buffer was found to fit the shape. Errors as decode().
Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer);

}  // namespace cohive::codec
