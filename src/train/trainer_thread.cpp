#include "cohive/train/trainer_thread.hpp"

#include <algorithm>

#include "cohive/core/on_exit.hpp"
#include "cohive/core/sync.hpp"

namespace cohive::train {

struct TrainerThread::Job {
  Job(Runtime& loop, std::function<void()> of)
      : runtime(loop), function(std::move(of)), done(loop, "the trainer's thread") {}
  Runtime& runtime;
  std::function<void()> function;
  std::exception_ptr failure;  // written before `done` is set
  Event done;                  // of the loop
};

Task<void> TrainerThread::run(Runtime& runtime, std::function<void()> function) {
  const auto job = std::make_shared<Job>(runtime, std::move(function));
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  changed_.notify_all();
  const auto withdrawn = on_exit([this, &job] {
    const std::lock_guard lock(mutex_);
    std::erase(jobs_, job);
  });
  co_await job->done.wait();
  if (job->failure) std::rethrow_exception(job->failure);
}

void TrainerThread::run_until(const std::function<bool()>& ended, Duration look) {
  std::unique_lock lock(mutex_);
  const auto news = [this] { return notified_ || !jobs_.empty(); };
  for (;;) {
    if (!jobs_.empty()) {
      const auto job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      try {
        job->function();
      } catch (...) {
        job->failure = std::current_exception();
      }
      job->function = nullptr;  // what it holds goes here, and not whenever the loop is done with it
      job->runtime.post([job] { job->done.set(); });
      lock.lock();
      continue;
    }
    notified_ = false;
    lock.unlock();
    if (ended()) return;
    lock.lock();
    look > 0s ? (void)changed_.wait_for(lock, look, news) : changed_.wait(lock, news);
  }
}

void TrainerThread::notify() {
  {
    const std::lock_guard lock(mutex_);
    notified_ = true;
  }
  changed_.notify_all();
}

}  // namespace cohive::train
