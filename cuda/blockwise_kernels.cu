// The kernels. Bits must be those of the CPU's codecs: every operation is named with its rounding, so that the compiler
// fuses none of them, and halves are made by integer arithmetic, which keeps a NaN's bits as the processors do.
// The same source is compiled for the processor, too: see tests/cuda/emulator.
#include <cuda_runtime_api.h>

#include "arithmetic.cuh"
#include "for_each.cuh"
#include "kernels.hpp"

namespace cohive::cuda::kernels {
namespace {

constexpr std::uint32_t kNaN = 0xffc00000;

/// Clamped to +-65504; rounded to nearest even; NaN stays NaN.
__device__ std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & kMagnitude;
  if (magnitude > kInfinity) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x477fe000) return static_cast<std::uint16_t>(sign | 0x7bff);
  if (magnitude < 0x38800000) {  // below the smallest normal half: a multiple of 2^-24
    const std::uint32_t whole = __float2uint_rn(__fmul_rn(__uint_as_float(magnitude), 16777216.0f));
    return static_cast<std::uint16_t>(sign | whole);
  }
  const std::uint32_t odd = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

__device__ float float_from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0) {
    const float value = __fmul_rn(__uint2float_rn(mantissa), 5.9604644775390625e-8f);  // 2^-24: exact
    return __uint_as_float(__float_as_uint(value) | sign);
  }
  const std::uint32_t wide =
      exponent == 31 ? kInfinity | mantissa << 13 | (mantissa ? 0x400000 : 0) : (exponent + 112) << 23 | mantissa << 13;
  return __uint_as_float(sign | wide);
}

// Steps of for_each. All but the sums only write what no other thread reads.
struct ToHalf {
  const float* in;
  std::uint16_t* out;
  __device__ void operator()(std::size_t i) const { out[i] = half_from_float(in[i]); }
};
struct FromHalf {
  const std::uint16_t* in;
  float* out;
  __device__ void operator()(std::size_t i) const { out[i] = float_from_half(in[i]); }
};
struct AddHalf {
  const std::uint16_t* in;
  float weight;
  float* sum;
  __device__ void operator()(std::size_t i) const { sum[i] = multiply_add(sum[i], weight, float_from_half(in[i])); }
};
__device__ float indexed_value(const Indexed& in, std::size_t i) {
  const float scale = in.scales ? in.scales[i / kScaleBlock] : 1.0f;
  return __fmul_rn(in.book[in.indices[i]], scale);
}
struct FromIndexed {
  Indexed in;
  float* out;
  __device__ void operator()(std::size_t i) const { out[i] = indexed_value(in, i); }
};
struct AddIndexed {
  Indexed in;
  float weight;
  float* sum;
  __device__ void operator()(std::size_t i) const { sum[i] = multiply_add(sum[i], weight, indexed_value(in, i)); }
};
struct FindNonFinite {
  const float* in;
  std::uint32_t* found;
  __device__ void operator()(std::size_t i) const {
    if (!is_finite(in[i])) atomicMax(found, 1u);
  }
};
struct Add {
  const float* in;
  float weight;
  float* sum;
  __device__ void operator()(std::size_t i) const { sum[i] = multiply_add(sum[i], weight, in[i]); }
};
struct Divide {
  float* values;
  float divisor;
  __device__ void operator()(std::size_t i) const { values[i] = __fdiv_rn(values[i], divisor); }
};
struct SubtractFrom {
  const float* average;
  float* values;
  __device__ void operator()(std::size_t i) const { values[i] = __fsub_rn(average[i], values[i]); }
};

/// Where the parts of a blockwise8 buffer lie: number of scales, number of entries, scales, code book, indices.
struct BlockwiseOut {
  std::uint32_t* head;
  float* scales;
  float* book;
  std::uint8_t* indices;
};

/// One block of threads for each scale.
__global__ void encode_blockwise(BlockwiseTables tables, const float* in, BlockwiseOut out, std::size_t count,
                                 std::size_t scales) {
  static_assert(kThreads == kEntries, "each thread takes one entry of the tables");
  __shared__ float tree[kEntries];
  __shared__ std::uint32_t largest;
  const unsigned thread = threadIdx.x;
  tree[thread] = tables.tree[thread];
  if (thread == 0) largest = 0;
  if (blockIdx.x == 0) {
    out.book[thread] = tables.book[thread];
    if (thread == 0) {  // two little-endian int64
      out.head[0] = static_cast<std::uint32_t>(scales);
      out.head[1] = static_cast<std::uint32_t>(scales >> 32);
      out.head[2] = kEntries;
      out.head[3] = 0;
    }
  }
  __syncthreads();

  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kScaleBlock;
  const std::size_t end = first + kScaleBlock < count ? first + kScaleBlock : count;
  // Magnitudes order as their bits do; NaN and infinity are above all numbers.
  std::uint32_t mine = 0;
  for (std::size_t i = first + thread; i < end; i += kThreads) {
    const std::uint32_t magnitude = __float_as_uint(in[i]) & kMagnitude;
    if (magnitude > mine) mine = magnitude;
  }
  atomicMax(&largest, mine);
  __syncthreads();

  const bool finite = largest < kInfinity;
  if (thread == 0 && first < count) out.scales[blockIdx.x] = __uint_as_float(finite ? largest : kNaN);
  const float divisor = finite && largest > 0 ? __uint_as_float(largest) : 1.0f;
  for (std::size_t i = first + thread; i < end; i += kThreads) {
    const float scaled = __fdiv_rn(in[i], divisor);
    unsigned at = 1;
    for (int level = 0; level < 8; ++level) at = 2 * at + (tree[at] < scaled ? 1u : 0u);
    out.indices[i] = static_cast<std::uint8_t>(at);
  }
}

}  // namespace

int to_half(CUstream_st* stream, const float* in, std::uint16_t* out, std::size_t count) {
  return launch_each("to_half", stream, count, ToHalf{in, out});
}

int to_blockwise(CUstream_st* stream, const BlockwiseTables& tables, const float* in, std::uint8_t* out,
                 std::size_t count) {
  const std::size_t scales = (count + kScaleBlock - 1) / kScaleBlock;
  if (scales > 0x7fffffff) return cudaErrorInvalidValue;
  const BlockwiseOut parts{reinterpret_cast<std::uint32_t*>(out), reinterpret_cast<float*>(out + 16),
                           reinterpret_cast<float*>(out + 16 + scales * 4), out + 16 + scales * 4 + kEntries * 4};
  const auto blocks = static_cast<unsigned>(scales > 0 ? scales : 1);  // an empty tensor still has a code book
  return launch("encode_blockwise", encode_blockwise, blocks, kThreads, stream, tables, in, parts, count, scales);
}

int from_half(CUstream_st* stream, const std::uint16_t* in, float* out, std::size_t count) {
  return launch_each("from_half", stream, count, FromHalf{in, out});
}
int add_half(CUstream_st* stream, const std::uint16_t* in, float weight, float* sum, std::size_t count) {
  return launch_each("add_half", stream, count, AddHalf{in, weight, sum});
}
int from_indexed(CUstream_st* stream, const Indexed& in, float* out, std::size_t count) {
  return launch_each("from_indexed", stream, count, FromIndexed{in, out});
}
int add_indexed(CUstream_st* stream, const Indexed& in, float weight, float* sum, std::size_t count) {
  return launch_each("add_indexed", stream, count, AddIndexed{in, weight, sum});
}
int find_non_finite(CUstream_st* stream, const float* in, std::uint32_t* found, std::size_t count) {
  return launch_each("find_non_finite", stream, count, FindNonFinite{in, found});
}
int add(CUstream_st* stream, const float* in, float weight, float* sum, std::size_t count) {
  return launch_each("add", stream, count, Add{in, weight, sum});
}
int divide(CUstream_st* stream, float* values, float divisor, std::size_t count) {
  return launch_each("divide", stream, count, Divide{values, divisor});
}
int subtract_from(CUstream_st* stream, const float* average, float* values, std::size_t count) {
  return launch_each("subtract_from", stream, count, SubtractFrom{average, values});
}

}  // namespace cohive::cuda::kernels
