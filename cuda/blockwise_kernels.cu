// Encoders that look at no more than a block of values at once: floats, halves, blockwise8 and block4.
#include "codec_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

constexpr std::uint32_t kNaN = 0xffc00000;

struct ToFloats {
  Input in;
  float* out;
  __device__ void operator()(std::size_t i) const {
    const float value = value_at(in, i);
    look_at(in, value);
    out[i] = value;
  }
  __device__ void four(std::size_t i) const {
    const Four values = four_at(in, i);
    look_at(in, values);
    store_four(out + i, values);
  }
};
struct ToHalf {
  Input in;
  std::uint16_t* out;
  __device__ void operator()(std::size_t i) const {
    const float value = value_at(in, i);
    look_at(in, value);
    out[i] = clamped_half(value);
  }
  __device__ void four(std::size_t i) const {
    const Four values = four_at(in, i);
    look_at(in, values);
    FourHalves halves;
    for (int k = 0; k < 4; ++k) halves.of[k] = clamped_half(values.of[k]);
    store_four(out + i, halves);
  }
};

/// Magnitudes order as their bits do; NaN and infinity are above all numbers.
__device__ std::uint32_t largest_of(const Four& values) {
  std::uint32_t most = 0;
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t magnitude = __float_as_uint(values.of[k]) & kMagnitude;
    if (magnitude > most) most = magnitude;
  }
  return most;
}

// ---- blockwise8

/// Where the parts of a blockwise8 buffer lie: number of scales, number of entries, scales, code book, indices.
struct BlockwiseOut {
  std::uint32_t* head;
  float* scales;
  float* book;
  std::uint8_t* indices;
};

__device__ std::uint32_t bin_of(const float* tree, float value) {
  std::uint32_t at = 1;
  for (int level = 0; level < 8; ++level) at = 2 * at + (tree[at] < value ? 1u : 0u);
  return at & 0xff;
}

/// One block of threads for each scale, which reads its values once: sixteen for each thread.
__global__ void encode_blockwise(BlockwiseTables tables, Input in, bool fours, BlockwiseOut out, std::size_t count,
                                 std::size_t scales) {
  static_assert(kThreads == kEntries, "each thread takes one entry of the tables");
  constexpr unsigned kFours = kScaleBlock / kThreads / 4;
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
  Four values[kFours];
  std::uint32_t mine = 0;
#pragma unroll  // or the values would not stay in registers
  for (unsigned j = 0; j < kFours; ++j) {
    values[j] = four_before(in, first + 4 * (j * kThreads + thread), end, fours);
    look_at(in, values[j]);
    const std::uint32_t most = largest_of(values[j]);
    if (most > mine) mine = most;
  }
  atomicMax(&largest, mine);
  __syncthreads();

  const bool finite = largest < kInfinity;
  if (thread == 0 && first < count) out.scales[blockIdx.x] = __uint_as_float(finite ? largest : kNaN);
  const float divisor = finite && largest > 0 ? __uint_as_float(largest) : 1.0f;
#pragma unroll
  for (unsigned j = 0; j < kFours; ++j) {
    std::uint32_t bins = 0;
    for (int k = 0; k < 4; ++k) bins |= bin_of(tree, __fdiv_rn(values[j].of[k], divisor)) << 8 * k;
    store_bytes_before(out.indices, first + 4 * (j * kThreads + thread), end, bins);
  }
}

// ---- block4

/// As many bits of a bfloat16 as hold a magnitude, rounded up, so that no value exceeds its scale; infinity only for
/// what is not finite.
__device__ std::uint32_t scale4_bits(std::uint32_t largest) {
  if (largest >= kInfinity) return 0x7fc0;
  const std::uint32_t bits = (largest + 0xffff) >> 16;
  return bits < 0x7f7f ? bits : 0x7f7f;
}

/// Sixteen neighbouring threads have the four values each of one scale. \param left  null: nobody asks for it
__global__ void encode_block4(Input in, bool fours, float* left, bool left_fours, std::uint16_t* scales,
                              std::uint8_t* levels, std::size_t count) {
  constexpr unsigned kSharers = kScaled4 / 4;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads * 4;
  for (std::size_t base = static_cast<std::size_t>(blockIdx.x) * kThreads * 4; base < count; base += stride) {
    const std::size_t i = base + 4 * threadIdx.x;
    const Four values = four_before(in, i, count, fours);
    look_at(in, values);
    std::uint32_t largest = largest_of(values);
    for (unsigned other = kSharers / 2; other > 0; other /= 2) {
      const std::uint32_t theirs = __shfl_xor_sync(0xffffffff, largest, static_cast<int>(other));
      if (theirs > largest) largest = theirs;
    }
    if (i >= count) continue;
    std::uint32_t bits = scale4_bits(largest);
    float inverse = __fdiv_rn(7.0f, float_from_bfloat(static_cast<std::uint16_t>(bits)));
    if (__float_as_uint(inverse) == kInfinity) inverse = 0, bits = 0;  // hardly more than nothing
    if (i % kScaled4 == 0) scales[i / kScaled4] = static_cast<std::uint16_t>(bits);
    std::uint32_t coded = 0;
    Four lost;
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t level = static_cast<std::uint32_t>(quantized(__fmul_rn(values.of[k], inverse)) + 8) & 15;
      coded |= level << 4 * k;
      if (left)
        lost.of[k] =
            multiply_add(values.of[k], -1, level4_value(float_from_bfloat(static_cast<std::uint16_t>(bits)), level));
    }
    if (i + 2 < count)
      *reinterpret_cast<std::uint16_t*>(levels + i / 2) = static_cast<std::uint16_t>(coded);
    else
      levels[i / 2] = static_cast<std::uint8_t>(coded);
    if (left) store_before(left, i, count, left_fours, lost);
  }
}

}  // namespace

int to_floats(CUstream_st* stream, const Input& in, float* out, std::size_t count) {
  return launch_fours("to_floats", stream, count, has_fours(in) && is_aligned(out, 16), ToFloats{in, out});
}

int to_half(CUstream_st* stream, const Input& in, std::uint16_t* out, std::size_t count) {
  return launch_fours("to_half", stream, count, has_fours(in) && is_aligned(out, 8), ToHalf{in, out});
}

int to_blockwise(CUstream_st* stream, const BlockwiseTables& tables, const Input& in, std::uint8_t* out,
                 std::size_t count) {
  const std::size_t scales = (count + kScaleBlock - 1) / kScaleBlock;
  if (scales > 0x7fffffff) return cudaErrorInvalidValue;
  const BlockwiseOut parts{reinterpret_cast<std::uint32_t*>(out), reinterpret_cast<float*>(out + 16),
                           reinterpret_cast<float*>(out + 16 + scales * 4), out + 16 + scales * 4 + kEntries * 4};
  const auto blocks = static_cast<unsigned>(scales > 0 ? scales : 1);  // an empty tensor still has a code book
  return launch("encode_blockwise", encode_blockwise, blocks, kThreads, stream, tables, in, has_fours(in), parts, count,
                scales);
}

int to_block4(CUstream_st* stream, const Input& in, float* left, std::uint8_t* out, std::size_t count) {
  if (count == 0) return cudaSuccess;
  const std::size_t scales = (count + kScaled4 - 1) / kScaled4, wanted = (count + kThreads * 4 - 1) / (kThreads * 4);
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  return launch("encode_block4", encode_block4, blocks, kThreads, stream, in, has_fours(in), left, is_aligned(left, 16),
                reinterpret_cast<std::uint16_t*>(out), out + scales * 2, count);
}

}  // namespace cohive::cuda::kernels
