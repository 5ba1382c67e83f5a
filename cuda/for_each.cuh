// Kernels that look at every value by itself.
#pragma once

#include <cuda_runtime_api.h>

#include "launch.hpp"

namespace cohive::cuda::kernels {

constexpr unsigned kThreads = 256;
constexpr std::size_t kMostBlocks = 4096;  // enough to fill a GPU; each thread takes several values

/// Calls step(i) for every i below count, one thread each.
template <class Step>
__global__ void for_each(std::size_t count, Step step) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) step(i);
}

template <class Step>
int launch_each(const char* name, CUstream_st* stream, std::size_t count, Step step) {
  if (count == 0) return cudaSuccess;
  const std::size_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  return launch(name, for_each<Step>, blocks, kThreads, stream, count, step);
}

}  // namespace cohive::cuda::kernels
