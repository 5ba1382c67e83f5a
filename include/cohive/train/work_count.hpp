/// \file
/// WorkCount: the work of other threads on memory that its owner must not free before they have done it.
#pragma once

#include <atomic>
#include <memory>

#include "cohive/core/runtime.hpp"

namespace cohive::train {

/// Counts work that goes on. What the threads did with the memory has happened before a wait for them ends.
class WorkCount {
 public:
  /// Counts one more piece of work, which ends with the last copy of the token. The tokens may outlive this object. Any
  /// thread.
  std::shared_ptr<const void> begin() const {
    state_->going_on.fetch_add(1, std::memory_order_relaxed);
    return {state_.get(), [state = state_](const void*) { state->end(); }};
  }
  /// Waits on the loop for all work that has begun, while other tasks go on.
  Task<void> finished(Runtime& runtime) const {
    if (state_->going_on.load(std::memory_order_acquire) == 0) co_return;
    co_await runtime.offload_io([state = state_] { state->wait(); });
  }
  /// Waits on this thread: for destructors, where finished() was not awaited.
  void wait() const noexcept { state_->wait(); }

 private:
  struct State {
    std::atomic<int> going_on = 0;
    void end() noexcept {
      if (going_on.fetch_sub(1, std::memory_order_acq_rel) == 1) going_on.notify_all();
    }
    void wait() const noexcept {
      for (int left; (left = going_on.load(std::memory_order_acquire)) != 0;)
        going_on.wait(left, std::memory_order_acquire);
    }
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace cohive::train
