/// \file
/// Passes over gradients and other values in host memory. Pure functions, any thread; results do not depend on the
/// processor. Arithmetic is float32, or double on float64 values.
#pragma once

#include "cohive/optim/view.hpp"

namespace cohive::optim {

/// How a gradient is added to a sum.
struct Accumulating {
  double factor = 1;   ///< such as the number of samples of the batch
  bool first = false;  ///< the sum is empty: what it holds is replaced
  bool clear = false;  ///< write zeros over the gradient once it was read
};

/// sum += factor * gradient. Tells whether every value read is finite as float32. A value that is not is left out, so
/// the sum stays usable: a second call with the negative factor takes the batch back, to rounding.
/// \throws std::invalid_argument when sizes differ
bool accumulate(View gradient, std::span<float> sum, Accumulating how = {});

/// values *= factor. Tells whether every result is finite: with the inverse of a loss scale as factor it unscales
/// gradients and detects overflow in one pass.
bool scale(View values, double factor);

/// Whether no value is NaN or infinite.
bool all_finite(ConstView values);

/// Sum of squares, in double: of every block of kNormBlock values, and of these sums in their order.
double square_sum(ConstView values);
/// Values that are summed as one block, so that sums do not depend on the number of threads.
inline constexpr std::size_t kNormBlock = 1024;

/// What gradients are multiplied by so that their norm is at most `max_norm`, as torch.nn.utils.clip_grad_norm_ does; 1
/// when it is already. NaN when the sum is, 0 when it is infinite.
double clip_coefficient(double square_sum, double max_norm);

/// Copies values into another dtype, or the same one: rounded to nearest even; too large becomes infinity.
/// \throws std::invalid_argument when sizes differ
void copy(ConstView from, View to);

}  // namespace cohive::optim
