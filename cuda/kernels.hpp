// What kernels.cu offers to the rest: launches on a stream. All pointers are the device's. Each returns the
// cudaError_t of the launch.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace cohive::cuda::kernels {

constexpr std::size_t kScaleBlock = 4096;  // values that share a scale in blockwise8
constexpr std::size_t kEntries = 256;      // of a code book

/// The code book of blockwise8 and its borders as a search tree (see Kernels::find_bins of the codecs): travels with
/// the launch.
struct BlockwiseTables {
  float book[kEntries];
  float tree[kEntries];
};

/// What decoding an 8-bit buffer reads. Without scales they are 1.
struct Indexed {
  const float* book;
  const std::uint8_t* indices;
  const float* scales;
};

int to_half(CUstream_st* stream, const float* in, std::uint16_t* out, std::size_t count);
/// `out` has all parts of a blockwise8 buffer one after the other.
int to_blockwise(CUstream_st* stream, const BlockwiseTables& tables, const float* in, std::uint8_t* out,
                 std::size_t count);

// out = the value, and sum += weight * the value
int from_half(CUstream_st* stream, const std::uint16_t* in, float* out, std::size_t count);
int add_half(CUstream_st* stream, const std::uint16_t* in, float weight, float* sum, std::size_t count);
int from_indexed(CUstream_st* stream, const Indexed& in, float* out, std::size_t count);
int add_indexed(CUstream_st* stream, const Indexed& in, float weight, float* sum, std::size_t count);

int find_non_finite(CUstream_st* stream, const float* in, std::uint32_t* found, std::size_t count);
int add(CUstream_st* stream, const float* in, float weight, float* sum, std::size_t count);
int divide(CUstream_st* stream, float* values, float divisor, std::size_t count);
int subtract_from(CUstream_st* stream, const float* average, float* values, std::size_t count);

}  // namespace cohive::cuda::kernels
