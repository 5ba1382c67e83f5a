#include "step_kernels.hpp"

#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

using Arrays = StepArrays<float>;
constexpr int kStates = sizeof(Arrays::state) / sizeof(float*);

/// One parameter's value, and what its optimizer keeps of it.
struct Value {
  Rounded gradient, in;
  Rounded state[kStates];
  Rounded out;
};

/// The gradient as a step uses it: with weight decay, where it is added to gradients.
template <class Numbers>
__device__ Rounded gradient_of(const Numbers& c, const Value& v) {
  const Rounded g = v.gradient * Rounded{c.factor};
  return c.decay != 0 ? g + v.in * Rounded{c.decay} : g;
}

struct SgdStep {
  optim::SgdNumbers<float> c;
  __device__ bool reads_state() const { return !c.first; }
  __device__ void step(Value& v) const {
    Rounded g = gradient_of(c, v);
    if (c.momentum != 0) {
      Rounded& buffer = v.state[0];
      buffer = c.first ? g : buffer * Rounded{c.momentum} + g * Rounded{c.fresh};
      g = c.nesterov ? g + buffer * Rounded{c.momentum} : buffer;
    }
    v.out = v.in + g * Rounded{c.rate};
  }
};

struct AdamStep {
  optim::AdamNumbers<float> c;
  __device__ bool reads_state() const { return true; }
  __device__ void step(Value& v) const {
    const Rounded g = gradient_of(c, v), p = v.in * Rounded{c.shrink};
    Rounded &m = v.state[0], &variance = v.state[1];
    m = m * Rounded{c.beta1} + g * Rounded{c.fresh1};
    variance = variance * Rounded{c.beta2} + (g * Rounded{c.fresh2}) * g;
    Rounded used = variance;
    if (c.amsgrad) {  // the larger one, NaN where either is
      const Rounded most = v.state[2];
      if (used.value <= most.value || most.value != most.value) used = most;
      v.state[2] = used;
    }
    v.out = p + (m * Rounded{c.rate}) / (root(used) * Rounded{c.correction} + Rounded{c.eps});
  }
};

struct RmspropStep {
  optim::RmspropNumbers<float> c;
  __device__ bool reads_state() const { return true; }
  __device__ void step(Value& v) const {
    const Rounded g = gradient_of(c, v);
    Rounded& square = v.state[0];
    square = square * Rounded{c.alpha} + (g * Rounded{c.fresh}) * g;
    Rounded variance = square;
    if (c.centered) {
      Rounded& mean = c.momentum > 0 ? v.state[2] : v.state[1];
      mean = mean * Rounded{c.alpha} + g * Rounded{c.fresh};
      variance = variance - mean * mean;
    }
    const Rounded deviation = root(variance) + Rounded{c.eps};
    if (c.momentum > 0) {
      Rounded& buffer = v.state[1];
      buffer = buffer * Rounded{c.momentum} + g / deviation;
      v.out = v.in + buffer * Rounded{c.rate};
    } else {
      v.out = v.in + (g * Rounded{c.rate}) / deviation;
    }
  }
};

struct AdagradStep {
  optim::AdagradNumbers<float> c;
  __device__ bool reads_state() const { return true; }
  __device__ void step(Value& v) const {
    const Rounded g = gradient_of(c, v);
    Rounded& sum = v.state[0];
    sum = sum + g * g;
    v.out = v.in + (g * Rounded{c.rate}) / (root(sum) + Rounded{c.eps});
  }
};

/// Writes the moments alone.
struct LambMoments {
  optim::LambNumbers<float> c;
  __device__ bool reads_state() const { return true; }
  __device__ void step(Value& v) const {
    const Rounded g = v.gradient * Rounded{c.factor};
    v.state[0] = v.state[0] * Rounded{c.beta1} + g * Rounded{c.fresh1};
    v.state[1] = v.state[1] * Rounded{c.beta2} + (g * Rounded{c.fresh2}) * g;
  }
};

__device__ Rounded lamb_update(const optim::LambNumbers<float>& c, const Value& v) {
  const Rounded update =
      (v.state[0] * Rounded{c.correction1}) / (root(v.state[1]) * Rounded{c.correction2} + Rounded{c.eps});
  return c.decay != 0 ? update + v.in * Rounded{c.decay} : update;
}

/// Leaves the moments as they are.
struct LambApply {
  optim::LambNumbers<float> c;
  float rate;
  __device__ bool reads_state() const { return true; }
  __device__ void step(Value& v) const { v.out = v.in + lamb_update(c, v) * Rounded{rate}; }
};

/// Which arrays a step writes.
enum class Writes { all, state, out };

/// A step of every value by itself. Each thread reads all that it needs before it writes: arrays may be the same
/// memory.
template <class Step, Writes kWrites>
struct StepOfEach {
  Step how;
  Arrays a;

  __device__ void operator()(std::size_t i) const {
    Value v{{a.gradient[i]}, {a.in[i]}, {}, {}};
    for (int k = 0; k < kStates; ++k)
      if (a.state[k] && how.reads_state()) v.state[k].value = a.state[k][i];
    how.step(v);
    for (int k = 0; kWrites != Writes::out && k < kStates; ++k)
      if (a.state[k]) a.state[k][i] = v.state[k].value;
    if (kWrites != Writes::state) a.out[i] = v.out.value;
  }

  __device__ void four(std::size_t i) const {
    const Four gradient = load_four(a.gradient + i), in = load_four(a.in + i);
    Four state[kStates], out;
    for (int k = 0; k < kStates; ++k)
      if (a.state[k] && how.reads_state()) state[k] = load_four(a.state[k] + i);
    for (int j = 0; j < 4; ++j) {
      Value v{{gradient.of[j]}, {in.of[j]}, {}, {}};
      for (int k = 0; k < kStates; ++k)
        if (a.state[k] && how.reads_state()) v.state[k].value = state[k].of[j];
      how.step(v);
      for (int k = 0; k < kStates; ++k) state[k].of[j] = v.state[k].value;
      out.of[j] = v.out.value;
    }
    for (int k = 0; kWrites != Writes::out && k < kStates; ++k)
      if (a.state[k]) store_four(a.state[k] + i, state[k]);
    if (kWrites != Writes::state) store_four(a.out + i, out);
  }
};

/// The first `states` of what an optimizer keeps, and no more.
Arrays with_states(Arrays arrays, int states) {
  for (int k = states; k < kStates; ++k) arrays.state[k] = nullptr;
  return arrays;
}

template <Writes kWrites = Writes::all, class Step>
int launch_step(const char* name, CUstream_st* stream, Step how, const Arrays& a, std::size_t count) {
  bool fours = is_aligned(a.gradient, 16) && is_aligned(a.in, 16) && is_aligned(a.out, 16);
  for (const float* state : a.state) fours = fours && is_aligned(state, 16);
  return launch_fours(name, stream, count, fours, StepOfEach<Step, kWrites>{how, a});
}

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
  __device__ double operator()(std::size_t i) const {
    return lamb_update(c, {{}, {a.in[i]}, {{a.state[0][i]}, {a.state[1][i]}}, {}}).value;
  }
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
  return launch_step("sgd", stream, SgdStep{numbers}, with_states(arrays, numbers.momentum != 0 ? 1 : 0), count);
}
int step(CUstream_st* stream, const optim::AdamNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_step("adam", stream, AdamStep{numbers}, with_states(arrays, numbers.amsgrad ? 3 : 2), count);
}
int step(CUstream_st* stream, const optim::RmspropNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  const int states = 1 + (numbers.momentum > 0 ? 1 : 0) + (numbers.centered ? 1 : 0);
  return launch_step("rmsprop", stream, RmspropStep{numbers}, with_states(arrays, states), count);
}
int step(CUstream_st* stream, const optim::AdagradNumbers<float>& numbers, const Arrays& arrays, std::size_t count) {
  return launch_step("adagrad", stream, AdagradStep{numbers}, with_states(arrays, 1), count);
}

int lamb_moments(CUstream_st* stream, const optim::LambNumbers<float>& numbers, const Arrays& arrays,
                 std::size_t count) {
  return launch_step<Writes::state>("lamb_moments", stream, LambMoments{numbers}, with_states(arrays, 2), count);
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
  return launch_step<Writes::out>("lamb_apply", stream, LambApply{numbers, rate}, with_states(arrays, 2), count);
}

int square_sums(CUstream_st* stream, const float* values, std::size_t count, double* sums) {
  return launch_sums("square_sums", stream, count, Values{values}, sums, 1);
}

}  // namespace cohive::cuda::kernels
