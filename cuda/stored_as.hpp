// Which dtypes kernels take.
#pragma once

#include <optional>

#include "codec_kernels.hpp"
#include "cohive/codec/tensor.hpp"

namespace cohive::cuda {

/// Nothing for a dtype that kernels do not read.
inline std::optional<kernels::Stored> stored_as(codec::DType dtype) {
  if (dtype == codec::DType::float32) return kernels::Stored::floats;
  if (dtype == codec::DType::float16) return kernels::Stored::halves;
  if (dtype == codec::DType::bfloat16) return kernels::Stored::bfloats;
  return std::nullopt;
}

}  // namespace cohive::cuda
