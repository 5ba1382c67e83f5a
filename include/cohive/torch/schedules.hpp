/// \file
/// Schedules of the learning rate by epochs of the run, for Optimizer and Strategy: what PyTorch has and LibTorch
/// lacks.
///
///   cohive::Optimizer optimizer(swarm, adam, options, cohive::schedule(cohive::linear_warmup(10,
///   cohive::cosine(1000))));
///
/// A schedule is a function of the epoch that returns a factor of the optimizer's own learning rates, so a peer that
/// joins late or is restarted takes the rate of the epoch, whatever it did before.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohive/torch/optimizer.hpp"

namespace cohive {

/// Returns what learning rates are multiplied by in an epoch; epochs begin with 0.
using EpochFactor = std::function<double(std::uint64_t epoch)>;

// Throw std::invalid_argument with a sentence for numbers out of range.

/// gamma^epoch, as PyTorch's ExponentialLR.
EpochFactor exponential(double gamma);
/// From 1 to `least` in a straight line, which it keeps after `epochs`.
EpochFactor linear(std::uint64_t epochs, double least = 0);
/// From 1 to `least` in half a wave, which it keeps after `epochs`; until then as PyTorch's CosineAnnealingLR.
EpochFactor cosine(std::uint64_t epochs, double least = 0);
/// From `first` to 1 in a straight line of `epochs`, then `then`, whose epochs begin there. With `linear` or `cosine`
/// these are get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup of Hugging Face.
EpochFactor linear_warmup(std::uint64_t epochs, EpochFactor then = nullptr, double first = 0);

/// The arguments of PyTorch's OneCycleLR, as factors of the optimizer's learning rate.
struct OneCycleOptions {
  double share_of_rise = 0.3;     ///< pct_start
  double div_factor = 25;         ///< 1 / the first factor
  double final_div_factor = 1e4;  ///< the first factor / the last one
};
/// As PyTorch's OneCycleLR with total_steps = epochs >= 2 and cycle_momentum = False, whose max_lr is the optimizer's
/// learning rate; keeps the last factor.
EpochFactor one_cycle(std::uint64_t epochs, OneCycleOptions options = {});

/// A LibTorch scheduler of a factor: PyTorch's LambdaLR. The learning rates are those that the groups have when it is
/// made.
class FactorLR : public torch::optim::LRScheduler {
 public:
  /// Schedules all groups of `optimizer`, which outlives this object. Throws for a null factor.
  FactorLR(torch::optim::Optimizer& optimizer, EpochFactor factor);
  /// Returns what PyTorch's scheduler keeps in a group of parameters whose learning rate was `rate` when it was made,
  /// by its keys: {"initial_lr", rate}, and more of one_cycle(). Python trainers expect it in a state.
  std::vector<std::pair<std::string, double>> kept_in_group(double rate) const;
  /// Sets the learning rates of an epoch, however far it is from the last one; step() goes on from there.
  void enter_epoch(std::uint64_t epoch);

 protected:
  /// Returns the learning rates of the groups in the epoch that begins.
  std::vector<double> get_lrs() override;

 private:
  std::vector<double> rates_;
  EpochFactor factor_;
};

/// For the last argument of Optimizer, or StrategyOptions::scheduler_fn.
SchedulerFn schedule(EpochFactor factor);

}  // namespace cohive
