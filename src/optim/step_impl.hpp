// What TensorStep hides: one class for optimizers that look at every value by itself, one for LAMB.
#pragma once

#include <cmath>

#include "blocks.hpp"
#include "cohive/optim/step.hpp"
#include "optim/detail/kernels.hpp"

namespace cohive::optim {

class TensorStep::Impl {
 public:
  virtual ~Impl() = default;
  virtual std::size_t size() const = 0;
  virtual void run(std::size_t offset, std::size_t count) = 0;
  virtual bool has_second_phase() const { return false; }
  virtual void settle() {}
  virtual void finish(std::size_t, std::size_t) {}
};

template <class T>
const StepKernels<T>& step_kernels() {
  if constexpr (sizeof(T) == sizeof(float))
    return kernels().singles;
  else
    return kernels().doubles;
}

/// Blocks of a tensor's arrays as the kernels take them.
template <class T>
class Block {
 public:
  explicit Block(const TensorMemory& memory) : memory_(memory) {}

  /// True when all that a kernel reads and writes lies in the tensor's own memory and nothing else is to be written.
  bool direct() const {
    return memory_.parameters.dtype() == kDTypeOf<T> && memory_.gradient.dtype() == kDTypeOf<T> && memory_.copy.empty();
  }

  StepArrays<T> arrays(std::size_t at) {
    StepArrays<T> arrays{};
    for (std::size_t i = 0; i < kMostStateFields; ++i)
      if (!memory_.state[i].empty()) arrays.state[i] = values_at<T>(memory_.state[i], at);
    return arrays;
  }
  const T* gradient(std::size_t at, std::size_t count) { return read<T>(memory_.gradient, at, count, gradient_); }
  const T* parameters(std::size_t at, std::size_t count) { return read<T>(memory_.parameters, at, count, parameters_); }
  T* result(std::size_t at) {
    return memory_.result.dtype() == kDTypeOf<T> ? values_at<T>(memory_.result, at) : result_;
  }
  /// Once the kernel has written to result().
  void write_result(std::size_t at, std::size_t count) {
    if (memory_.result.dtype() != kDTypeOf<T>) write<T>(memory_.result, at, count, result_);
    if (!memory_.copy.empty()) write<T>(memory_.copy, at, count, result(at));
  }

 private:
  const TensorMemory& memory_;
  alignas(64) T gradient_[kBlock], parameters_[kBlock], result_[kBlock];
};

std::unique_ptr<TensorStep::Impl> make_lamb(const LambOptions& options, const TensorMemory& memory,
                                            const StepSettings& settings);

}  // namespace cohive::optim
