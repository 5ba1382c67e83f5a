// AVX2 and F16C: eight floats at a time.
#include "kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

// Only what follows may use these instructions; fused multiply-add stays out, so that all families round alike.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace cohive::codec {
namespace {

struct V {
  using F = __m256;
  static constexpr std::size_t kLanes = 8;

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_n(const float* p, std::size_t n) { return load_bytes_n(reinterpret_cast<const std::uint8_t*>(p), n); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store_n(float* p, F x, std::size_t n) { store_bytes_n(reinterpret_cast<std::uint8_t*>(p), x, n); }
  static F load_bytes(const std::uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static F load_bytes_n(const std::uint8_t* p, std::size_t n) {
    float lanes[8] = {};
    __builtin_memcpy(lanes, p, n * 4);
    return load(lanes);
  }
  static void store_bytes(std::uint8_t* p, F x) { _mm256_storeu_ps(reinterpret_cast<float*>(p), x); }
  static void store_bytes_n(std::uint8_t* p, F x, std::size_t n) {
    float lanes[8];
    store(lanes, x);
    __builtin_memcpy(p, lanes, n * 4);
  }
  static F load_half(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_half_n(const std::uint8_t* p, std::size_t n) {
    std::uint8_t lanes[16] = {};
    __builtin_memcpy(lanes, p, n * 2);
    return load_half(lanes);
  }
  static void store_half(std::uint8_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_half_n(std::uint8_t* p, F x, std::size_t n) {
    std::uint8_t lanes[16];
    store_half(lanes, x);
    __builtin_memcpy(p, lanes, n * 2);
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  // The instructions return their second operand when one is NaN.
  static F min_keep(F value, F bound) { return _mm256_min_ps(bound, value); }
  static F max_keep(F value, F bound) { return _mm256_max_ps(bound, value); }
  static void store_quantized(std::uint8_t* p, F x) {
    const F bounded = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-128.0f)), _mm256_set1_ps(127.0f));
    const __m256i whole = _mm256_cvtps_epi32(bounded);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    const __m128i bytes = _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
  }

  static unsigned reached(F x, F bound) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ)));
  }
  /// For each set of lanes their numbers, ascending.
  struct LanesOf {
    constexpr LanesOf() {
      for (unsigned set = 0; set < 256; ++set)
        for (unsigned lane = 0, at = 0; lane < 8; ++lane)
          if ((set >> lane & 1) != 0) lanes[set][at++] = static_cast<std::uint8_t>(lane);
    }
    std::uint8_t lanes[256][8] = {};
  };
  /// The places of what was reached of a vector that begins at `first`, ascending; kLanes of them may be written.
  static void put_places(std::uint16_t* to, std::size_t first, unsigned reached) {
    static constexpr LanesOf kLanesOf;
    const __m128i lanes = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanesOf.lanes[reached])));
    const __m128i places = _mm_add_epi16(lanes, _mm_set1_epi16(static_cast<short>(first)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), places);
  }
  /// A true comparison is -1.
  struct Counter {
    Counter() : found(_mm256_setzero_si256()) {}
    void add(F x, F bound) {
      found = _mm256_sub_epi32(found, _mm256_castps_si256(_mm256_cmp_ps(x, bound, _CMP_GE_OQ)));
    }
    std::size_t total() const {
      std::uint32_t lanes[8];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), found);
      std::size_t sum = 0;
      for (int k = 0; k < 8; ++k) sum += lanes[k];
      return sum;
    }
    __m256i found;
  };

  // Three levels of the tree fit in a register; the others are gathered.
  struct Tree {
    explicit Tree(const float* t) : tree(t), top(_mm256_loadu_ps(t)) {}
    void store_bins(std::uint8_t* p, F x) const {
      __m256i at = _mm256_set1_epi32(1);
      for (int level = 0; level < 3; ++level) at = below(at, _mm256_permutevar8x32_ps(top, at), x);
      for (int level = 3; level < 8; ++level) at = below(at, _mm256_i32gather_ps(tree, at, 4), x);
      const __m256i bins = _mm256_and_si256(at, _mm256_set1_epi32(0xff));
      const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(bins), _mm256_extracti128_si256(bins, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
    }
    /// 2 * at, and 1 more where the border is less than x (a true comparison is -1).
    static __m256i below(__m256i at, F border, F x) {
      const __m256i less = _mm256_castps_si256(_mm256_cmp_ps(border, x, _CMP_LT_OQ));
      return _mm256_sub_epi32(_mm256_add_epi32(at, at), less);
    }
    const float* tree;
    F top;
  };

  struct Sums {
    explicit Sums(float at) : pilot(_mm256_set1_pd(static_cast<double>(at))) {}
    void add(const float* p) {
      for (int k = 0; k < 4; ++k) {
        const __m256d x = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(p + 4 * k)), pilot);
        sum[k] = _mm256_add_pd(sum[k], x);
        squares[k] = _mm256_add_pd(squares[k], _mm256_mul_pd(x, x));
      }
    }
    void store(double* sums, double* of_squares) const {
      for (int k = 0; k < 4; ++k) {
        _mm256_storeu_pd(sums + 4 * k, sum[k]);
        _mm256_storeu_pd(of_squares + 4 * k, squares[k]);
      }
    }
    __m256d pilot;
    __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    __m256d squares[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  };
};

#include "kernels_body.hpp"

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const Kernels kAvx2Kernels = COHIVE_CODEC_KERNELS("avx2");

}  // namespace cohive::codec
#endif
