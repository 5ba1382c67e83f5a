// float16 and bfloat16 by integer arithmetic, which keeps a NaN's bits as the processors do.
#pragma once

#include <cstdint>

#include "arithmetic.cuh"

namespace cohive::cuda::kernels {

/// Rounded to nearest even; too large becomes infinity; NaN stays NaN.
__device__ inline std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & kMagnitude;
  if (magnitude > kInfinity) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // below the smallest normal half: a multiple of 2^-24
    const std::uint32_t whole = __float2uint_rn(__fmul_rn(__uint_as_float(magnitude), 16777216.0f));
    return static_cast<std::uint16_t>(sign | whole);
  }
  const std::uint32_t odd = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

/// The same after clamping to +-65504.
__device__ inline std::uint16_t clamped_half(float value) {
  const std::uint32_t bits = __float_as_uint(value), magnitude = bits & kMagnitude;
  if (magnitude >= 0x477fe000 && magnitude <= kInfinity)
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7bff);
  return half_from_float(value);
}

__device__ inline float float_from_half(std::uint16_t half) {
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

__device__ inline std::uint16_t bfloat_from_float(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if ((bits & kMagnitude) > kInfinity) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ inline float float_from_bfloat(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace cohive::cuda::kernels
