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
  /// Queues the step of a stretch; of LAMB the part that looks at every value by itself.
  Result<> queue(const averaging::Stretch& stretch, Stream& stream);
  /// Queues the steps of whole tensors.
  Result<> queue_all(Stream& stream);
  /// Makes what needs norms of whole tensors, once all stretches were queued and done.
  Task<Result<>> finish(Lanes& lanes, Lane& lane);

 private:
  std::vector<train::ParameterStep> steps_;
};

/// Returns the sum of the squares of all values, added up as the host does. The lane must have nothing queued.
Task<Result<double>> square_sum(Lanes& lanes, Lane& lane, std::vector<train::Buffer> tensors);

}  // namespace cohive::cuda
