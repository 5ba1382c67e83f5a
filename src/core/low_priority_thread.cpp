#include "core/detail/low_priority_thread.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cohive {
namespace {

/// Beside a busy thread of usual priority Linux gives it a tenth of a processor: signatures of other peers are still
/// checked, within moments, while a model is trained on all processors.
constexpr int kNiceness = 10;

void lower_priority_of_this_thread() {
#ifdef SYS_gettid
  // Of threads on Linux the priority is their own. Where it cannot be lowered, the thread is but one among the others.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
#endif
}

}  // namespace

LowPriorityThread::~LowPriorityThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LowPriorityThread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) thread_ = std::thread([this] { work_off(); });
  }
  changed_.notify_one();
}

void LowPriorityThread::work_off() {
  lower_priority_of_this_thread();
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
  }
}

}  // namespace cohive
