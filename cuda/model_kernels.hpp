// What a round does with tensors of a device: averages that are applied, gradients that are added up. All pointers are
// the device's. Each returns the cudaError_t of the launch.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

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

/// sum += factor * gradient, or sum = factor * gradient for the first. Sets *found to 1 when a value of the gradient is
/// not finite; it counts as 0.
int accumulate(CUstream_st* stream, const float* gradient, float factor, bool first, float* sum, std::uint32_t* found,
               std::size_t count);
/// values *= factor
int scale(CUstream_st* stream, float* values, float factor, std::size_t count);

}  // namespace cohive::cuda::kernels
