// One training step of a LibTorch model in several ways: who steps, where, and who waits for it.
#pragma once

#include <torch/torch.h>

#include <nlohmann/json.hpp>

namespace cohive::bench {

struct StepSettings {
  double seconds = 3;          ///< how long each way is measured
  std::size_t megabytes = 64;  ///< of parameters
  std::int64_t side = 1024;    ///< of the layers' matrices
};

/// Milliseconds of a step beyond the batches, and the share of an offloaded step that the batches hide.
nlohmann::json steps(torch::Device device, const StepSettings& settings);

}  // namespace cohive::bench
