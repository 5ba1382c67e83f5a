// The inner loops of steps and passes, once for each family of processors. All families give the same bits: every
// operation rounds by itself (fused multiply-add is used nowhere) and sums are taken over lanes whose number does not
// depend on the processor.
// Arrays are aligned as their values. Two arrays are the same memory or do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cohive::optim {

template <class T>
struct StepArrays {
  const T* gradient;
  const T* in;  ///< parameters
  T* out;
  T* state[3];
};

// What a step multiplies and adds, made from options once per step. `factor` is the gradient's.
template <class T>
struct SgdNumbers {
  T factor, decay, momentum, fresh, rate;  ///< fresh = 1 - dampening; rate = -lr
  bool first, nesterov;
};
template <class T>
struct AdamNumbers {
  T factor, decay, shrink;  ///< shrink = 1 - lr * decay where decay is taken from the parameters
  T beta1, fresh1, beta2, fresh2, correction, eps, rate;
  bool amsgrad;
};
template <class T>
struct RmspropNumbers {
  T factor, decay, alpha, fresh, eps, momentum, rate;
  bool centered;
};
template <class T>
struct AdagradNumbers {
  T factor, decay, eps, rate;
};
template <class T>
struct LambNumbers {
  T factor, beta1, fresh1, beta2, fresh2, correction1, correction2, eps, decay;
};

/// Sums of the squares of parameters and of their updates.
struct LambSums {
  double parameters = 0;
  double updates = 0;
};

template <class T>
struct StepKernels {
  void (*sgd)(SgdNumbers<T> c, StepArrays<T> a, std::size_t count);
  void (*adam)(AdamNumbers<T> c, StepArrays<T> a, std::size_t count);
  void (*rmsprop)(RmspropNumbers<T> c, StepArrays<T> a, std::size_t count);
  void (*adagrad)(AdagradNumbers<T> c, StepArrays<T> a, std::size_t count);
  /// Updates both moments; the sums that these give; and both at once, with the same results.
  void (*lamb_moments)(LambNumbers<T> c, StepArrays<T> a, std::size_t count);
  LambSums (*lamb_sums)(LambNumbers<T> c, StepArrays<T> a, std::size_t count);
  LambSums (*lamb_moments_and_sums)(LambNumbers<T> c, StepArrays<T> a, std::size_t count);
  /// out = in + rate * update
  void (*lamb_apply)(LambNumbers<T> c, T rate, StepArrays<T> a, std::size_t count);

  double (*square_sum)(const T* values, std::size_t count);
  bool (*all_finite)(const T* values, std::size_t count);
  void (*scale)(T factor, T* values, std::size_t count);
};

struct Kernels {
  const char* name;
  StepKernels<float> singles;
  StepKernels<double> doubles;
  /// sum += factor * gradient, and sum = factor * gradient. False when a value of the gradient is not finite; it counts
  /// as 0.
  bool (*accumulate)(const float* gradient, float factor, float* sum, std::size_t count);
  bool (*replace)(const float* gradient, float factor, float* sum, std::size_t count);
  /// Of float16 and bfloat16: false when a value has all bits of `exponent` set.
  bool (*all_short_finite)(const std::uint16_t* values, std::uint16_t exponent, std::size_t count);
  /// Copies to memory that nothing reads soon.
  void (*stream)(const void* from, void* to, std::size_t bytes);
};

/// The fastest that this processor runs, chosen once.
const Kernels& kernels();
/// All that this processor runs, slowest first: for tests.
std::span<const Kernels* const> all_kernels();

/// Makes kernels() another family's while it lives: for tests.
class KernelsInUse {
 public:
  explicit KernelsInUse(const Kernels& family);
  ~KernelsInUse();
  KernelsInUse(const KernelsInUse&) = delete;
  KernelsInUse& operator=(const KernelsInUse&) = delete;

 private:
  const Kernels* before_;
};

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace cohive::optim
