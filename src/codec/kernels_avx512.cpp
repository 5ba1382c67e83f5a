// AVX-512 (F, BW, DQ, VL): sixteen floats at a time, the rest of an array by masks.
#include "kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

// Only what follows may use these instructions. They include fused multiply-add, which rounds once where the other
// families round twice: the compiler must not make any.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#pragma GCC optimize("fp-contract=off")
#endif

namespace cohive::codec {
namespace {

struct V {
  using F = __m512;
  static constexpr std::size_t kLanes = 16;

  static __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_n(const float* p, std::size_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store_n(float* p, F x, std::size_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F load_bytes(const std::uint8_t* p) { return _mm512_loadu_ps(p); }
  static F load_bytes_n(const std::uint8_t* p, std::size_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_bytes(std::uint8_t* p, F x) { _mm512_storeu_ps(p, x); }
  static void store_bytes_n(std::uint8_t* p, F x, std::size_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F load_half(const std::uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_half_n(const std::uint8_t* p, std::size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static void store_half(std::uint8_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_half_n(std::uint8_t* p, F x, std::size_t n) {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  // The instructions return their second operand when one is NaN.
  static F min_keep(F value, F bound) { return _mm512_min_ps(bound, value); }
  static F max_keep(F value, F bound) { return _mm512_max_ps(bound, value); }
  static void store_quantized(std::uint8_t* p, F x) {
    const F bounded = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-128.0f)), _mm512_set1_ps(127.0f));
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(bounded));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_xor_si128(bytes, _mm_set1_epi8(-128)));
  }

  struct Sums {
    explicit Sums(float at) : pilot(_mm512_set1_pd(static_cast<double>(at))) {}
    void add(F x) {
      const __m512d low = _mm512_sub_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), pilot);
      const __m512d high = _mm512_sub_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)), pilot);
      sum[0] = _mm512_add_pd(sum[0], low);
      sum[1] = _mm512_add_pd(sum[1], high);
      squares[0] = _mm512_add_pd(squares[0], _mm512_mul_pd(low, low));
      squares[1] = _mm512_add_pd(squares[1], _mm512_mul_pd(high, high));
    }
    Moments total() const {
      return {_mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1])),
              _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1]))};
    }
    __m512d pilot;
    __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  };
};

#include "kernels_body.hpp"

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const Kernels kAvx512Kernels = COHIVE_CODEC_KERNELS("avx512");

}  // namespace cohive::codec
#endif
