// What steps multiply and add, made of their options once per step, in double.
#pragma once

#include <algorithm>
#include <cmath>

#include "cohive/optim/step.hpp"
#include "kernels.hpp"

namespace cohive::optim {

/// base^exponent by multiplications alone: the same bits everywhere, which pow() does not promise.
inline double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base)
    if (exponent & 1) result *= base;
  return result;
}

template <class T>
SgdNumbers<T> numbers(const SgdOptions& o, const StepSettings& s) {
  return {.factor = static_cast<T>(s.gradient_factor),
          .decay = static_cast<T>(o.weight_decay),
          .momentum = static_cast<T>(o.momentum),
          .fresh = static_cast<T>(1 - o.dampening),
          .rate = static_cast<T>(-o.lr),
          .first = s.step == 1,
          .nesterov = o.nesterov};
}

template <class T, class O>
AdamNumbers<T> adam_numbers(const O& o, const StepSettings& s, double decay, double shrink) {
  return {.factor = static_cast<T>(s.gradient_factor),
          .decay = static_cast<T>(decay),
          .shrink = static_cast<T>(shrink),
          .beta1 = static_cast<T>(o.beta1),
          .fresh1 = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .fresh2 = static_cast<T>(1 - o.beta2),
          .correction = static_cast<T>(1 / std::sqrt(1 - power(o.beta2, s.step))),
          .eps = static_cast<T>(o.eps),
          .rate = static_cast<T>(-(o.lr / (1 - power(o.beta1, s.step)))),
          .amsgrad = o.amsgrad};
}
template <class T>
AdamNumbers<T> numbers(const AdamOptions& o, const StepSettings& s) {
  return adam_numbers<T>(o, s, o.weight_decay, 1);
}
template <class T>
AdamNumbers<T> numbers(const AdamWOptions& o, const StepSettings& s) {
  return adam_numbers<T>(o, s, 0, 1 - o.lr * o.weight_decay);
}

template <class T>
RmspropNumbers<T> numbers(const RmspropOptions& o, const StepSettings& s) {
  return {.factor = static_cast<T>(s.gradient_factor),
          .decay = static_cast<T>(o.weight_decay),
          .alpha = static_cast<T>(o.alpha),
          .fresh = static_cast<T>(1 - o.alpha),
          .eps = static_cast<T>(o.eps),
          .momentum = static_cast<T>(o.momentum),
          .rate = static_cast<T>(-o.lr),
          .centered = o.centered};
}

template <class T>
AdagradNumbers<T> numbers(const AdagradOptions& o, const StepSettings& s) {
  return {.factor = static_cast<T>(s.gradient_factor),
          .decay = static_cast<T>(o.weight_decay),
          .eps = static_cast<T>(o.eps),
          .rate = static_cast<T>(-(o.lr / (1 + static_cast<double>(s.step - 1) * o.lr_decay)))};
}

template <class T>
LambNumbers<T> numbers(const LambOptions& o, const StepSettings& s) {
  const double correction1 = o.bias_correction ? 1 / (1 - power(o.beta1, s.step)) : 1;
  const double correction2 = o.bias_correction ? 1 / std::sqrt(1 - power(o.beta2, s.step)) : 1;
  return {.factor = static_cast<T>(s.gradient_factor),
          .beta1 = static_cast<T>(o.beta1),
          .fresh1 = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .fresh2 = static_cast<T>(1 - o.beta2),
          .correction1 = static_cast<T>(correction1),
          .correction2 = static_cast<T>(correction2),
          .eps = static_cast<T>(o.eps),
          .decay = static_cast<T>(o.weight_decay)};
}

inline double trust_ratio(const LambOptions& options, const LambSums& sums) {
  double norm = std::max(std::sqrt(sums.parameters), options.smallest_norm);
  if (options.largest_norm > 0) norm = std::min(norm, options.largest_norm);
  const double update = std::sqrt(sums.updates);
  return norm > 0 && update > 0 ? norm / update : 1;
}

}  // namespace cohive::optim
