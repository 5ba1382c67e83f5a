// Operations that are named with their rounding, so that no compiler fuses two of them: results have the bits of the
// host's.
#pragma once

#include <cstdint>

namespace cohive::cuda::kernels {

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

/// A float whose operators round one by one.
struct Rounded {
  float value;
};
__device__ inline Rounded operator+(Rounded a, Rounded b) {
  return {__fadd_rn(a.value, b.value)};
}
__device__ inline Rounded operator-(Rounded a, Rounded b) {
  return {__fsub_rn(a.value, b.value)};
}
__device__ inline Rounded operator*(Rounded a, Rounded b) {
  return {__fmul_rn(a.value, b.value)};
}
__device__ inline Rounded operator/(Rounded a, Rounded b) {
  return {__fdiv_rn(a.value, b.value)};
}
__device__ inline Rounded root(Rounded a) {
  return {__fsqrt_rn(a.value)};
}

__device__ inline float multiply_add(float sum, float weight, float value) {
  return __fadd_rn(sum, __fmul_rn(weight, value));
}
__device__ inline bool is_finite(float value) {
  return (__float_as_uint(value) & kMagnitude) < kInfinity;
}

}  // namespace cohive::cuda::kernels
