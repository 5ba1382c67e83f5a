// The loops of kernels.hpp, written once. Each kernels_<family>.cpp includes this file in its own anonymous namespace,
// with the instructions of its family switched on. Vectors have 64 bytes whatever the processor: the compiler makes
// them of the registers that there are. No #include here: this text is compiled for processors that the rest of the
// program must not assume, so nothing of it may be shared with other files.

typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef float HalfFloats __attribute__((vector_size(32)));  // as many as Doubles has
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::int64_t Longs __attribute__((vector_size(64)));
typedef std::uint16_t Shorts __attribute__((vector_size(64)));

template <class T>
struct Vector;
template <>
struct Vector<float> {
  using Type = Floats;
  using Bits = Ints;
  static constexpr std::int32_t kExponent = 0x7f800000;  // all ones: NaN or infinite
};
template <>
struct Vector<double> {
  using Type = Doubles;
  using Bits = Longs;
  static constexpr std::int64_t kExponent = 0x7ff0000000000000;
};
template <class T>
using Wide = typename Vector<T>::Type;
template <class T>
constexpr std::size_t kLanes = 64 / sizeof(T);

// A number of lanes known to the compiler, and the rest of an array. Lanes not read are zero.
struct Whole {};
template <class T>
inline void load(const T* from, Whole, Wide<T>& to) {
  __builtin_memcpy(&to, from, 64);
}
template <class T>
inline void load(const T* from, std::size_t lanes, Wide<T>& to) {
  to = Wide<T>{};
  __builtin_memcpy(&to, from, lanes * sizeof(T));
}
template <class T>
inline void store(T* to, Whole, const Wide<T>& from) {
  __builtin_memcpy(to, &from, 64);
}
template <class T>
inline void store(T* to, std::size_t lanes, const Wide<T>& from) {
  __builtin_memcpy(to, &from, lanes * sizeof(T));
}

/// step(first, lanes) for whole vectors, then once for the rest.
template <class T, class Step>
inline void for_lanes(std::size_t count, Step step) {
  std::size_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) step(i, Whole{});
  if (i < count) step(i, count - i);
}

template <class V>
inline V root(const V& x) {
#if defined(__clang__)
  return __builtin_elementwise_sqrt(x);
#else
  using T = __typeof__(x[0] + x[0]);
  T lanes[sizeof(V) / sizeof(T)];  // becomes one vector again, as square roots need not set errno here
  __builtin_memcpy(lanes, &x, sizeof x);
  for (T& lane : lanes)
    if constexpr (sizeof(T) == 4)
      lane = __builtin_sqrtf(lane);
    else
      lane = __builtin_sqrt(lane);
  V y;
  __builtin_memcpy(&y, lanes, sizeof y);
  return y;
#endif
}

/// The larger of both, NaN where either is.
template <class V>
inline V larger(const V& a, const V& b) {
  const auto keep = (b <= a) | (a != a);
  return keep ? a : b;
}

template <class T>
inline auto not_finite(const Wide<T>& x) {
  using Bits = typename Vector<T>::Bits;
  Bits bits;
  __builtin_memcpy(&bits, &x, 64);
  return (bits & Vector<T>::kExponent) == Vector<T>::kExponent;
}
template <class B>
inline bool any(const B& mask) {
  std::uint64_t words[8], found = 0;
  __builtin_memcpy(words, &mask, 64);
  for (std::uint64_t word : words) found |= word;
  return found != 0;
}

/// Sum of squares in double: lane i adds up every value at i modulo the number of lanes, 16 floats or 8 doubles.
struct SquareSum {
  Doubles low = {}, high = {};
  void add(const Floats& x) {
    HalfFloats halves[2];
    __builtin_memcpy(halves, &x, 64);
    const Doubles a = __builtin_convertvector(halves[0], Doubles), b = __builtin_convertvector(halves[1], Doubles);
    low = low + a * a;
    high = high + b * b;
  }
  void add(const Doubles& x) { low = low + x * x; }
  double total() const {
    double lanes[8];
    const Doubles both = low + high;
    __builtin_memcpy(lanes, &both, 64);
    for (std::size_t n = 4; n > 0; n /= 2)
      for (std::size_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
    return lanes[0];
  }
};

template <class T>
void sgd(SgdNumbers<T> c, StepArrays<T> a, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> g, p, buffer;
    load(a.gradient + i, lanes, g);
    load(a.in + i, lanes, p);
    g = g * c.factor;
    if (c.decay != 0) g = g + p * c.decay;
    if (c.momentum != 0) {
      if (c.first) {
        buffer = g;
      } else {
        load(a.state[0] + i, lanes, buffer);
        buffer = buffer * c.momentum + g * c.fresh;
      }
      store(a.state[0] + i, lanes, buffer);
      g = c.nesterov ? g + buffer * c.momentum : buffer;
    }
    p = p + g * c.rate;
    store(a.out + i, lanes, p);
  });
}

template <class T>
void adam(AdamNumbers<T> c, StepArrays<T> a, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> g, p, m, v;
    load(a.gradient + i, lanes, g);
    load(a.in + i, lanes, p);
    load(a.state[0] + i, lanes, m);
    load(a.state[1] + i, lanes, v);
    g = g * c.factor;
    if (c.decay != 0) g = g + p * c.decay;
    p = p * c.shrink;
    m = m * c.beta1 + g * c.fresh1;
    v = v * c.beta2 + (g * c.fresh2) * g;
    store(a.state[0] + i, lanes, m);
    store(a.state[1] + i, lanes, v);
    if (c.amsgrad) {
      Wide<T> most;
      load(a.state[2] + i, lanes, most);
      v = larger(most, v);
      store(a.state[2] + i, lanes, v);
    }
    p = p + (m * c.rate) / (root(v) * c.correction + c.eps);
    store(a.out + i, lanes, p);
  });
}

template <class T>
void rmsprop(RmspropNumbers<T> c, StepArrays<T> a, std::size_t count) {
  T* const momentum_buffer = a.state[1];
  T* const average = a.state[c.momentum > 0 ? 2 : 1];
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> g, p, v;
    load(a.gradient + i, lanes, g);
    load(a.in + i, lanes, p);
    load(a.state[0] + i, lanes, v);
    g = g * c.factor;
    if (c.decay != 0) g = g + p * c.decay;
    v = v * c.alpha + (g * c.fresh) * g;
    store(a.state[0] + i, lanes, v);
    if (c.centered) {
      Wide<T> mean;
      load(average + i, lanes, mean);
      mean = mean * c.alpha + g * c.fresh;
      store(average + i, lanes, mean);
      v = v - mean * mean;
    }
    const Wide<T> deviation = root(v) + c.eps;
    if (c.momentum > 0) {
      Wide<T> buffer;
      load(momentum_buffer + i, lanes, buffer);
      buffer = buffer * c.momentum + g / deviation;
      store(momentum_buffer + i, lanes, buffer);
      p = p + buffer * c.rate;
    } else {
      p = p + (g * c.rate) / deviation;
    }
    store(a.out + i, lanes, p);
  });
}

template <class T>
void adagrad(AdagradNumbers<T> c, StepArrays<T> a, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> g, p, sum;
    load(a.gradient + i, lanes, g);
    load(a.in + i, lanes, p);
    load(a.state[0] + i, lanes, sum);
    g = g * c.factor;
    if (c.decay != 0) g = g + p * c.decay;
    sum = sum + g * g;
    store(a.state[0] + i, lanes, sum);
    p = p + (g * c.rate) / (root(sum) + c.eps);
    store(a.out + i, lanes, p);
  });
}

template <class T, class L>
inline void lamb_moments_of(const LambNumbers<T>& c, const StepArrays<T>& a, std::size_t i, L lanes, Wide<T>& m,
                            Wide<T>& v) {
  Wide<T> g;
  load(a.gradient + i, lanes, g);
  load(a.state[0] + i, lanes, m);
  load(a.state[1] + i, lanes, v);
  g = g * c.factor;
  m = m * c.beta1 + g * c.fresh1;
  v = v * c.beta2 + (g * c.fresh2) * g;
  store(a.state[0] + i, lanes, m);
  store(a.state[1] + i, lanes, v);
}

template <class T>
inline Wide<T> lamb_update(const LambNumbers<T>& c, const Wide<T>& p, const Wide<T>& m, const Wide<T>& v) {
  const Wide<T> update = (m * c.correction1) / (root(v) * c.correction2 + c.eps);
  return c.decay != 0 ? update + p * c.decay : update;
}

/// Sums of what was read: where there is no value, its update is 0 / eps, and eps may be 0.
template <class T>
struct LambSquares {
  SquareSum parameters, updates;
  void add(const Wide<T>& p, const Wide<T>& update, Whole) {
    parameters.add(p);
    updates.add(update);
  }
  void add(const Wide<T>& p, const Wide<T>& update, std::size_t lanes) {
    Wide<T> values = {};
    __builtin_memcpy(&values, &update, lanes * sizeof(T));
    add(p, values, Whole{});
  }
  LambSums total() const { return {parameters.total(), updates.total()}; }
};

template <class T>
void lamb_moments(LambNumbers<T> c, StepArrays<T> a, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> m, v;
    lamb_moments_of(c, a, i, lanes, m, v);
  });
}

template <class T>
LambSums lamb_sums(LambNumbers<T> c, StepArrays<T> a, std::size_t count) {
  LambSquares<T> squares;
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> p, m, v;
    load(a.in + i, lanes, p);
    load(a.state[0] + i, lanes, m);
    load(a.state[1] + i, lanes, v);
    squares.add(p, lamb_update<T>(c, p, m, v), lanes);
  });
  return squares.total();
}

template <class T>
LambSums lamb_moments_and_sums(LambNumbers<T> c, StepArrays<T> a, std::size_t count) {
  LambSquares<T> squares;
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> p, m, v;
    load(a.in + i, lanes, p);
    lamb_moments_of(c, a, i, lanes, m, v);
    squares.add(p, lamb_update<T>(c, p, m, v), lanes);
  });
  return squares.total();
}

template <class T>
void lamb_apply(LambNumbers<T> c, T rate, StepArrays<T> a, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> p, m, v;
    load(a.in + i, lanes, p);
    load(a.state[0] + i, lanes, m);
    load(a.state[1] + i, lanes, v);
    p = p + lamb_update<T>(c, p, m, v) * rate;
    store(a.out + i, lanes, p);
  });
}

template <class T>
double square_sum(const T* values, std::size_t count) {
  SquareSum sum;
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> x;
    load(values + i, lanes, x);
    sum.add(x);
  });
  return sum.total();
}

template <class T>
bool all_finite(const T* values, std::size_t count) {
  typename Vector<T>::Bits found = {};
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> x;
    load(values + i, lanes, x);
    found |= not_finite<T>(x);
  });
  return !any(found);
}

template <class T>
void scale(T factor, T* values, std::size_t count) {
  for_lanes<T>(count, [&](std::size_t i, auto lanes) {
    Wide<T> x;
    load(values + i, lanes, x);
    x = x * factor;
    store(values + i, lanes, x);
  });
}

/// factor * gradient, 0 where the gradient is not finite.
template <class L>
inline Floats weighted(const float* gradient, float factor, L lanes, Ints& found) {
  Floats g;
  load(gradient, lanes, g);
  const Ints bad = not_finite<float>(g);
  found |= bad;
  return bad ? Floats{} : g * factor;
}

bool accumulate(const float* gradient, float factor, float* sum, std::size_t count) {
  Ints found = {};
  for_lanes<float>(count, [&](std::size_t i, auto lanes) {
    const Floats g = weighted(gradient + i, factor, lanes, found);
    Floats s;
    load(sum + i, lanes, s);
    s = s + g;
    store(sum + i, lanes, s);
  });
  return !any(found);
}

bool replace(const float* gradient, float factor, float* sum, std::size_t count) {
  Ints found = {};
  for_lanes<float>(
      count, [&](std::size_t i, auto lanes) { store(sum + i, lanes, weighted(gradient + i, factor, lanes, found)); });
  return !any(found);
}

bool all_short_finite(const std::uint16_t* values, std::uint16_t exponent, std::size_t count) {
  Shorts found = {};
  std::size_t i = 0;
  for (; i < count; i += 32) {
    Shorts x = {};
    __builtin_memcpy(&x, values + i, i + 32 <= count ? 64 : 2 * (count - i));
    found |= reinterpret_cast<Shorts>((x & exponent) == exponent);
  }
  return !any(found);
}

/// Vectors go past the caches, so memory need not be read before it is written; bytes before and after them do not.
void stream(const void* from, void* to, std::size_t bytes) {
  const auto* in = static_cast<const std::uint8_t*>(from);
  auto* out = static_cast<std::uint8_t*>(to);
#if defined(__clang__)
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(out) % 64, before = past_line ? 64 - past_line : 0;
  if (bytes >= before + 64) {
    __builtin_memcpy(out, in, before);
    in += before, out += before, bytes -= before;
    for (; bytes >= 64; in += 64, out += 64, bytes -= 64) {
      Floats x;
      __builtin_memcpy(&x, in, 64);
      __builtin_nontemporal_store(x, reinterpret_cast<Floats*>(out));
    }
#if defined(__x86_64__)
    __builtin_ia32_sfence();  // such stores are ordered by nothing else
#endif
  }
#endif
  if (bytes > 0) __builtin_memcpy(out, in, bytes);
}

template <class T>
constexpr StepKernels<T> kStepKernels = {
    sgd<T>,        adam<T>,       rmsprop<T>,    adagrad<T>, lamb_moments<T>, lamb_sums<T>, lamb_moments_and_sums<T>,
    lamb_apply<T>, square_sum<T>, all_finite<T>, scale<T>};

#define COHIVE_OPTIM_KERNELS(name) \
  {name, kStepKernels<float>, kStepKernels<double>, accumulate, replace, all_short_finite, stream}
