#include "cohive/torch/grad_scaler.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace cohive {
namespace {

void check(const GradScalerState& state) {
  const auto demand = [](bool fine, const char* sentence) {
    if (!fine) throw std::invalid_argument(std::string("cohive::GradScaler: ") + sentence);
  };
  demand(state.scale > 0 && std::isfinite(state.scale), "the scale must be above 0");
  demand(state.growth_factor > 1 && std::isfinite(state.growth_factor), "growth_factor must be above 1");
  demand(state.backoff_factor > 0 && state.backoff_factor < 1, "backoff_factor must be between 0 and 1");
  demand(state.growth_interval > 0, "growth_interval must be at least 1");
  demand(state.growth_tracker >= 0, "growth_tracker must not be negative");
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  load_state_dict({options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval});
}

void GradScaler::load_state_dict(const GradScalerState& state) {
  check(state);
  state_ = state;
  looked_at_ = nullptr;
  found_inf_ = epoch_ended_ = false;
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss * torch::tensor(state_.scale, torch::TensorOptions(torch::kFloat32).device(loss.device()));
}

bool GradScaler::unscale_(const Optimizer& optimizer) {
  if (!options_.enabled) return true;
  looked_at_ = &optimizer;
  return looked_finite_ = optimizer.has_finite_gradients();
}

StepReport GradScaler::step(Optimizer& optimizer, std::int64_t batch_size) {
  return optimizer.step(batch_size, *this);
}

void GradScaler::stepped(bool finite, bool epoch_ended) {
  looked_at_ = nullptr;
  found_inf_ |= !finite;
  epoch_ended_ |= epoch_ended;
}

void GradScaler::update() {
  state_ = updated(std::exchange(found_inf_, false), std::exchange(epoch_ended_, false));
}

GradScalerState GradScaler::state_after_update(bool epoch_ended) const {
  return updated(found_inf_ || (looked_at_ && !looked_finite_), epoch_ended_ || epoch_ended);
}

GradScalerState GradScaler::updated(bool found_inf, bool epoch_ended) const {
  GradScalerState state = state_;
  if (found_inf) {
    state.scale = std::max<double>(state.scale * state.backoff_factor, std::numeric_limits<float>::min());
    state.growth_tracker = 0;
  } else if (epoch_ended && ++state.growth_tracker >= state.growth_interval) {
    state.growth_tracker = 0;
    const double grown = state.scale * state.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) state.scale = grown;
  }
  return state;
}

}  // namespace cohive
