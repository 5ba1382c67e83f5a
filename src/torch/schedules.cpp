#include "cohive/torch/schedules.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>

namespace cohive {
namespace {

void demand_of_schedule(bool fine, const char* sentence) {
  if (!fine) throw std::invalid_argument(std::string("cohive: ") + sentence);
}

/// From `from` to `to` in half a wave.
double half_wave(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

/// How much of a schedule is over, at most all of it.
double share_of(std::uint64_t epoch, std::uint64_t epochs) {
  return std::min(1.0, static_cast<double>(epoch) / static_cast<double>(epochs));
}

/// A type of its own, by which FactorLR knows it again.
class OneCycle {
 public:
  OneCycle(std::uint64_t epochs, const OneCycleOptions& o)
      : first_(1 / o.div_factor),
        last_(first_ / o.final_div_factor),
        end_(static_cast<double>(epochs - 1)),
        top_(std::max(0.0, o.share_of_rise * static_cast<double>(epochs) - 1)) {}
  double operator()(std::uint64_t epoch) const {
    const double at = std::min(static_cast<double>(epoch), end_);
    if (at < top_) return half_wave(first_, 1, at / top_);
    return top_ < end_ ? half_wave(1, last_, (at - top_) / (end_ - top_)) : 1.0;
  }
  double first() const { return first_; }
  double last() const { return last_; }

 private:
  double first_, last_;  // factors
  double end_, top_;     // epochs
};

}  // namespace

EpochFactor exponential(double gamma) {
  demand_of_schedule(gamma > 0 && std::isfinite(gamma), "an exponential schedule needs a gamma above 0");
  return [gamma](std::uint64_t epoch) { return std::pow(gamma, static_cast<double>(epoch)); };
}

EpochFactor linear(std::uint64_t epochs, double least) {
  demand_of_schedule(epochs > 0, "a linear schedule needs the number of epochs that it takes");
  demand_of_schedule(least >= 0 && std::isfinite(least), "the last factor of a schedule must not be negative");
  return [=](std::uint64_t epoch) { return 1 + (least - 1) * share_of(epoch, epochs); };
}

EpochFactor cosine(std::uint64_t epochs, double least) {
  demand_of_schedule(epochs > 0, "a cosine schedule needs the number of epochs that it takes");
  demand_of_schedule(least >= 0 && std::isfinite(least), "the last factor of a schedule must not be negative");
  return [=](std::uint64_t epoch) { return half_wave(1, least, share_of(epoch, epochs)); };
}

EpochFactor linear_warmup(std::uint64_t epochs, EpochFactor then, double first) {
  demand_of_schedule(first >= 0 && std::isfinite(first), "the first factor of a schedule must not be negative");
  return [=](std::uint64_t epoch) {
    if (epoch < epochs) return first + (1 - first) * share_of(epoch, epochs);
    return then ? then(epoch - epochs) : 1.0;
  };
}

EpochFactor one_cycle(std::uint64_t epochs, OneCycleOptions o) {
  demand_of_schedule(epochs >= 2, "a one-cycle schedule needs the number of epochs that it takes, 2 at least");
  demand_of_schedule(o.share_of_rise >= 0 && o.share_of_rise <= 1,
                     "the share of the rise in a one-cycle schedule is between 0 and 1");
  demand_of_schedule(o.div_factor > 0 && o.final_div_factor > 0,
                     "the divisors of a one-cycle schedule must be above 0");
  return OneCycle(epochs, o);
}

FactorLR::FactorLR(torch::optim::Optimizer& optimizer, EpochFactor factor)
    : LRScheduler(optimizer), rates_(get_current_lrs()), factor_(std::move(factor)) {
  demand_of_schedule(factor_ != nullptr, "a schedule needs a function of the epoch");
}

std::vector<std::pair<std::string, double>> FactorLR::kept_in_group(double rate) const {
  if (const auto* cycle = factor_.target<OneCycle>())
    return {{"initial_lr", rate * cycle->first()}, {"max_lr", rate}, {"min_lr", rate * cycle->last()}};
  return {{"initial_lr", rate}};
}

/// LibTorch counts in fewer bits than runs may have epochs.
void FactorLR::enter_epoch(std::uint64_t epoch) {
  step_count_ = static_cast<unsigned>(std::min<std::uint64_t>(epoch, std::numeric_limits<unsigned>::max() - 1));
  step();
}

std::vector<double> FactorLR::get_lrs() {
  std::vector<double> rates = rates_;
  const double factor = factor_(step_count_);
  for (double& rate : rates) rate *= factor;
  return rates;
}

SchedulerFn schedule(EpochFactor factor) {
  return [factor](torch::optim::Optimizer& optimizer) { return std::make_unique<FactorLR>(optimizer, factor); };
}

}  // namespace cohive
