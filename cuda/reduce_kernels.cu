#include "kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

// The steps on two arrays: values = change(values, other).
struct AddTo {
  float weight;
  __device__ float operator()(float value, float other) const { return multiply_add(value, weight, other); }
};
struct DivideBy {
  float divisor;
  __device__ float operator()(float value, float) const { return __fdiv_rn(value, divisor); }
};
struct SubtractFrom {
  __device__ float operator()(float value, float other) const { return __fsub_rn(other, value); }
};
template <class Change>
struct Changed {
  Change change;
  const float* other;
  float* values;
  __device__ void operator()(std::size_t i) const { values[i] = change(values[i], other[i]); }
  __device__ void four(std::size_t i) const {
    Four x = load_four(values + i);
    const Four y = load_four(other + i);
    for (int k = 0; k < 4; ++k) x.of[k] = change(x.of[k], y.of[k]);
    store_four(values + i, x);
  }
};

template <class Change>
int launch_change(const char* name, CUstream_st* stream, Change change, const float* other, float* values,
                  std::size_t count) {
  const bool fours = is_aligned(other, 16) && is_aligned(values, 16);
  return launch_fours(name, stream, count, fours, Changed<Change>{change, other, values});
}

}  // namespace

int add(CUstream_st* stream, const float* in, float weight, float* sum, std::size_t count) {
  return launch_change("add", stream, AddTo{weight}, in, sum, count);
}
int divide(CUstream_st* stream, float* values, float divisor, std::size_t count) {
  return launch_change("divide", stream, DivideBy{divisor}, values, values, count);
}
int subtract_from(CUstream_st* stream, const float* average, float* values, std::size_t count) {
  return launch_change("subtract_from", stream, SubtractFrom{}, average, values, count);
}

}  // namespace cohive::cuda::kernels
