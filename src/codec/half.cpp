#include "half.hpp"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cohive::codec {

namespace {
constexpr float kMaxHalf = 65504.0f;

float clamped(float value) { return value > kMaxHalf ? kMaxHalf : value < -kMaxHalf ? -kMaxHalf : value; }

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void to_half_f16c(const float* in, std::uint16_t* out, std::size_t count) {
  const __m256 low = _mm256_set1_ps(-kMaxHalf), high = _mm256_set1_ps(kMaxHalf);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    // The value is the second operand: min and max then pass a NaN through.
    const __m256 value = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(in + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) out[i] = to_half_scalar(in[i]);
}

__attribute__((target("avx,f16c"))) void from_half_f16c(const std::uint16_t* in, float* out, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  for (; i < count; ++i) out[i] = from_half_scalar(in[i]);
}

const bool has_f16c = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
#endif

}  // namespace

std::uint16_t to_half_scalar(float input) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(clamped(input));
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude < 0x38800000) {  // below the smallest normal half: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1.0p24f;
    const auto whole = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    const std::uint32_t rounded = whole + (rest > 0.5f || (rest == 0.5f && (whole & 1)) ? 1 : 0);
    return static_cast<std::uint16_t>(sign | rounded);
  }
  const std::uint32_t odd = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

float from_half_scalar(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0) : (exponent + 112) << 23 | mantissa << 13;
  return std::bit_cast<float>(sign | wide);
}

void to_half(const float* in, std::uint16_t* out, std::size_t count) {
#if defined(__x86_64__)
  if (has_f16c) return to_half_f16c(in, out, count);
#endif
  std::transform(in, in + count, out, to_half_scalar);
}

void from_half(const std::uint16_t* in, float* out, std::size_t count) {
#if defined(__x86_64__)
  if (has_f16c) return from_half_f16c(in, out, count);
#endif
  std::transform(in, in + count, out, from_half_scalar);
}

}  // namespace cohive::codec
