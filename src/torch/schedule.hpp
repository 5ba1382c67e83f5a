// A scheduler of LibTorch that follows the epochs of a run: the learning rate of epoch n is that of PyTorch's scheduler
// after n steps. PyTorch's schedulers take one more step when they are made, LibTorch's do not: it is taken here.
#pragma once

#include <torch/torch.h>

#include "cohive/torch/schedules.hpp"
#include "optimizer_layout.hpp"

namespace cohive::libtorch {

class Schedule {
 public:
  /// \param optimizer  that `scheduler` (null: none) was made of, with the learning rates that it had then
  Schedule(torch::optim::LRScheduler* scheduler, torch::optim::Optimizer& optimizer) : scheduler_(scheduler) {
    const auto* by_factor = dynamic_cast<FactorLR*>(scheduler);
    if (scheduler)
      for (auto& group : optimizer.param_groups()) {
        const double rate = group.options().get_lr();
        entries_.push_back(by_factor ? by_factor->kept_in_group(rate) : ScheduleEntries{{"initial_lr", rate}});
      }
    enter_epoch(0);
  }
  /// Returns what PyTorch's scheduler keeps in each group; none without a scheduler.
  const std::vector<ScheduleEntries>& entries() const noexcept { return entries_; }
  /// Steps the scheduler once for every epoch that has begun; epochs never go back.
  void enter_epoch(std::uint64_t epoch) {
    for (; scheduler_ && steps_ <= epoch; ++steps_) scheduler_->step();
  }

 private:
  torch::optim::LRScheduler* scheduler_;
  std::vector<ScheduleEntries> entries_;
  std::uint64_t steps_ = 0;
};

}  // namespace cohive::libtorch
