// The table of codecs: what there is to know about each, its encoder and its decoder.
#pragma once

#include <cstring>
#include <optional>

#include "codec/detail/values.hpp"
#include "cohive/codec/decoder.hpp"

namespace cohive::codec {

/// The last axis of a tensor, along which meanstd16 scales: `rows` times `row` values.
struct Rows {
  std::size_t rows = 1, row = 0;
};

using Encode = Slice(const CodecSpec& spec, const Values& values, Rows rows);
/// nullopt where a value is not finite.
using EncodeFinite = std::optional<Slice>(std::span<const float> values);
using Open = Result<DecoderPtr>(DType dtype, std::size_t count, ByteView buffer, const Shape* shape);

/// Which tensors a codec cannot encode, beside tensors that are not of floating point.
struct Refuses {
  bool bfloat16 = false, scalars = false, empty = false;
};

struct TableEntry {
  CodecInfo info;
  Refuses refuses;
  Encode* encode;
  Open* open;
  EncodeFinite* encode_finite = nullptr;  ///< in one pass with the encoding; null: in one of its own
};

/// Null for a number that no codec has.
const TableEntry* find_entry(Codec codec);
/// Throws std::logic_error for such a number.
const TableEntry& entry_of(Codec codec);

// Each in the file of its name.
Encode encode_none, encode_meanstd16, encode_float16, encode_quantile8, encode_uniform8, encode_blockwise8,
    encode_block4, encode_top_k, encode_sparse2;
Open open_none, open_meanstd16, open_float16, open_quantile8, open_uniform8, open_blockwise8, open_block4, open_top_k,
    open_sparse2;
EncodeFinite encode_finite_float16;

// What decoders share.

Error malformed(std::string what);
Error wrong_size(std::size_t have, std::size_t want);
/// A codec that does not go with a dtype.
Error wrong_dtype(Codec codec, DType dtype);

template <class T>
T read_at(const std::uint8_t* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void write_at(std::uint8_t* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

/// Errors: a scale that is not a finite number.
Result<> check_scales(const std::uint8_t* scales, std::size_t count, std::string_view what);

}  // namespace cohive::codec
