// What a round does with tensors of a device: averages that are applied, gradients that are added up. All pointers are
// the device's. Each returns the cudaError_t of the launch.
#pragma once

#include "codec_kernels.hpp"

namespace cohive::cuda::kernels {

/// Where the results of a stretch go; as averaging::Destination.
struct Applied {
  const float* own;
  float* out;  ///< may be `own`
  bool differences;
};
/// out = own + alpha * (average - own), or the second term alone; `average` itself where alpha is 1 and the sum is
/// wanted.
int apply_average(CUstream_st* stream, const float* average, float alpha, const Applied& to, std::size_t count);
/// out = own + alpha * difference, or the second term alone.
int apply_difference(CUstream_st* stream, const float* difference, float alpha, const Applied& to, std::size_t count);

/// sum += factor * gradient, or sum = factor * gradient for the first. Where gradient.found is set, it becomes 1 when a
/// value is not finite, which counts as 0.
int accumulate(CUstream_st* stream, const Input& gradient, float factor, bool first, float* sum, std::size_t count);
/// values *= factor
int scale(CUstream_st* stream, float* values, float factor, std::size_t count);

}  // namespace cohive::cuda::kernels
