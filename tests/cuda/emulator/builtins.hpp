// Included before kernels.cu where it is compiled for the processor: CUDA's words and functions in plain C++.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "driver.hpp"
#include "emulator.hpp"

#define COHIVE_CUDA_EMULATED_KERNELS
#undef __device__
#undef __global__
#undef __shared__
#define __device__
#define __global__
// All blocks share it, for they run one after another; it is overwritten before each. In front of each variable lies a
// zone that no kernel may touch: an access beyond the end of the variable before it is seen there.
#define COHIVE_JOINED_(word, number) word##number
#define COHIVE_JOINED(word, number) COHIVE_JOINED_(word, number)
#define COHIVE_SHARED(number)                                                                           \
  static __attribute__((section("cohive_shared"), used)) std::uint8_t COHIVE_JOINED(                    \
      zone_, number)[::cohive::cuda::emulated::kSharedZone];                                            \
  static __attribute__((section("cohive_zones"), used)) std::uint8_t* COHIVE_JOINED(zone_at_, number) = \
      COHIVE_JOINED(zone_, number);                                                                     \
  static __attribute__((section("cohive_shared")))
#define __shared__ COHIVE_SHARED(__COUNTER__)

#define threadIdx (::cohive::cuda::emulated::thread_index())
#define blockIdx (::cohive::cuda::emulated::block_index())
#define blockDim (::cohive::cuda::emulated::block_size())
#define gridDim (::cohive::cuda::emulated::grid_size())

inline void __syncthreads() {
  ::cohive::cuda::emulated::barrier();
}

inline std::uint32_t __float_as_uint(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
// Compiled with -ffp-contract=off: nothing is fused.
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float value) {
  return std::sqrt(value);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dsub_rn(double a, double b) {
  return a - b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline double __dsqrt_rn(double value) {
  return std::sqrt(value);
}
inline float __double2float_rn(double value) {
  return static_cast<float>(value);
}
inline int __float2int_rn(float value) {
  return static_cast<int>(std::nearbyint(value));
}
inline float __int2float_rn(int value) {
  return static_cast<float>(value);
}
inline std::uint32_t __float2uint_rn(float value) {
  return static_cast<std::uint32_t>(std::nearbyint(value));
}
inline float __uint2float_rn(std::uint32_t value) {
  return static_cast<float>(value);
}

inline std::uint32_t atomicMax(std::uint32_t* address, std::uint32_t value) {
  ::cohive::cuda::emulated::note_atomic(address, sizeof *address);
  return ::cohive::cuda::emulated::update(address, [value](std::uint32_t old) { return old < value ? value : old; });
}
inline float atomicAdd(float* address, float value) {
  ::cohive::cuda::emulated::note_atomic(address, sizeof *address);
  return ::cohive::cuda::emulated::update(address, [value](float old) { return old + value; });
}
inline std::uint32_t atomicAdd(std::uint32_t* address, std::uint32_t value) {
  ::cohive::cuda::emulated::note_atomic(address, sizeof *address);
  return ::cohive::cuda::emulated::update(address, [value](std::uint32_t old) { return old + value; });
}
inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t value, int mask) {
  return ::cohive::cuda::emulated::exchange(value, threadIdx.x % 32 ^ static_cast<unsigned>(mask));
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  const auto lane = threadIdx.x % 32 ^ static_cast<unsigned>(mask);
  return __uint_as_float(::cohive::cuda::emulated::exchange(__float_as_uint(value), lane));
}

// One access of several numbers; plain copies would be seen as one of each.
template <class T>
T __ldca(const T* address) {
  return ::cohive::cuda::emulated::read(address);
}
template <class T>
void __stwb(T* address, T value) {
  ::cohive::cuda::emulated::write(address, value);
}
