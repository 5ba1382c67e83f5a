/// \file
/// Tensors as codecs and averaging see them: contiguous host memory, little-endian, with hivemind's dtype names.
/// Source: docs/wire/hivemind.md, section 5.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/bytes.hpp"

namespace cohive::codec {

/// Types of values.
enum class DType {
  float64,
  float32,
  float16,
  bfloat16,
  complex64,
  complex128,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean
};

/// Returns the bytes of a value.
std::size_t size_of(DType dtype);
/// "float32", "bool" and so on, as they travel.
std::string_view name_of(DType dtype);
/// Returns the type of a name of PyTorch, "float32"; nullopt for other text.
std::optional<DType> dtype_from_name(std::string_view name);
/// Whether values are floating-point numbers, complex ones not among them.
inline bool is_floating(DType dtype) {
  return dtype <= DType::bfloat16;
}

/// The dimensions of a tensor, outermost first.
using Shape = std::vector<std::uint32_t>;
/// Number of elements; nullopt when it does not fit or exceeds 2^40.
std::optional<std::uint64_t> element_count(const Shape& shape);

/// A tensor that owns its bytes (shared, not copied).
struct Tensor {
  DType dtype = DType::float32;  ///< of the values in `data`
  Shape shape;                   ///< empty: a scalar
  bool requires_grad = false;    ///< travels with the tensor; codecs do not look at it
  Slice data;                    ///< row-major
};

}  // namespace cohive::codec
