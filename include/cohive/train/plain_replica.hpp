/// \file
/// PlainReplica: a model of plain float32 buffers with an optimizer of cohive, for trainers without a machine-learning
/// library and for simulated runs. The trainer computes gradients by itself:
///
///   std::vector<float>& gradient = ...;              // of the model's live parameters
///   replica.add_gradients({gradient}, batch_size);
///   if (run.count(batch_size) == Run::Next::synchronise) co_await run.synchronise();
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "cohive/train/fused_replica.hpp"

namespace cohive::train {

/// A model of plain floats with an optimizer of cohive, for programs without LibTorch and for simulations.
class PlainReplica final : public FusedReplica {
 public:
  /// Begins with parameters of zero. \param shapes  of the parameters
  PlainReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, optim::Options optimizer);
  ~PlainReplica() override { wait_until_unused(); }

  /// The live parameters: to be read by the trainer, and written before the run begins. They move when next parameters
  /// are published.
  std::span<float> parameter(std::size_t index) { return live_[index].values; }
  /// Returns the number of parameters.
  std::size_t parameters() const noexcept { return live_.size(); }

  /// Adds the mean gradients of a batch, one for each parameter; an empty one where the batch has none: a parameter of
  /// which no peer has a gradient in an epoch takes no step. The values are copied. The trainer's thread.
  void add_gradients(const std::vector<std::span<const float>>& gradients, double samples);
  /// With local updates: steps with the gradients of one batch at once, which may be empty, too. The trainer's thread.
  void step_locally(const std::vector<std::span<const float>>& gradients);
  /// Sets the options of the steps from an epoch on; called with each new epoch on the loop's thread.
  void schedule(std::function<optim::Options(std::uint64_t epoch)> schedule);

  Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) override;
  Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) override;
  void enter_epoch(std::uint64_t epoch) override;

 protected:
  std::span<float> live(std::size_t parameter) override { return live_[parameter].values; }
  void exchange_live(std::size_t parameter, Buffer& next) override { std::swap(live_[parameter], next); }
  optim::Options options(std::size_t) override { return options_; }
  std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter) override;
  std::int64_t steps_taken(std::size_t parameter) override { return steps_[parameter]; }
  void count_step(std::size_t parameter) override { ++steps_[parameter]; }

 private:
  std::vector<std::size_t> statistics_by_name() const;
  void check_gradients(const std::vector<std::span<const float>>& gradients) const;
  std::vector<Buffer> live_;
  std::vector<std::vector<Buffer>> statistics_;  // by parameter
  optim::Options options_;
  std::vector<std::int64_t> steps_;  // by parameter
  std::function<optim::Options(std::uint64_t)> schedule_;
  std::mutex stepping_;  // local steps and copies exclude one another
};

}  // namespace cohive::train
