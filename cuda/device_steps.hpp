// Optimizer steps of parameters on a device.
#pragma once

#include <vector>

#include "cohive/train/backend.hpp"
#include "lanes.hpp"

namespace cohive::cuda {

/// The steps of all parameters in one epoch. Loop thread.
class DeviceSteps {
 public:
  /// Throws std::invalid_argument for what optim::TensorStep does not take, and for values that are not float32.
  explicit DeviceSteps(std::vector<train::ParameterStep> steps);

  bool empty() const noexcept { return steps_.empty(); }
  /// Queues the step of a stretch of a parameter that this peer has a gradient of; of LAMB the part that looks at every
  /// value by itself.
  Result<> queue(const averaging::Stretch& stretch, Stream& stream);
  /// Makes the rest of the steps, once the averages are there and nothing is queued: whole tensors where `all` is set,
  /// else those of parameters that only other members have a gradient of, and what needs norms of whole tensors.
  /// Returns which parameters have taken a step.
  Task<Result<std::vector<bool>>> finish(Lanes& lanes, Lane& lane, bool all);

 private:
  Task<Result<std::vector<bool>>> find_steps(Lanes& lanes, Lane& lane) const;
  Result<> queue_step(const averaging::Stretch& stretch, Stream& stream);
  Task<Result<>> finish_lamb(Lanes& lanes, Lane& lane, std::vector<bool> steps);

  std::vector<train::ParameterStep> steps_;
};

/// Returns the sum of the squares of each tensor's values, added up as the host does. The lane must have nothing
/// queued.
Task<Result<std::vector<double>>> square_sums(Lanes& lanes, Lane& lane, std::vector<std::span<const float>> tensors);

}  // namespace cohive::cuda
