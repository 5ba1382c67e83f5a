// The reducer's steps: launches on a stream. All pointers are the device's. Each returns the cudaError_t of the launch.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace cohive::cuda::kernels {

int add(CUstream_st* stream, const float* in, float weight, float* sum, std::size_t count);
int divide(CUstream_st* stream, float* values, float divisor, std::size_t count);
int subtract_from(CUstream_st* stream, const float* average, float* values, std::size_t count);

}  // namespace cohive::cuda::kernels
