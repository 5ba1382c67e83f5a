// Kernels that are wrong, each in one way, and one that is right: what the emulator has to find.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace cohive::cuda::planted {

enum class Error {
  none,
  missing_barrier,
  barrier_of_some_threads,
  read_behind,
  write_behind,
  read_before,
  wrong_stride,
  race_between_blocks,
  race_in_shared_memory,
  misaligned_load,
  plain_write_beside_atomic,
  into_another_shared_variable,
  before_a_shared_variable,
};
inline constexpr int kErrors = 13;  // the first is none

/// Adds up `count` values, a multiple of 256, block by block. \param in  and out: memory of the device
int sum_blocks(CUstream_st* stream, Error error, const float* in, float* out, std::size_t count);

}  // namespace cohive::cuda::planted
