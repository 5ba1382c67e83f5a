/// \file
/// Optimizer steps as single passes over host memory. Pure functions of what the memory holds: results are the same,
/// bit for bit, on every processor, in whatever stretches and on however many threads a step is made.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cohive/optim/options.hpp"
#include "cohive/optim/view.hpp"

namespace cohive::optim {

/// Memory of one tensor in a step. All views that are not empty have the same size. Two views are the same memory or
/// do not overlap.
struct TensorMemory {
  ConstView parameters;  ///< read
  View result;           ///< written: parameters after the step, of the same dtype; may be the memory of `parameters`
  View copy;      ///< optional: the result once more, such as the float16 parameters of a model beside its master
  View gradient;  ///< any floating dtype
  /// As state_fields() lists them; float64 with float64 parameters, float32 with all others.
  std::array<View, kMostStateFields> state;
};

/// Larger counts of steps are none: a double does not tell them apart.
inline constexpr double kMostSteps = 1e15;

/// What is special to one step of a tensor.
struct StepSettings {
  std::int64_t step = 1;        ///< of this tensor, counted from 1; at 1 SGD's momentum begins
  double gradient_factor = 1;   ///< what gradients are multiplied by: mean instead of sum, inverse loss scale, clipping
  bool clear_gradient = false;  ///< write zeros over the gradient once it was read
};

/// One step of one tensor, made stretch by stretch. Any thread; several at a time for stretches that do not overlap.
/// Arithmetic is double for float64 parameters and float32 otherwise.
///
/// \code
///   TensorStep step(options, memory, {.step = 7});
///   step.run(0, memory.parameters.size());    // or in several stretches, in any order
///   if (step.has_second_phase()) {
///     step.settle();
///     step.finish(0, memory.parameters.size());
///   }
/// \endcode
class TensorStep {
 public:
  /// \throws std::invalid_argument when options are out of range, or sizes or dtypes do not fit
  TensorStep(const Options& options, const TensorMemory& memory, const StepSettings& settings);
  TensorStep(TensorStep&&) noexcept;
  TensorStep& operator=(TensorStep&&) noexcept;
  ~TensorStep();

  /// Number of values.
  std::size_t size() const noexcept;
  /// Makes the step for values [offset, offset + count). With a second phase: reads gradients and updates statistics.
  void run(std::size_t offset, std::size_t count);

  /// True for LAMB, whose step needs norms of the whole tensor.
  bool has_second_phase() const noexcept;
  /// Ends the first phase, on one thread. \throws std::logic_error unless run() had every value once
  void settle();
  /// Writes the parameters of a stretch, after settle().
  void finish(std::size_t offset, std::size_t count);

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::optim
