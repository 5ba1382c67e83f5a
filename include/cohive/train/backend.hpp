/// \file
/// Backend: where the values of a FusedReplica live, and what computes with them there. The host's is here; that of a
/// GPU is in cohive/cuda/backend.hpp. All memory that a backend is given, views and spans included, is of its own kind.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/optim/parallel.hpp"
#include "cohive/train/buffer.hpp"

namespace cohive::train {

/// The step of one parameter.
struct ParameterStep {
  optim::Options options;        ///< which optimizer, and how
  optim::TensorMemory memory;    ///< what it reads and writes
  optim::StepSettings settings;  ///< of this step
  /// This peer has a gradient of the parameter. Otherwise the step waits for the whole average, and is not made where
  /// that is zero: no member had a gradient then, and LibTorch's optimizers leave such a parameter alone.
  bool has_gradient = true;
};

/// The gradients of an epoch, and what is made of them.
struct GradientWork {
  std::vector<averaging::TensorInfo> infos;  ///< of the gradients
  std::vector<Buffer> sums;                  ///< the gradients themselves, in the order of `infos`
  double factor = 1;                         ///< makes them means; applied as a round goes through them
  averaging::ResidualsPtr residuals;         ///< what rounds owe of them
  std::vector<ParameterStep> steps;          ///< one for each gradient, whose memory they read; empty: no step
  /// Bounds the norm of all averages together: the step waits for the last of them then. Otherwise each stretch is
  /// stepped as soon as its average is there.
  std::optional<double> max_norm;
  std::shared_ptr<const void> in_use;  ///< held while memory of the steps is used
  /// Told of stretches whose step is made while averages are still on their way, by the thread that has made it: calls
  /// for different stretches run at once. The host's backend calls it, where the step does not need whole tensors.
  std::function<void(const averaging::Stretch&)> stepped = nullptr;
};

/// The gradients of an epoch in their round. The memory is used until it dies.
class GradientRound {
 public:
  virtual ~GradientRound() = default;
  /// Returns the gradients as tensors of the round.
  virtual std::shared_ptr<averaging::TensorParts> parts() = 0;
  /// Makes what is left of the step once the parts have finished: all of it with a bound of the norm, else what needs
  /// whole tensors. Returns which parameters have taken a step; the others have their values and statistics as before.
  virtual Task<std::vector<bool>> finish_step() = 0;
};

/// Loop thread, unless said otherwise. Results do not depend on the backend: every operation rounds alike. What a
/// device reports as an error is thrown as std::runtime_error.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Returns memory for `size` values, which are undefined. Any thread.
  virtual Buffer allocate(std::size_t size) = 0;
  /// Tells whether the memory is the host's.
  virtual bool is_host() const noexcept { return false; }
  /// Makes work that is asked for from now on begin after what the calling thread has given its device to do: the
  /// trainer's gradients, or values that a thread of the pool has written. At once. Any thread.
  virtual void follow_caller() {}

  /// As the functions of optim with these names. \param owner  keeps the memory
  virtual Task<bool> all_finite(std::vector<optim::ConstView> values, std::shared_ptr<const void> owner) = 0;
  /// See all_finite.
  virtual Task<bool> accumulate(std::vector<optim::Addition> additions, optim::Accumulating how,
                                std::shared_ptr<const void> owner) = 0;
  /// Copies float32 values. See all_finite.
  virtual Task<void> copy(std::vector<averaging::TensorSpan> copies, std::shared_ptr<const void> owner) = 0;
  /// Writes zeros.
  virtual Task<void> clear(std::vector<Buffer> buffers) = 0;

  /// Prepares a round of gradients.
  virtual std::shared_ptr<GradientRound> gradient_round(GradientWork work) = 0;
  /// Returns parameters as tensors of a round. \param differences  as HostPartsOptions has them
  virtual std::shared_ptr<averaging::TensorParts> state_parts(std::vector<averaging::TensorInfo> infos,
                                                              std::vector<averaging::TensorSpan> memory,
                                                              bool differences) = 0;
  /// live += change, in the order of the trainer's own work; `change` stays until that is done. The thread of
  /// Replica::publish().
  virtual void add_to_live(std::span<float> change, std::span<float> live) = 0;
};

/// Returns the backend of host memory: passes on the runtime's pool.
std::shared_ptr<Backend> host_backend(Runtime& runtime);

}  // namespace cohive::train
