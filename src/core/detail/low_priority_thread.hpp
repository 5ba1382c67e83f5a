// One thread of low priority for work that strangers cause, such as checks of their signatures. The pool of the runtime
// (Runtime::offload) stays free for what this program does for itself, and where all processors are busy the system
// gives this thread a small part of one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "cohive/core/on_exit.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/sync.hpp"

namespace cohive {

class LowPriorityThread {
 public:
  /// The thread starts with the first work. The runtime must outlive this object.
  explicit LowPriorityThread(Runtime& runtime) : runtime_(runtime) {}
  /// Waits for the work that goes on; what has not begun is dropped.
  ~LowPriorityThread();
  LowPriorityThread(const LowPriorityThread&) = delete;
  LowPriorityThread& operator=(const LowPriorityThread&) = delete;

  /// Runs `work()` there, in turn, and returns its result or rethrows. It must own all it touches: as for
  /// Runtime::offload. Under simulation it runs at once, in place.
  template <class F>
  Task<std::invoke_result_t<F&>> run(F work) {
    if (runtime_.simulated()) {
      const Runtime::OffLoop elsewhere(runtime_);
      co_return work();
    }
    auto job = std::make_shared<Job<F>>(runtime_, std::move(work));
    const auto given_up = on_exit([job] { job->abandoned = true; });
    post([job, &runtime = runtime_] {
      if (!job->abandoned) job->execute();
      runtime.post([job] { job->done.set(); });
    });
    co_await job->done.wait();
    if (job->exception) std::rethrow_exception(job->exception);
    co_return std::move(*job->result);
  }

 private:
  template <class F>
  struct Job {
    Job(Runtime& runtime, F function) : work(std::move(function)), done(runtime, "work of low priority") {}
    void execute() noexcept {
      try {
        result.emplace(work());
      } catch (...) {
        exception = std::current_exception();
      }
    }
    F work;
    std::optional<std::invoke_result_t<F&>> result;
    std::exception_ptr exception;
    std::atomic<bool> abandoned = false;
    Event done;
  };
  void post(std::function<void()> job);
  void work_off();

  Runtime& runtime_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace cohive
