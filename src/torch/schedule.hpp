// A scheduler of LibTorch that follows the epochs of a run: the learning rate of epoch n is that of PyTorch's scheduler
// after n steps. PyTorch's schedulers take one more step when they are made, LibTorch's do not: it is taken here.
#pragma once

#include <torch/torch.h>

namespace cohive::libtorch {

class Schedule {
 public:
  explicit Schedule(torch::optim::LRScheduler* scheduler) : scheduler_(scheduler) { enter_epoch(0); }
  /// Steps the scheduler once for every epoch that has begun; epochs never go back.
  void enter_epoch(std::uint64_t epoch) {
    for (; scheduler_ && steps_ <= epoch; ++steps_) scheduler_->step();
  }

 private:
  torch::optim::LRScheduler* scheduler_;
  std::uint64_t steps_ = 0;
};

}  // namespace cohive::libtorch
