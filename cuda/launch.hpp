// Starts kernels. Where they are compiled for the processor, the emulator of tests/cuda/emulator has its own.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

namespace cohive::cuda {

/// Queues a kernel on a stream. Returns the cudaError_t of the launch. \param name  for errors
template <class... Parameters, class... Arguments>
int launch([[maybe_unused]] const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, CUstream_st* stream,
           Arguments... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace cohive::cuda
#else
namespace cohive::cuda {
using emulated::launch;
}  // namespace cohive::cuda
#endif
