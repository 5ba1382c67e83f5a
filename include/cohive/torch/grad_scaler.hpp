/// \file
/// GradScaler: scales losses so that small gradients are not lost in half precision, as torch.amp.GradScaler does,
/// together with Optimizer, whose steps come once in an epoch. hivemind.GradScaler's rules.
///
///   cohive::GradScaler scaler;
///   for (auto& batch : loader) {
///     scaler.scale(loss(model, batch)).backward();
///     scaler.step(optimizer, batch.size());
///     scaler.update();
///   }
#pragma once

#include <cstdint>

#include "cohive/torch/optimizer.hpp"

namespace cohive {

/// The arguments of torch.amp.GradScaler, with its names and defaults.
struct GradScalerOptions {
  double init_scale = 65536;            ///< the first scale, above 0
  double growth_factor = 2;             ///< what the scale is multiplied by when it grows; above 1
  double backoff_factor = 0.5;          ///< the same after an overflow; between 0 and 1
  std::int64_t growth_interval = 2000;  ///< epochs in a row without an overflow, after which the scale grows
  bool enabled = true;                  ///< false: losses are not scaled, and no gradient is looked at
};

/// What state_dict() returns, under the names of torch.amp.GradScaler's.
struct GradScalerState {
  double scale = 65536,                 ///< what losses are multiplied by; above 0
      growth_factor = 2,                ///< see GradScalerOptions
      backoff_factor = 0.5;             ///< the same
  std::int64_t growth_interval = 2000,  ///< the same, in epochs
      growth_tracker = 0;               ///< epochs in a row without an overflow, so far
};

/// Gradients keep the scale until the optimizer adds them up as float32: until then nothing is lost. Used from the
/// trainer's thread.
class GradScaler {
 public:
  /// Throws std::invalid_argument with a sentence for options out of range.
  explicit GradScaler(GradScalerOptions options = {});

  /// Returns the loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Looks whether all gradients are finite: true. They keep their scale, as with hivemind before a global step. step()
  /// calls it where the trainer has not.
  bool unscale_(const Optimizer& optimizer);
  /// Steps with the gradients of a batch. Where one is not finite the batch does not count: nothing is added, and with
  /// reuse_grad_buffers the epoch begins anew for this peer, as all its gradients are in these buffers.
  StepReport step(Optimizer& optimizer, std::int64_t batch_size);
  /// Call after step(): lowers the scale after a batch that did not count, and raises it after growth_interval epochs
  /// without any. Nothing changes in the middle of an epoch otherwise.
  void update();

  /// Returns what losses are multiplied by now; 1 when disabled.
  double get_scale() const noexcept { return options_.enabled ? state_.scale : 1; }
  /// Tells whether losses are scaled: GradScalerOptions::enabled.
  bool is_enabled() const noexcept { return options_.enabled; }
  /// Returns what load_state_dict() goes on from.
  const GradScalerState& state_dict() const noexcept { return state_; }
  /// Returns what state_dict() will return after update(): for a checkpoint that is written inside of step().
  /// \param epoch_ended  the step that goes on has ended an epoch
  GradScalerState state_after_update(bool epoch_ended) const;
  /// Throws std::invalid_argument with a sentence for numbers out of range.
  void load_state_dict(const GradScalerState& state);

 private:
  friend class Optimizer;
  /// Takes note of a step of the optimizer.
  void stepped(bool finite, bool epoch_ended);
  GradScalerState updated(bool found_inf, bool epoch_ended) const;

  GradScalerOptions options_;
  GradScalerState state_;
  const Optimizer* looked_at_ = nullptr;  // by unscale_, before the step
  bool looked_finite_ = true;
  bool found_inf_ = false, epoch_ended_ = false;  // since update()
};

}  // namespace cohive
