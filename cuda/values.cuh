// Reading and writing values one by one, or four at a time where memory allows it.
#pragma once

#include <cuda_runtime_api.h>

#include "codec_kernels.hpp"
#include "for_each.cuh"
#include "halves.cuh"

namespace cohive::cuda::kernels {

// Encoders that look at many values take them in tiles.
constexpr std::size_t kTile = 4096;

inline std::size_t tiles_of(std::size_t count) {
  return (count + kTile - 1) / kTile;
}

inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// ---- Four neighbours

struct Four {
  float of[4];
};
__device__ inline Four load_four(const float* from) {
  const float4 x = __ldca(reinterpret_cast<const float4*>(from));
  return {{x.x, x.y, x.z, x.w}};
}
__device__ inline void store_four(float* to, const Four& x) {
  __stwb(reinterpret_cast<float4*>(to), float4{x.of[0], x.of[1], x.of[2], x.of[3]});
}
struct FourHalves {
  std::uint16_t of[4];
};
__device__ inline FourHalves load_four(const std::uint16_t* from) {
  const uint2 x = __ldca(reinterpret_cast<const uint2*>(from));
  return {{static_cast<std::uint16_t>(x.x), static_cast<std::uint16_t>(x.x >> 16), static_cast<std::uint16_t>(x.y),
           static_cast<std::uint16_t>(x.y >> 16)}};
}
__device__ inline void store_four(std::uint16_t* to, const FourHalves& x) {
  __stwb(reinterpret_cast<uint2*>(to), uint2{x.of[0] | static_cast<std::uint32_t>(x.of[1]) << 16,
                                             x.of[2] | static_cast<std::uint32_t>(x.of[3]) << 16});
}

// ---- What is encoded

__device__ inline float stored_value(const Input& in, std::size_t i) {
  if (in.stored == Stored::floats) return static_cast<const float*>(in.values)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(in.values)[i];
  return in.stored == Stored::halves ? float_from_half(bits) : float_from_bfloat(bits);
}
__device__ inline float value_at(const Input& in, std::size_t i) {
  const float value = stored_value(in, i);
  return in.owed ? __fadd_rn(value, in.owed[i]) : value;
}

/// Of values that allow it.
__device__ inline Four four_at(const Input& in, std::size_t i) {
  Four four;
  if (in.stored == Stored::floats) {
    four = load_four(static_cast<const float*>(in.values) + i);
  } else {
    const FourHalves bits = load_four(static_cast<const std::uint16_t*>(in.values) + i);
    for (int k = 0; k < 4; ++k)
      four.of[k] = in.stored == Stored::halves ? float_from_half(bits.of[k]) : float_from_bfloat(bits.of[k]);
  }
  if (in.owed) {
    const Four owed = load_four(in.owed + i);
    for (int k = 0; k < 4; ++k) four.of[k] = __fadd_rn(four.of[k], owed.of[k]);
  }
  return four;
}
inline bool has_fours(const Input& in) {
  return is_aligned(in.values, in.stored == Stored::floats ? 16 : 8) && is_aligned(in.owed, 16);
}

/// Values from a multiple of four on, as far as `end`; 0 beyond it. \param fours  as has_fours() says
__device__ inline Four four_before(const Input& in, std::size_t i, std::size_t end, bool fours) {
  if (fours && i + 4 <= end) return four_at(in, i);
  Four four;
  for (std::size_t k = 0; k < 4; ++k) four.of[k] = i + k < end ? value_at(in, i + k) : 0;
  return four;
}
__device__ inline void store_before(float* to, std::size_t i, std::size_t end, bool fours, const Four& values) {
  if (fours && i + 4 <= end) return store_four(to + i, values);
  for (std::size_t k = 0; k < 4 && i + k < end; ++k) to[i + k] = values.of[k];
}
/// Four bytes at a multiple of four behind an address that is one.
__device__ inline void store_bytes_before(std::uint8_t* to, std::size_t i, std::size_t end, std::uint32_t bytes) {
  if (i + 4 <= end) {
    *reinterpret_cast<std::uint32_t*>(to + i) = bytes;
    return;
  }
  for (std::size_t k = 0; k < 4 && i + k < end; ++k) to[i + k] = static_cast<std::uint8_t>(bytes >> 8 * k);
}

/// In the pass of an encoder that comes to every value first.
__device__ inline void look_at(const Input& in, float value) {
  if (in.found && !is_finite(value)) atomicMax(in.found, 1u);
}
__device__ inline void look_at(const Input& in, const Four& values) {
  if (!in.found) return;
  bool finite = true;
  for (int k = 0; k < 4; ++k) finite = finite && is_finite(values.of[k]);
  if (!finite) atomicMax(in.found, 1u);
}

// ---- What is made of it

/// clamp(round_half_even(x), -128, 127); -128 for NaN.
__device__ inline int quantized(float x) {
  const float low = x > -128.0f ? x : -128.0f;
  return __float2int_rn(low < 127.0f ? low : 127.0f);
}

/// What a level of block4 stands for. No encoder uses level 0; it must not exceed the scale either.
__device__ inline float level4_value(float scale, std::uint32_t level) {
  const int signed_level = level == 0 ? -7 : static_cast<int>(level) - 8;
  return __fmul_rn(scale, __fdiv_rn(__int2float_rn(signed_level), 7.0f));
}

// ---- Kernels that look at every value by itself

/// Calls step.four(i) for every multiple of four with four values, and step(i) for the last ones.
template <class Step>
__global__ void for_each_four(std::size_t count, Step step) {
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = thread; i < count / 4; i += stride) step.four(4 * i);
  if (thread < count % 4) step(count / 4 * 4 + thread);
}

/// \param fours  whether the memory of the step allows it
template <class Step>
int launch_fours(const char* name, CUstream_st* stream, std::size_t count, bool fours, Step step) {
  if (!fours) return launch_each(name, stream, count, step);
  if (count == 0) return cudaSuccess;
  const std::size_t wanted = (count / 4 + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted == 0 ? 1 : wanted < kMostBlocks ? wanted : kMostBlocks);
  return launch(name, for_each_four<Step>, blocks, kThreads, stream, count, step);
}

}  // namespace cohive::cuda::kernels
