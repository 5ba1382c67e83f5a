#include "model_kernels.hpp"

#include "arithmetic.cuh"
#include "for_each.cuh"

namespace cohive::cuda::kernels {
namespace {

struct ApplyAverage {
  const float* average;
  float alpha;
  Applied to;
  __device__ void operator()(std::size_t i) const {
    if (alpha == 1 && !to.differences) {  // without the rounding of a sum: all members hold the same
      to.out[i] = average[i];
      return;
    }
    const float own = to.own[i], change = __fsub_rn(average[i], own);
    to.out[i] = to.differences ? __fmul_rn(alpha, change) : multiply_add(own, alpha, change);
  }
};
struct ApplyDifference {
  const float* difference;
  float alpha;
  Applied to;
  __device__ void operator()(std::size_t i) const {
    to.out[i] = multiply_add(to.differences ? 0.0f : to.own[i], alpha, difference[i]);
  }
};
struct Accumulate {
  const float* gradient;
  float factor;
  bool first;
  float* sum;
  std::uint32_t* found;
  __device__ void operator()(std::size_t i) const {
    const float value = gradient[i];
    const bool finite = is_finite(value);
    if (!finite) atomicMax(found, 1u);
    const float weighted = finite ? __fmul_rn(value, factor) : 0.0f;
    sum[i] = first ? weighted : __fadd_rn(sum[i], weighted);
  }
};
struct Scale {
  float* values;
  float factor;
  __device__ void operator()(std::size_t i) const { values[i] = __fmul_rn(values[i], factor); }
};

}  // namespace

int apply_average(CUstream_st* stream, const float* average, float alpha, const Applied& to, std::size_t count) {
  return launch_each("apply_average", stream, count, ApplyAverage{average, alpha, to});
}
int apply_difference(CUstream_st* stream, const float* difference, float alpha, const Applied& to, std::size_t count) {
  return launch_each("apply_difference", stream, count, ApplyDifference{difference, alpha, to});
}
int accumulate(CUstream_st* stream, const float* gradient, float factor, bool first, float* sum, std::uint32_t* found,
               std::size_t count) {
  return launch_each("accumulate", stream, count, Accumulate{gradient, factor, first, sum, found});
}
int scale(CUstream_st* stream, float* values, float factor, std::size_t count) {
  return launch_each("scale", stream, count, Scale{values, factor});
}

}  // namespace cohive::cuda::kernels
