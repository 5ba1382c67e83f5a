// Plain C++, for every processor, and what the others are tested against.
#include <cmath>
#include <cstring>

#include "half.hpp"
#include "kernels.hpp"

namespace cohive::codec {
namespace {

struct V {
  using F = float;
  static constexpr std::size_t kLanes = 1;

  static F set(float x) { return x; }
  static F load(const float* p) { return *p; }
  static F load_n(const float* p, std::size_t) { return *p; }
  static void store(float* p, F x) { *p = x; }
  static void store_n(float* p, F x, std::size_t) { *p = x; }
  static F load_bytes(const std::uint8_t* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
  static F load_bytes_n(const std::uint8_t* p, std::size_t) { return load_bytes(p); }
  static void store_bytes(std::uint8_t* p, F x) { std::memcpy(p, &x, 4); }
  static void store_bytes_n(std::uint8_t* p, F x, std::size_t) { store_bytes(p, x); }
  static F load_half(const std::uint8_t* p) {
    std::uint16_t half;
    std::memcpy(&half, p, 2);
    return float_from_half(half);
  }
  static F load_half_n(const std::uint8_t* p, std::size_t) { return load_half(p); }
  static void store_half(std::uint8_t* p, F x) {
    const std::uint16_t half = half_from_float(x);
    std::memcpy(p, &half, 2);
  }
  static void store_half_n(std::uint8_t* p, F x, std::size_t) { store_half(p, x); }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F abs(F a) { return std::fabs(a); }
  static F min_keep(F value, F bound) { return value > bound ? bound : value; }
  static F max_keep(F value, F bound) { return value < bound ? bound : value; }
  static void store_quantized(std::uint8_t* p, F x) {
    const float low = x > -128.0f ? x : -128.0f;  // NaN ends here too
    *p = static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(low < 127.0f ? low : 127.0f)) + 128);
  }

  static unsigned reached(F x, F bound) { return x >= bound ? 1 : 0; }
  static void put_places(std::uint16_t* to, std::size_t first, unsigned) { *to = static_cast<std::uint16_t>(first); }
  struct Counter {
    void add(F x, F bound) { found += reached(x, bound); }
    std::size_t total() const { return found; }
    std::size_t found = 0;
  };

  struct Tree {
    explicit Tree(const float* t) : tree(t) {}
    void store_bins(std::uint8_t* p, F x) const {
      std::size_t at = 1;
      for (int level = 0; level < 8; ++level) at = 2 * at + (tree[at] < x ? 1 : 0);
      *p = static_cast<std::uint8_t>(at);
    }
    const float* tree;
  };

  struct Sums {
    explicit Sums(float at) : pilot(static_cast<double>(at)) {}
    void add(const float* p) {
      for (std::size_t lane = 0; lane < 16; ++lane) {
        const double d = static_cast<double>(p[lane]) - pilot;
        sum[lane] += d;
        squares[lane] += d * d;
      }
    }
    void store(double* sums, double* of_squares) const {
      std::memcpy(sums, sum, sizeof sum);
      std::memcpy(of_squares, squares, sizeof squares);
    }
    double pilot, sum[16] = {}, squares[16] = {};
  };
};

#include "kernels_body.hpp"

}  // namespace

const Kernels kScalarKernels = COHIVE_CODEC_KERNELS("scalar");

}  // namespace cohive::codec
