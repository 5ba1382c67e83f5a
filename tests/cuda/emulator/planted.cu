// A sum of each block's values by a tree in shared memory, with an error that is asked for.
#include "planted.hpp"

#include "../../../cuda/launch.hpp"

namespace cohive::cuda::planted {
namespace {

constexpr unsigned kThreads = 256;

// Its errors are for the emulator to find.
__attribute__((no_sanitize("address", "undefined"))) __global__ void sum(Error error, const float* in, float* out,
                                                                         std::size_t count) {
  __shared__ float doubled[kThreads];
  __shared__ float partial[kThreads];
  __shared__ float last;
  const unsigned thread = threadIdx.x;
  std::size_t at = static_cast<std::size_t>(blockIdx.x) * kThreads + thread;
  if (error == Error::read_behind && at + 1 == count) ++at;
  if (error == Error::read_before && at == 0) --in;
  if (error == Error::misaligned_load && at == 7)
    in = reinterpret_cast<const float*>(reinterpret_cast<const std::uint8_t*>(in) - 2);
  partial[thread] = in[at];
  doubled[thread + (error == Error::into_another_shared_variable ? 1 : 0)] = 2 * in[at];
  if (thread == 0) *(error == Error::before_a_shared_variable ? &last - 1 : &last) = in[at];
  if (error == Error::barrier_of_some_threads && thread >= 128) return;
  if (error != Error::missing_barrier) __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    const unsigned other = error == Error::wrong_stride ? thread + half + 1 : thread + half;
    if (thread < half) partial[thread] = __fadd_rn(partial[thread], partial[other]);
    if (error != Error::race_in_shared_memory) __syncthreads();
  }
  if (error == Error::plain_write_beside_atomic) {
    if (thread == 3) atomicAdd(out, 1);
    if (thread == 5) *out = 1;
  }
  if (thread != 0) return;
  if (error == Error::race_between_blocks) {
    *out = partial[0];
  } else {
    // Nothing, but of values that all threads have written.
    const float nothing = doubled[0] - 2 * last;
    out[blockIdx.x + (error == Error::write_behind ? 1 : 0)] = partial[0] + nothing;
  }
}

}  // namespace

int sum_blocks(CUstream_st* stream, Error error, const float* in, float* out, std::size_t count) {
  return launch("sum", sum, static_cast<unsigned>(count / kThreads), kThreads, stream, error, in, out, count);
}

}  // namespace cohive::cuda::planted
