// The types of elements that a file may hold, under the names of safetensors.
#pragma once

#include <optional>
#include <string_view>

#include "cohive/codec/tensor.hpp"

namespace cohive::checkpoint {

struct DTypeName {
  codec::DType dtype;
  std::string_view name;
};

inline constexpr DTypeName kDTypes[] = {
    {codec::DType::float64, "F64"},   {codec::DType::float32, "F32"},   {codec::DType::float16, "F16"},
    {codec::DType::bfloat16, "BF16"}, {codec::DType::complex64, "C64"}, {codec::DType::int64, "I64"},
    {codec::DType::int32, "I32"},     {codec::DType::int16, "I16"},     {codec::DType::int8, "I8"},
    {codec::DType::uint8, "U8"},      {codec::DType::boolean, "BOOL"},
};

inline std::optional<codec::DType> dtype_from_file(std::string_view name) {
  for (const auto& known : kDTypes)
    if (known.name == name) return known.dtype;
  return std::nullopt;
}

inline std::optional<std::string_view> name_in_file(codec::DType dtype) {
  for (const auto& known : kDTypes)
    if (known.dtype == dtype) return known.name;
  return std::nullopt;
}

}  // namespace cohive::checkpoint
