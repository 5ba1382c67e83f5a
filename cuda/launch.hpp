// Starts kernels. Where they are compiled for the processor, the emulator of tests/cuda/emulator has its own.
#pragma once

struct CUstream_st;

namespace cohive::cuda {

/// Names what the calling thread starts next, a kernel or a copy, for the sentences of errors. \param name  a literal
void note_start(const char* name);

}  // namespace cohive::cuda

#ifdef __CUDACC__
#include <cuda_runtime_api.h>

namespace cohive::cuda {

/// Queues a kernel on a stream. Returns the cudaError_t of the launch. \param name  for errors
template <class... Parameters, class... Arguments>
int launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, CUstream_st* stream,
           Arguments... arguments) {
  note_start(name);
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace cohive::cuda
#elif defined COHIVE_CUDA_EMULATED_KERNELS
namespace cohive::cuda {

template <class... Parameters, class... Arguments>
int launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, CUstream_st* stream,
           Arguments... arguments) {
  note_start(name);
  return emulated::launch(name, kernel, blocks, threads, stream, arguments...);
}

}  // namespace cohive::cuda
#endif
