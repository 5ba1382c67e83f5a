// What tests of trainers by the C interface share: a model of one parameter, and a trainer of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "handles.hpp"

namespace c_tests {

inline constexpr float kRate = 0.5f;

/// A model of one parameter, with the gradient descent of the caller, or that of the library.
struct Model {
  explicit Model(float value, bool native = false) : values(4, value), is_native(native) {
    calls = {this, step, load, interrupted, nullptr};
  }
  static std::int32_t interrupted(void* context) { return static_cast<Model*>(context)->gives_up ? 1 : 0; }
  static std::int32_t step(void* context, float* const* gradients, std::uint64_t) {
    auto& self = *static_cast<Model*>(context);
    if (self.fails) return 1;
    ++self.steps;
    for (std::size_t i = 0; gradients && gradients[0] && i < self.values.size(); ++i)
      self.values[i] -= kRate * gradients[0][i];
    return 0;
  }
  static std::int32_t load(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                           std::size_t count, std::uint64_t epoch) {
    auto& self = *static_cast<Model*>(context);
    if (count != 1 || tensors[0].size != 4 * sizeof(float)) return 1;
    std::copy_n(static_cast<const float*>(tensors[0].data), 4, self.values.begin());
    self.loaded = epoch;
    return 0;
  }
  cohive_tensor tensor() { return {values.data(), shape.data(), "float32", nullptr, 4 * sizeof(float), 1, 0, 0}; }

  std::vector<float> values;
  const std::vector<std::uint32_t> shape{4};
  bool is_native, fails = false;
  std::atomic<bool> gives_up = false;  // calls end where they wait
  std::atomic<int> steps = 0;
  std::atomic<std::uint64_t> loaded = 0;
  cohive_trainer_calls calls;
};

inline std::string options_of(const std::string& more = "") {
  return R"({"run_id": "run", "target_batch_size": 16, "matchmaking_time": 1.0, "averaging_timeout": 10,
             "request_timeout": 0.8, "delay_state_averaging": false)" +
         more + "}";
}

struct TrainerOwner {
  /// \param beside  what is averaged after the parameter, one tensor; null: nothing
  TrainerOwner(cohive_swarm* swarm, Model& of, const std::string& more = "", const cohive_tensor* beside = nullptr)
      : model(of) {
    const auto tensor = of.tensor();
    const auto options = options_of(more + (of.is_native ? R"(, "native_steps": true)" : ""));
    EXPECT_EQ(cohive_trainer_open(swarm, options.c_str(), &tensor, 1, beside, beside ? 1 : 0, &of.calls, &handle),
              COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(describe(), COHIVE_OK) << cohive_last_error();
  }
  ~TrainerOwner() { cohive_trainer_free(handle); }
  std::int32_t describe() {
    const auto tensor = model.tensor();
    const char* name = "parameter.0";
    float* statistics[4] = {};
    return cohive_trainer_describe(handle, raw("\x81\xa1x\x01"), 4, &tensor, &name, 1,
                                   model.is_native ? R"([{"name": "sgd", "lr": 0.5, "parameters": 1}])" : nullptr,
                                   model.is_native ? statistics : nullptr);
  }
  cohive_step_report step(float gradient, std::int64_t samples = 8) {
    const std::vector<float> gradients(4, gradient);
    const float* pointers[] = {gradients.data()};
    cohive_step_report report{};
    EXPECT_EQ(cohive_trainer_step(handle, pointers, samples, 1, &report), COHIVE_OK) << cohive_last_error();
    return report;
  }
  /// Downloads the state of others, once they share one.
  void load() {
    std::int32_t loaded = 0, code = COHIVE_OK;
    for (int tries = 0; tries < 50 && loaded == 0 && code == COHIVE_OK; ++tries) {
      code = cohive_trainer_load(handle, &loaded);
      EXPECT_EQ(code, COHIVE_OK) << cohive_last_error();
    }
  }
  Model& model;
  cohive_trainer* handle = nullptr;
};

}  // namespace c_tests
