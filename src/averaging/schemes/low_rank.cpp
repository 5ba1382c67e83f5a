#include "low_rank.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/detail/wide.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // wide vectors stay within this file
#endif

// The loops are written once for vectors V, and compiled for each family of processors below. They may fuse
// multiplications with additions: results differ in rounding from one family to the next.
#define COHIVE_INLINED [[gnu::always_inline]] inline

namespace cohive::averaging {
namespace {

template <class V>
constexpr std::size_t kLanes = sizeof(V) / sizeof(float);
constexpr std::size_t kRows = 4;        // of a tile that are in registers at once
constexpr std::size_t kTileOfQ = 8192;  // values: it stays in the first-level cache while rows go by

/// Some columns of a block of rows. In P, and in Q, which has the same stride, pointers are to what belongs to the
/// tile.
struct Tile {
  std::size_t rows = 0, columns = 0, stride = 0;
};

template <class V>
COHIVE_INLINED void load(const float* from, V& to) {
  __builtin_memcpy(&to, from, sizeof to);
}
template <class V>
COHIVE_INLINED void store(float* to, const V& from) {
  __builtin_memcpy(to, &from, sizeof from);
}
template <class V>
COHIVE_INLINED float sum_of(const V& lanes) {
  float sum = 0;
  for (std::size_t i = 0; i < kLanes<V>; ++i) sum += lanes[i];
  return sum;
}

/// p[row][c] += a[row] . q[c] for R rows of the tile and C rows of q.
template <class V, std::size_t R, std::size_t C>
COHIVE_INLINED void project_rows(const float* a, const Tile& tile, const float* q, float* p, std::size_t rank) {
  V sums[R][C] = {};
  std::size_t j = 0;
  for (; j + kLanes<V> <= tile.columns; j += kLanes<V>) {
    V values[R], factor;
    for (std::size_t r = 0; r < R; ++r) load(a + r * tile.stride + j, values[r]);
    for (std::size_t c = 0; c < C; ++c) {
      load(q + c * tile.stride + j, factor);
      for (std::size_t r = 0; r < R; ++r) sums[r][c] += values[r] * factor;
    }
  }
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t c = 0; c < C; ++c) {
      float sum = sum_of(sums[r][c]);
      for (std::size_t k = j; k < tile.columns; ++k) sum += a[r * tile.stride + k] * q[c * tile.stride + k];
      p[r * rank + c] += sum;
    }
  }
}

template <class V, std::size_t R>
COHIVE_INLINED void project_all(const float* a, const Tile& tile, const float* q, float* p, std::size_t rank) {
  std::size_t c = 0;
  for (; c + 2 <= rank; c += 2) project_rows<V, R, 2>(a, tile, q + c * tile.stride, p + c, rank);
  if (c < rank) project_rows<V, R, 1>(a, tile, q + c * tile.stride, p + c, rank);
}

template <class V>
COHIVE_INLINED void project(const float* a, const Tile& tile, const float* q, float* p, std::size_t rank) {
  std::size_t r = 0;
  for (; r + kRows <= tile.rows; r += kRows) project_all<V, kRows>(a + r * tile.stride, tile, q, p + r * rank, rank);
  for (; r < tile.rows; ++r) project_all<V, 1>(a + r * tile.stride, tile, q, p + r * rank, rank);
}

/// q[c] += sum over R rows of p[row][c] * a[row]
template <class V, std::size_t R>
COHIVE_INLINED void gather_rows(const float* a, const Tile& tile, const float* p, float* q, std::size_t rank) {
  std::size_t j = 0;
  for (; j + kLanes<V> <= tile.columns; j += kLanes<V>) {
    V values[R];
    for (std::size_t r = 0; r < R; ++r) load(a + r * tile.stride + j, values[r]);
    for (std::size_t c = 0; c < rank; ++c) {
      V sum;
      load(q + c * tile.stride + j, sum);
      for (std::size_t r = 0; r < R; ++r) sum += values[r] * p[r * rank + c];
      store(q + c * tile.stride + j, sum);
    }
  }
  for (; j < tile.columns; ++j)
    for (std::size_t c = 0; c < rank; ++c)
      for (std::size_t r = 0; r < R; ++r) q[c * tile.stride + j] += a[r * tile.stride + j] * p[r * rank + c];
}

template <class V>
COHIVE_INLINED void gather(const float* a, const Tile& tile, const float* p, float* q, std::size_t rank) {
  std::size_t r = 0;
  for (; r + kRows <= tile.rows; r += kRows) gather_rows<V, kRows>(a + r * tile.stride, tile, p + r * rank, q, rank);
  for (; r < tile.rows; ++r) gather_rows<V, 1>(a + r * tile.stride, tile, p + r * rank, q, rank);
}

/// a[row] = sum over c of p[row][c] * q[c]
template <class V, std::size_t R>
COHIVE_INLINED void expand_rows(float* a, const Tile& tile, const float* p, const float* q, std::size_t rank) {
  std::size_t j = 0;
  for (; j + kLanes<V> <= tile.columns; j += kLanes<V>) {
    V sums[R] = {}, factor;
    for (std::size_t c = 0; c < rank; ++c) {
      load(q + c * tile.stride + j, factor);
      for (std::size_t r = 0; r < R; ++r) sums[r] += factor * p[r * rank + c];
    }
    for (std::size_t r = 0; r < R; ++r) store(a + r * tile.stride + j, sums[r]);
  }
  for (; j < tile.columns; ++j) {
    for (std::size_t r = 0; r < R; ++r) {
      float sum = 0;
      for (std::size_t c = 0; c < rank; ++c) sum += p[r * rank + c] * q[c * tile.stride + j];
      a[r * tile.stride + j] = sum;
    }
  }
}

template <class V>
COHIVE_INLINED void expand(float* a, const Tile& tile, const float* p, const float* q, std::size_t rank) {
  std::size_t r = 0;
  for (; r + kRows <= tile.rows; r += kRows) expand_rows<V, kRows>(a + r * tile.stride, tile, p + r * rank, q, rank);
  for (; r < tile.rows; ++r) expand_rows<V, 1>(a + r * tile.stride, tile, p + r * rank, q, rank);
}

template <class V>
COHIVE_INLINED float dot(const float* a, const float* b, std::size_t count) {
  V sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes<V> <= count; i += 4 * kLanes<V>) {
    for (std::size_t k = 0; k < 4; ++k) {
      V x, y;
      load(a + i + k * kLanes<V>, x);
      load(b + i + k * kLanes<V>, y);
      sums[k] += x * y;
    }
  }
  const V both = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float sum = sum_of(both);
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// y += factor * x
template <class V>
COHIVE_INLINED void add_scaled(const float* x, float factor, float* y, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes<V> <= count; i += kLanes<V>) {
    V from, to;
    load(x + i, from);
    load(y + i, to);
    to += from * factor;
    store(y + i, to);
  }
  for (; i < count; ++i) y[i] += factor * x[i];
}

// ---- The families

struct Kernels {
  void (*project)(const float* a, const Tile& tile, const float* q, float* p, std::size_t rank);
  void (*gather)(const float* a, const Tile& tile, const float* p, float* q, std::size_t rank);
  void (*expand)(float* a, const Tile& tile, const float* p, const float* q, std::size_t rank);
  float (*dot)(const float* a, const float* b, std::size_t count);
  void (*add_scaled)(const float* x, float factor, float* y, std::size_t count);
};

/// One family: vectors of BYTES, for processors with the instructions of TARGET.
#define COHIVE_FAMILY(NAME, BYTES, TARGET)                                                                 \
  namespace NAME {                                                                                         \
  typedef float V __attribute__((vector_size(BYTES)));                                                     \
  TARGET void project_with(const float* a, const Tile& tile, const float* q, float* p, std::size_t rank) { \
    project<V>(a, tile, q, p, rank);                                                                       \
  }                                                                                                        \
  TARGET void gather_with(const float* a, const Tile& tile, const float* p, float* q, std::size_t rank) {  \
    gather<V>(a, tile, p, q, rank);                                                                        \
  }                                                                                                        \
  TARGET void expand_with(float* a, const Tile& tile, const float* p, const float* q, std::size_t rank) {  \
    expand<V>(a, tile, p, q, rank);                                                                        \
  }                                                                                                        \
  TARGET float dot_with(const float* a, const float* b, std::size_t count) {                               \
    return dot<V>(a, b, count);                                                                            \
  }                                                                                                        \
  TARGET void add_scaled_with(const float* x, float factor, float* y, std::size_t count) {                 \
    add_scaled<V>(x, factor, y, count);                                                                    \
  }                                                                                                        \
  constexpr Kernels kKernels{project_with, gather_with, expand_with, dot_with, add_scaled_with};           \
  }

COHIVE_FAMILY(baseline, 16, )
#if defined(__x86_64__)
COHIVE_FAMILY(avx2, 32, __attribute__((target("avx2,fma"))))
COHIVE_FAMILY(avx512, 64, __attribute__((target("avx512f"))))
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels& fastest = __builtin_cpu_supports("avx512f") ? avx512::kKernels
                                  : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                                      ? avx2::kKernels
                                      : baseline::kKernels;
  return fastest;
#else
  return baseline::kKernels;
#endif
}

COHIVE_WIDE void divide(float* x, float divisor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) x[i] /= divisor;
}
COHIVE_WIDE void add(float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] += b[i];
}
COHIVE_WIDE void subtract(float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] -= b[i];
}

}  // namespace

MatrixShape matrix_of(const codec::Shape& shape) {
  std::vector<std::size_t> dims(shape.begin(), shape.end());
  while (dims.size() > 2) {
    std::size_t smallest = 0;
    for (std::size_t i = 1; i + 1 < dims.size(); ++i)
      if (dims[i] * dims[i + 1] < dims[smallest] * dims[smallest + 1]) smallest = i;
    dims[smallest] *= dims[smallest + 1];
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(smallest) + 1);
  }
  return {dims.at(0), dims.at(1)};
}

namespace {

/// step(tile, first column) for the tiles of a block.
template <class Step>
void for_tiles(std::size_t rows, std::size_t columns, std::size_t rank, Step step) {
  const std::size_t width = std::max<std::size_t>(64, kTileOfQ / rank / 16 * 16);
  for (std::size_t first = 0; first < columns; first += width)
    step(Tile{rows, std::min(width, columns - first), columns}, first);
}

}  // namespace

void project(std::span<const float> block, FactorQ<const float> q, std::span<float> p) {
  std::ranges::fill(p, 0.0f);
  for_tiles(p.size() / q.rank, q.columns, q.rank, [&](const Tile& tile, std::size_t first) {
    kernels().project(block.data() + first, tile, q.values.data() + first, p.data(), q.rank);
  });
}
void gather(std::span<const float> block, std::span<const float> p, FactorQ<float> q) {
  for_tiles(p.size() / q.rank, q.columns, q.rank, [&](const Tile& tile, std::size_t first) {
    kernels().gather(block.data() + first, tile, p.data(), q.values.data() + first, q.rank);
  });
}
void expand(std::span<const float> p, FactorQ<const float> q, std::span<float> block) {
  for_tiles(p.size() / q.rank, q.columns, q.rank, [&](const Tile& tile, std::size_t first) {
    kernels().expand(block.data() + first, tile, p.data(), q.values.data() + first, q.rank);
  });
}

void add_to(std::span<float> a, std::span<const float> b) {
  add(a.data(), b.data(), a.size());
}
void subtract_from(std::span<float> a, std::span<const float> b) {
  subtract(a.data(), b.data(), a.size());
}

void transpose(std::span<const float> in, std::size_t rows, std::size_t columns, std::span<float> out) {
  constexpr std::size_t kBlock = 32;  // of rows and columns: a block of both matrices stays in the cache
  for (std::size_t r0 = 0; r0 < rows; r0 += kBlock)
    for (std::size_t c0 = 0; c0 < columns; c0 += kBlock)
      for (std::size_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
        for (std::size_t c = c0; c < std::min(c0 + kBlock, columns); ++c) out[c * rows + r] = in[r * columns + c];
}

void orthogonalise_rows(std::span<float> matrix, std::size_t rank, std::size_t length) {
  constexpr float kLeastNorm = 1e-8f;
  const Kernels& use = kernels();
  for (std::size_t i = 0; i < rank; ++i) {
    float* row = matrix.data() + i * length;
    divide(row, std::max(std::sqrt(use.dot(row, row, length)), kLeastNorm), length);
    for (std::size_t k = i + 1; k < rank; ++k) {
      float* later = matrix.data() + k * length;
      use.add_scaled(row, -use.dot(row, later, length), later, length);
    }
  }
}

}  // namespace cohive::averaging
