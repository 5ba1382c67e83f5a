#include "step_kernels.hpp"

#include "arithmetic.cuh"
#include "for_each.cuh"

namespace cohive::cuda::kernels {
namespace {

using Arrays = StepArrays<float>;

/// Reads of a value's arrays.
__device__ Rounded at(const float* array, std::size_t i) {
  return {array[i]};
}

/// The gradient as a step uses it: with weight decay, where it is added to gradients.
template <class Numbers>
__device__ Rounded gradient_of(const Numbers& c, const Arrays& a, std::size_t i) {
  const Rounded g = at(a.gradient, i) * Rounded{c.factor};
  return c.decay != 0 ? g + at(a.in, i) * Rounded{c.decay} : g;
}

struct SgdStep {
  optim::SgdNumbers<float> c;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    Rounded g = gradient_of(c, a, i);
    if (c.momentum != 0) {
      const Rounded buffer = c.first ? g : at(a.state[0], i) * Rounded{c.momentum} + g * Rounded{c.fresh};
      a.state[0][i] = buffer.value;
      g = c.nesterov ? g + buffer * Rounded{c.momentum} : buffer;
    }
    a.out[i] = (at(a.in, i) + g * Rounded{c.rate}).value;
  }
};

struct AdamStep {
  optim::AdamNumbers<float> c;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    const Rounded g = gradient_of(c, a, i), p = at(a.in, i) * Rounded{c.shrink};
    const Rounded m = at(a.state[0], i) * Rounded{c.beta1} + g * Rounded{c.fresh1};
    Rounded v = at(a.state[1], i) * Rounded{c.beta2} + (g * Rounded{c.fresh2}) * g;
    a.state[0][i] = m.value;
    a.state[1][i] = v.value;
    if (c.amsgrad) {  // the larger one, NaN where either is
      const float most = a.state[2][i];
      if (v.value <= most || most != most) v.value = most;
      a.state[2][i] = v.value;
    }
    a.out[i] = (p + (m * Rounded{c.rate}) / (root(v) * Rounded{c.correction} + Rounded{c.eps})).value;
  }
};

struct RmspropStep {
  optim::RmspropNumbers<float> c;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    const Rounded g = gradient_of(c, a, i);
    Rounded v = at(a.state[0], i) * Rounded{c.alpha} + (g * Rounded{c.fresh}) * g;
    a.state[0][i] = v.value;
    if (c.centered) {
      float* const average = a.state[c.momentum > 0 ? 2 : 1];
      const Rounded mean = at(average, i) * Rounded{c.alpha} + g * Rounded{c.fresh};
      average[i] = mean.value;
      v = v - mean * mean;
    }
    const Rounded deviation = root(v) + Rounded{c.eps};
    if (c.momentum > 0) {
      const Rounded buffer = at(a.state[1], i) * Rounded{c.momentum} + g / deviation;
      a.state[1][i] = buffer.value;
      a.out[i] = (at(a.in, i) + buffer * Rounded{c.rate}).value;
    } else {
      a.out[i] = (at(a.in, i) + (g * Rounded{c.rate}) / deviation).value;
    }
  }
};

struct AdagradStep {
  optim::AdagradNumbers<float> c;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    const Rounded g = gradient_of(c, a, i), sum = at(a.state[0], i) + g * g;
    a.state[0][i] = sum.value;
    a.out[i] = (at(a.in, i) + (g * Rounded{c.rate}) / (root(sum) + Rounded{c.eps})).value;
  }
};

struct LambMoments {
  optim::LambNumbers<float> c;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    const Rounded g = at(a.gradient, i) * Rounded{c.factor};
    a.state[0][i] = (at(a.state[0], i) * Rounded{c.beta1} + g * Rounded{c.fresh1}).value;
    a.state[1][i] = (at(a.state[1], i) * Rounded{c.beta2} + (g * Rounded{c.fresh2}) * g).value;
  }
};

__device__ Rounded lamb_update(const optim::LambNumbers<float>& c, const Arrays& a, std::size_t i) {
  const Rounded update = (at(a.state[0], i) * Rounded{c.correction1}) /
                         (root(at(a.state[1], i)) * Rounded{c.correction2} + Rounded{c.eps});
  return c.decay != 0 ? update + at(a.in, i) * Rounded{c.decay} : update;
}

struct LambApply {
  optim::LambNumbers<float> c;
  float rate;
  Arrays a;
  __device__ void operator()(std::size_t i) const {
    a.out[i] = (at(a.in, i) + lamb_update(c, a, i) * Rounded{rate}).value;
  }
};

// ---- Sums of squares

constexpr unsigned kLanes = 16;                          // that the host adds up side by side
constexpr unsigned kSumsAtOnce = kThreads / kLanes;      // of a block of threads
constexpr std::size_t kMostGrid = std::size_t{1} << 30;  // blocks of threads

/// Adds up what kLanes neighbours have, halves to halves, as the host does; the first of them returns the sum. All
/// threads of the block take part.
__device__ double add_lanes(double mine) {
  __shared__ double sums[kThreads];
  const unsigned thread = threadIdx.x, lane = thread % kLanes;
  sums[thread] = mine;
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) sums[thread] = __dadd_rn(sums[thread], sums[thread + half]);
  }
  return lane == 0 ? sums[thread] : 0;
}

struct Values {
  const float* values;
  __device__ double operator()(std::size_t i) const { return values[i]; }
};
struct Updates {
  optim::LambNumbers<float> c;
  Arrays a;
  __device__ double operator()(std::size_t i) const { return lamb_update(c, a, i).value; }
};

/// `stride` doubles lie between the sums of two blocks of values.
template <class Value>
__global__ void sum_squares(std::size_t count, Value value, double* sums, unsigned stride) {
  const std::size_t block = static_cast<std::size_t>(blockIdx.x) * kSumsAtOnce + threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  const std::size_t first = block * kNormBlock < count ? block * kNormBlock : count;
  const std::size_t end = count - first < kNormBlock ? count : first + kNormBlock;
  double mine = 0;  // every value at `lane` modulo the number of lanes
  for (std::size_t i = first + lane; i < end; i += kLanes) {
    const double x = value(i);
    mine = __dadd_rn(mine, __dmul_rn(x, x));
  }
  const double sum = add_lanes(mine);
  if (lane == 0 && first < end) sums[block * stride] = sum;
}

template <class Value>
int launch_sums(const char* name, CUstream_st* stream, std::size_t count, Value value, double* sums, unsigned stride) {
  if (count == 0) return cudaSuccess;
  const std::size_t blocks = (count + kNormBlock - 1) / kNormBlock;
  const std::size_t grid = (blocks + kSumsAtOnce - 1) / kSumsAtOnce;
  if (grid > kMostGrid) return cudaErrorInvalidValue;
  return launch(name, sum_squares<Value>, static_cast<unsigned>(grid), kThreads, stream, count, value, sums, stride);
}

}  // namespace

int step(CUstream_st* stream, const optim::SgdNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_each("sgd", stream, count, SgdStep{numbers, arrays});
}
int step(CUstream_st* stream, const optim::AdamNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_each("adam", stream, count, AdamStep{numbers, arrays});
}
int step(CUstream_st* stream, const optim::RmspropNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_each("rmsprop", stream, count, RmspropStep{numbers, arrays});
}
int step(CUstream_st* stream, const optim::AdagradNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_each("adagrad", stream, count, AdagradStep{numbers, arrays});
}

int lamb_moments(CUstream_st* stream, const optim::LambNumbers<float>& numbers, const Arrays& arrays,
                 std::size_t count) {
  return launch_each("lamb_moments", stream, count, LambMoments{numbers, arrays});
}
int lamb_sums(CUstream_st* stream, const optim::LambNumbers<float>& numbers, const Arrays& arrays, std::size_t count,
              optim::LambSums* sums) {
  static_assert(sizeof(optim::LambSums) == 2 * sizeof(double));
  if (const int status = launch_sums("lamb_parameters", stream, count, Values{arrays.in}, &sums->parameters, 2))
    return status;
  return launch_sums("lamb_updates", stream, count, Updates{numbers, arrays}, &sums->updates, 2);
}
int lamb_apply(CUstream_st* stream, const optim::LambNumbers<float>& numbers, float rate, const Arrays& arrays,
               std::size_t count) {
  return launch_each("lamb_apply", stream, count, LambApply{numbers, rate, arrays});
}

int square_sums(CUstream_st* stream, const float* values, std::size_t count, double* sums) {
  return launch_sums("square_sums", stream, count, Values{values}, sums, 1);
}

}  // namespace cohive::cuda::kernels
