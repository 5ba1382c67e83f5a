// A tensor that is optimized, with all that its steps need.
#pragma once

#include <vector>

#include "cohive/optim/step.hpp"

namespace cohive::optim {

template <class T>
struct Optimized {
  Optimized(const Options& chosen, std::vector<T> initial) : options(chosen), parameters(std::move(initial)) {
    for (const StateField& field : state_fields(options))
      state.emplace_back(parameters.size(), static_cast<T>(field.initial));
  }

  TensorMemory memory(View gradient) {
    TensorMemory memory{
        .parameters = std::span<const T>(parameters), .result = std::span<T>(parameters), .gradient = gradient};
    for (std::size_t i = 0; i < state.size(); ++i) memory.state[i] = std::span<T>(state[i]);
    return memory;
  }

  void step(std::vector<T> gradient, StepSettings settings) {
    make(TensorStep(options, memory(std::span<T>(gradient)), settings));
  }
  static void make(TensorStep step) {
    step.run(0, step.size());
    if (!step.has_second_phase()) return;
    step.settle();
    step.finish(0, step.size());
  }

  Options options;
  std::vector<T> parameters;
  std::vector<std::vector<T>> state;
};

}  // namespace cohive::optim
