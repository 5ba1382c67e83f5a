#include "cohive/core/sync.hpp"

namespace cohive {
namespace detail {

/// A place in the line of a semaphore. Units granted to it are set aside at once, so no other task overtakes.
class SemaphoreWait : public DeadlineWaiter {
 public:
  SemaphoreWait(Semaphore& semaphore, std::size_t count, Deadline deadline) noexcept
      : DeadlineWaiter(*semaphore.runtime_, semaphore.what_, deadline, &SemaphoreWait::give_up),
        semaphore_(semaphore),
        count_(count) {}
  ~SemaphoreWait() {
    if (granted_.linked()) {  // dropped before it could take them
      granted_.unlink();
      semaphore_.give_back(count_);
    } else if (!woken() && linked()) {
      leave_line();
    }
  }
  bool await_ready() noexcept {
    units_ = semaphore_.try_acquire(count_);
    return static_cast<bool>(units_);
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend_with_deadline(handle);
    semaphore_.line_.push_back(*this);
  }
  Semaphore::Units await_resume() noexcept {
    if (resumed_in_time() && granted_.linked()) {
      granted_.unlink();
      units_ = Semaphore::Units(&semaphore_, count_);
    }
    return std::move(units_);
  }

 private:
  friend class cohive::Semaphore;
  static void give_up(void* self) noexcept {
    auto* place = static_cast<SemaphoreWait*>(self);
    if (!place->woken() && place->linked()) place->leave_line();
    expire(self);
  }
  /// The task that stood behind us may need less.
  void leave_line() noexcept {
    unlink();
    semaphore_.grant();
  }

  Semaphore& semaphore_;  // alive while we are linked in one of its lists
  std::size_t count_;
  Semaphore::Units units_;
  ListHook granted_;
};

}  // namespace detail

Semaphore::Units Semaphore::try_acquire(std::size_t count) noexcept {
  if (!line_.empty() || available_ < count) return {};
  available_ -= count;
  return {this, count};
}

Task<Semaphore::Units> Semaphore::acquire(std::size_t count, Deadline deadline) {
  co_return co_await detail::SemaphoreWait(*this, count, deadline);
}

void Semaphore::give_back(std::size_t count) noexcept {
  available_ += count;
  grant();
}

void Semaphore::grant() noexcept {
  while (!line_.empty() && line_.front().count_ <= available_) {
    detail::SemaphoreWait* next = line_.pop_front();
    available_ -= next->count_;
    granted_.push_back(next->granted_);
    next->wake();
  }
}

}  // namespace cohive
