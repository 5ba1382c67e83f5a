// A scheduler of LibTorch that follows the epochs of a run: the learning rate of epoch n is that of PyTorch's scheduler
// after n steps. PyTorch's schedulers take one more step when they are made, LibTorch's do not: it is taken here.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "cohive/core/log.hpp"
#include "cohive/torch/schedules.hpp"
#include "optimizer_layout.hpp"
#include "refuse.hpp"

namespace cohive::libtorch {

/// Steps that a scheduler makes at once, on the loop: less than a second. Peers may claim any epoch.
inline constexpr std::uint64_t kMostStepsAtOnce = 1'000'000;

class Schedule {
 public:
  /// \param make  makes the scheduler of `optimizer`, whose learning rates are the first ones; null: there is none
  Schedule(SchedulerFn make, torch::optim::Optimizer& optimizer) : make_(std::move(make)), optimizer_(optimizer) {
    if (!make_) return;
    scheduler_ = made();
    const auto* by_factor = dynamic_cast<FactorLR*>(scheduler_.get());
    for (auto& group : optimizer.param_groups()) {
      rates_.push_back(group.options().get_lr());
      entries_.push_back(by_factor ? by_factor->kept_in_group(rates_.back())
                                   : ScheduleEntries{{"initial_lr", rates_.back()}});
    }
    enter_epoch(0);
  }
  /// Returns what PyTorch's scheduler keeps in each group; none without a scheduler.
  const std::vector<ScheduleEntries>& entries() const noexcept { return entries_; }
  /// Sets the learning rates of an epoch: steps the scheduler once for every epoch that has begun, and makes another
  /// one where an earlier epoch begins again.
  void enter_epoch(std::uint64_t epoch) {
    if (!scheduler_ || steps_ == epoch + 1) return;
    if (auto* const by_factor = dynamic_cast<FactorLR*>(scheduler_.get())) {
      by_factor->enter_epoch(epoch);
      steps_ = epoch + 1;
      return;
    }
    if (steps_ > epoch) begin_anew();
    if (epoch - steps_ >= kMostStepsAtOnce) {
      log::warn("torch", "no run has come to epoch {}: the scheduler makes {} steps towards it, and no more", epoch,
                kMostStepsAtOnce);
      steps_ = epoch + 1 - kMostStepsAtOnce;
    }
    for (; steps_ <= epoch; ++steps_) scheduler_->step();
  }

 private:
  /// A scheduler of LibTorch goes forward alone, from the rates that it finds.
  void begin_anew() {
    for (std::size_t i = 0; i < rates_.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates_[i]);
    scheduler_ = made();
    steps_ = 0;
  }
  std::unique_ptr<torch::optim::LRScheduler> made() const {
    auto scheduler = make_(optimizer_);
    demand(scheduler != nullptr, "the function that makes the scheduler returned null");
    return scheduler;
  }

  const SchedulerFn make_;
  torch::optim::Optimizer& optimizer_;
  std::unique_ptr<torch::optim::LRScheduler> scheduler_;
  std::vector<double> rates_;  // of the groups, before the first step
  std::vector<ScheduleEntries> entries_;
  std::uint64_t steps_ = 0;
};

}  // namespace cohive::libtorch
