/// \file
/// GradientAverager: averages the gradients of a run, among peers of the same class. Derived classes average otherwise
/// (PowerSGD, say), and are given to a run by RunOptions::grad_averager_factory. Source: docs/wire/hivemind.md, section
/// 7.2. Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/checkpoint/safetensors.hpp"

namespace cohive::train {

/// Averages gradients in rounds of a run; derived classes choose another scheme. Loop thread only.
class GradientAverager {
 public:
  /// \param options  of the run; what a derived class wants otherwise, it changes before it calls this constructor
  GradientAverager(Dht& dht, std::vector<averaging::TensorInfo> gradients, averaging::AveragerOptions options);
  virtual ~GradientAverager() = default;
  GradientAverager(const GradientAverager&) = delete;

  /// Begins to answer peers that look for a group; to be called once.
  virtual void start() { averager_.start(); }
  /// Forgets what earlier rounds left behind: the model was replaced.
  virtual void reset() {}
  /// Downloads what newcomers need beside the state of the run, if anything.
  virtual Task<void> load_state(Deadline deadline);

  /// Returns what later rounds go by beside the gradients, for a checkpoint, under names of its own. Called while no
  /// round changes it.
  virtual Task<std::vector<checkpoint::NamedTensor>> save();
  /// Goes on with what save() returned before a pause; reset() came before. Errors: for tensors that do not fit, then
  /// nothing is changed.
  virtual Task<Result<>> restore(std::vector<checkpoint::NamedTensor> saved);

  /// Returns the averager whose rounds these are; it lives as long as this object.
  averaging::Averager& averager() noexcept { return averager_; }

 private:
  averaging::Averager averager_;
};

}  // namespace cohive::train
