#include "model_kernels.hpp"

#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

struct ApplyAverage {
  const float* average;
  float alpha;
  Applied to;
  __device__ float moved(float mean, float own) const {
    const float change = __fsub_rn(mean, own);
    return to.differences ? __fmul_rn(alpha, change) : multiply_add(own, alpha, change);
  }
  __device__ void operator()(std::size_t i) const { to.out[i] = moved(average[i], to.own[i]); }
  __device__ void four(std::size_t i) const {
    const Four means = load_four(average + i);
    Four values = load_four(to.own + i);
    for (int k = 0; k < 4; ++k) values.of[k] = moved(means.of[k], values.of[k]);
    store_four(to.out + i, values);
  }
};

struct ApplyDifference {
  const float* difference;
  float alpha;
  Applied to;
  __device__ void operator()(std::size_t i) const {
    to.out[i] = multiply_add(to.differences ? 0.0f : to.own[i], alpha, difference[i]);
  }
  __device__ void four(std::size_t i) const {
    const Four changes = load_four(difference + i);
    Four values{};
    if (!to.differences) values = load_four(to.own + i);
    for (int k = 0; k < 4; ++k) values.of[k] = multiply_add(values.of[k], alpha, changes.of[k]);
    store_four(to.out + i, values);
  }
};

struct Accumulate {
  Input gradient;
  float factor;
  bool first;
  float* sum;
  __device__ float added(float before, float value) const {
    const float weighted = is_finite(value) ? __fmul_rn(value, factor) : 0.0f;
    return first ? weighted : __fadd_rn(before, weighted);
  }
  __device__ void operator()(std::size_t i) const {
    const float value = value_at(gradient, i);
    look_at(gradient, value);
    sum[i] = added(first ? 0 : sum[i], value);
  }
  __device__ void four(std::size_t i) const {
    const Four values = four_at(gradient, i);
    look_at(gradient, values);
    Four sums{};
    if (!first) sums = load_four(sum + i);
    for (int k = 0; k < 4; ++k) sums.of[k] = added(sums.of[k], values.of[k]);
    store_four(sum + i, sums);
  }
};

struct Scale {
  float* values;
  float factor;
  __device__ void operator()(std::size_t i) const { values[i] = __fmul_rn(values[i], factor); }
  __device__ void four(std::size_t i) const {
    Four all = load_four(values + i);
    for (int k = 0; k < 4; ++k) all.of[k] = __fmul_rn(all.of[k], factor);
    store_four(values + i, all);
  }
};

bool all_aligned(const float* values, const Applied& to) {
  return is_aligned(values, 16) && is_aligned(to.own, 16) && is_aligned(to.out, 16);
}

}  // namespace

int apply_average(CUstream_st* stream, const float* average, float alpha, const Applied& to, std::size_t count) {
  // Without the rounding of a sum: all members hold the same.
  if (alpha == 1 && !to.differences) return from_stored(stream, average, Stored::floats, {to.out}, count);
  return launch_fours("apply_average", stream, count, all_aligned(average, to), ApplyAverage{average, alpha, to});
}
int apply_difference(CUstream_st* stream, const float* difference, float alpha, const Applied& to, std::size_t count) {
  return launch_fours("apply_difference", stream, count, all_aligned(difference, to),
                      ApplyDifference{difference, alpha, to});
}
int accumulate(CUstream_st* stream, const Input& gradient, float factor, bool first, float* sum, std::size_t count) {
  return launch_fours("accumulate", stream, count, has_fours(gradient) && is_aligned(sum, 16),
                      Accumulate{gradient, factor, first, sum});
}
int scale(CUstream_st* stream, float* values, float factor, std::size_t count) {
  return launch_fours("scale", stream, count, is_aligned(values, 16), Scale{values, factor});
}

}  // namespace cohive::cuda::kernels
