/// \file
/// Gradients averaged by PowerSGD: hivemind's PowerSGDGradientAverager, for RunOptions::grad_averager_factory.
#pragma once

#include "cohive/averaging/power_sgd.hpp"
#include "cohive/train/run_options.hpp"

namespace cohive::train {

/// Returns a factory of averagers that send large gradients as low-rank factors. All trainers of a run need the same
/// options; Python trainers join with PowerSGDGradientAverager. Newcomers take the factors of a member when they load
/// its state, and what was owed before is forgotten then. Throws std::invalid_argument for impossible options; the
/// factory does so for an agreed codec, which factors do not use.
GradAveragerFactory power_sgd_averager(averaging::PowerSgdOptions options);

}  // namespace cohive::train
