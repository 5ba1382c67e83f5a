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
#pragma GCC diagnostic ignored "-Wuninitialized"  // of GCC's own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
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

  static unsigned reached(F x, F bound) { return _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ); }
  /// The places of what was reached of a vector that begins at `first`, ascending; kLanes of them may be written.
  static void put_places(std::uint16_t* to, std::size_t first, unsigned reached) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), lane);
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(reached), places);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(packed));
  }
  struct Counter {
    Counter() : found(_mm512_setzero_si512()) {}
    void add(F x, F bound) {
      found = _mm512_mask_add_epi32(found, _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), found, _mm512_set1_epi32(1));
    }
    std::size_t total() const { return static_cast<std::size_t>(_mm512_reduce_add_epi32(found)); }
    __m512i found;
  };

  // The whole tree in sixteen registers. A position's low bits are its index within its level, which is all that the
  // permutations look at.
  struct Tree {
    explicit Tree(const float* tree) {
      for (int i = 0; i < 16; ++i) t[i] = _mm512_loadu_ps(tree + 16 * i);
    }
    void store_bins(std::uint8_t* p, F x) const {
      __m512i at = _mm512_set1_epi32(1);
      for (int level = 0; level < 4; ++level) at = below(at, _mm512_permutexvar_ps(at, t[0]), x);
      at = below(at, _mm512_permutexvar_ps(at, t[1]), x);
      at = below(at, _mm512_permutex2var_ps(t[2], at, t[3]), x);
      at = below(at, pick(at, 32, _mm512_permutex2var_ps(t[4], at, t[5]), _mm512_permutex2var_ps(t[6], at, t[7])), x);
      const F left = pick(at, 32, _mm512_permutex2var_ps(t[8], at, t[9]), _mm512_permutex2var_ps(t[10], at, t[11]));
      const F right = pick(at, 32, _mm512_permutex2var_ps(t[12], at, t[13]), _mm512_permutex2var_ps(t[14], at, t[15]));
      at = below(at, pick(at, 64, left, right), x);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(at));
    }
    /// `b` where the bit of the position is set, else `a`.
    static F pick(__m512i at, int bit, F a, F b) {
      return _mm512_mask_blend_ps(_mm512_test_epi32_mask(at, _mm512_set1_epi32(bit)), a, b);
    }
    /// 2 * at, and 1 more where the border is less than x.
    static __m512i below(__m512i at, F border, F x) {
      const __m512i twice = _mm512_add_epi32(at, at);
      return _mm512_mask_add_epi32(twice, _mm512_cmp_ps_mask(border, x, _CMP_LT_OQ), twice, _mm512_set1_epi32(1));
    }
    F t[16];
  };

  struct Sums {
    explicit Sums(float at) : pilot(_mm512_set1_pd(static_cast<double>(at))) {}
    void add(const float* p) {
      for (int k = 0; k < 2; ++k) {
        const __m512d x = _mm512_sub_pd(_mm512_cvtps_pd(_mm256_loadu_ps(p + 8 * k)), pilot);
        sum[k] = _mm512_add_pd(sum[k], x);
        squares[k] = _mm512_add_pd(squares[k], _mm512_mul_pd(x, x));
      }
    }
    void store(double* sums, double* of_squares) const {
      for (int k = 0; k < 2; ++k) {
        _mm512_storeu_pd(sums + 8 * k, sum[k]);
        _mm512_storeu_pd(of_squares + 8 * k, squares[k]);
      }
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
