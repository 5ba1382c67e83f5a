// The optimizers' formulas of docs/optimizer-steps.md, one value at a time.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cohive/optim/options.hpp"

namespace cohive::optim::reference {

/// One value: its parameter and statistics.
template <class T>
struct Value {
  T parameter;
  T state[3] = {};
};

template <class T>
void step(const SgdOptions& o, std::int64_t count, T g, Value<T>& x) {
  if (static_cast<T>(o.weight_decay) != 0) g = g + x.parameter * static_cast<T>(o.weight_decay);
  if (o.momentum != 0) {
    const T momentum = static_cast<T>(o.momentum);
    x.state[0] = count == 1 ? g : x.state[0] * momentum + g * static_cast<T>(1 - o.dampening);
    g = o.nesterov ? g + x.state[0] * momentum : x.state[0];
  }
  x.parameter = x.parameter + g * static_cast<T>(-o.lr);
}

inline double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base = base * base)
    if (exponent % 2 == 1) result = result * base;
  return result;
}

template <class T, class O>
void adam(const O& o, std::int64_t count, T g, T parameter, Value<T>& x) {
  const auto correction = static_cast<T>(1 / std::sqrt(1 - power(o.beta2, count)));
  const auto rate = static_cast<T>(-(o.lr / (1 - power(o.beta1, count))));
  x.state[0] = x.state[0] * static_cast<T>(o.beta1) + g * static_cast<T>(1 - o.beta1);
  x.state[1] = x.state[1] * static_cast<T>(o.beta2) + (g * static_cast<T>(1 - o.beta2)) * g;
  T v = x.state[1];
  if (o.amsgrad) x.state[2] = v = (v > x.state[2] || std::isnan(v)) && !std::isnan(x.state[2]) ? v : x.state[2];
  x.parameter = parameter + (x.state[0] * rate) / (std::sqrt(v) * correction + static_cast<T>(o.eps));
}
template <class T>
void step(const AdamOptions& o, std::int64_t count, T g, Value<T>& x) {
  if (static_cast<T>(o.weight_decay) != 0) g = g + x.parameter * static_cast<T>(o.weight_decay);
  adam(o, count, g, x.parameter, x);
}
template <class T>
void step(const AdamWOptions& o, std::int64_t count, T g, Value<T>& x) {
  adam(o, count, g, x.parameter * static_cast<T>(1 - o.lr * o.weight_decay), x);
}

template <class T>
void step(const RmspropOptions& o, std::int64_t, T g, Value<T>& x) {
  const T alpha = static_cast<T>(o.alpha), fresh = static_cast<T>(1 - o.alpha), rate = static_cast<T>(-o.lr);
  T &buffer = x.state[1], &mean = x.state[o.momentum > 0 ? 2 : 1];
  if (static_cast<T>(o.weight_decay) != 0) g = g + x.parameter * static_cast<T>(o.weight_decay);
  T v = x.state[0] = x.state[0] * alpha + (g * fresh) * g;
  if (o.centered) {
    mean = mean * alpha + g * fresh;
    v = v - mean * mean;
  }
  const T deviation = std::sqrt(v) + static_cast<T>(o.eps);
  if (o.momentum > 0) {
    buffer = buffer * static_cast<T>(o.momentum) + g / deviation;
    x.parameter = x.parameter + buffer * rate;
  } else {
    x.parameter = x.parameter + (g * rate) / deviation;
  }
}

template <class T>
void step(const AdagradOptions& o, std::int64_t count, T g, Value<T>& x) {
  const auto rate = static_cast<T>(-(o.lr / (1 + static_cast<double>(count - 1) * o.lr_decay)));
  if (static_cast<T>(o.weight_decay) != 0) g = g + x.parameter * static_cast<T>(o.weight_decay);
  x.state[0] = x.state[0] + g * g;
  x.parameter = x.parameter + (g * rate) / (std::sqrt(x.state[0]) + static_cast<T>(o.eps));
}

/// LAMB's update of one value, without the trust ratio.
template <class T>
T lamb_update(const LambOptions& o, std::int64_t count, T g, Value<T>& x) {
  const auto correction1 = static_cast<T>(o.bias_correction ? 1 / (1 - power(o.beta1, count)) : 1);
  const auto correction2 = static_cast<T>(o.bias_correction ? 1 / std::sqrt(1 - power(o.beta2, count)) : 1);
  x.state[0] = x.state[0] * static_cast<T>(o.beta1) + g * static_cast<T>(1 - o.beta1);
  x.state[1] = x.state[1] * static_cast<T>(o.beta2) + (g * static_cast<T>(1 - o.beta2)) * g;
  T update = (x.state[0] * correction1) / (std::sqrt(x.state[1]) * correction2 + static_cast<T>(o.eps));
  if (static_cast<T>(o.weight_decay) != 0) update = update + x.parameter * static_cast<T>(o.weight_decay);
  return update;
}

/// Sum of squares in the documented order: 16 lanes of floats or 8 of doubles within blocks of 1024 values.
template <class T>
double square_sum(const std::vector<T>& values) {
  constexpr std::size_t kLanes = 64 / sizeof(T), kBlock = 1024;
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    double lanes[16] = {};
    for (std::size_t i = first; i < std::min(first + kBlock, values.size()); ++i) {
      const auto x = static_cast<double>(values[i]);
      lanes[(i - first) % kLanes] += x * x;
    }
    for (std::size_t n = 8; n > 0; n /= 2)
      for (std::size_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
    sum += lanes[0];
  }
  return sum;
}

template <class T>
void step(const LambOptions& o, std::int64_t count, const std::vector<T>& gradient, std::vector<Value<T>>& values) {
  std::vector<T> updates, parameters;
  for (std::size_t i = 0; i < values.size(); ++i) {
    parameters.push_back(values[i].parameter);
    updates.push_back(lamb_update(o, count, gradient[i], values[i]));
  }
  double norm = std::max(std::sqrt(square_sum(parameters)), o.smallest_norm);
  if (o.largest_norm > 0) norm = std::min(norm, o.largest_norm);
  const double update = std::sqrt(square_sum(updates));
  const auto rate = static_cast<T>(-o.lr * (norm > 0 && update > 0 ? norm / update : 1));
  for (std::size_t i = 0; i < values.size(); ++i) values[i].parameter = values[i].parameter + updates[i] * rate;
}
template <class O, class T>
void step(const O& o, std::int64_t count, const std::vector<T>& gradient, std::vector<Value<T>>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) step(o, count, gradient[i], values[i]);
}

}  // namespace cohive::optim::reference

namespace cohive::optim {

/// Every optimizer with every kind of option.
inline std::vector<Options> all_options() {
  std::vector<Options> all;
  for (double decay : {0.0, 0.03}) {
    for (double momentum : {0.0, 0.9})
      for (double dampening : {0.0, 0.2})
        all.push_back(SgdOptions{.lr = 0.1, .momentum = momentum, .dampening = dampening, .weight_decay = decay});
    all.push_back(SgdOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = decay, .nesterov = true});
    for (bool amsgrad : {false, true}) {
      all.push_back(AdamOptions{.lr = 0.01, .beta1 = 0.85, .weight_decay = decay, .amsgrad = amsgrad});
      all.push_back(AdamWOptions{.lr = 0.01, .beta2 = 0.99, .weight_decay = decay, .amsgrad = amsgrad});
    }
    for (double momentum : {0.0, 0.9})
      for (bool centered : {false, true})
        all.push_back(RmspropOptions{
            .alpha = 0.95, .eps = 1e-6, .weight_decay = decay, .momentum = momentum, .centered = centered});
    for (double lr_decay : {0.0, 0.1})
      all.push_back(AdagradOptions{.lr_decay = lr_decay, .weight_decay = decay, .initial_accumulator_value = lr_decay});
    for (bool correction : {false, true})
      all.push_back(LambOptions{.lr = 0.01, .weight_decay = decay, .bias_correction = correction});
  }
  all.push_back(LambOptions{.lr = 0.01, .largest_norm = 2});
  all.push_back(LambOptions{.lr = 0.01, .smallest_norm = 500});
  return all;
}

inline std::string describe(const Options& options) {
  static const char* const names[] = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "LAMB"};
  std::string name = names[options.index()];
  for (const StateField& field : state_fields(options)) name += " " + std::string(field.name);
  return name + std::visit([](const auto& o) { return " decay " + std::to_string(o.weight_decay); }, options);
}

template <class T>
std::vector<T> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(count);
  for (T& value : values) value = normal(random);
  return values;
}

template <class T>
void expect_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(T)), 0) << "value " << i << ": " << a[i] << " and " << b[i];
  }
}

}  // namespace cohive::optim
