/// \file
/// TrainerThread: lets the loop run functions on the trainer's thread while that waits in a call of a Trainer, such as
/// an optimizer's step in a language whose interpreter has a lock.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "cohive/core/runtime.hpp"

namespace cohive::train {

/// The functions that wait for the trainer's thread. Owned by a Trainer, which outlives the replica that uses it.
class TrainerThread {
 public:
  TrainerThread() = default;
  TrainerThread(const TrainerThread&) = delete;

  /// Runs a function on the trainer's thread: at once where that waits, else in its next call that waits. The loop's
  /// thread. An exception of the function comes through. Cancellation: a function that has not begun is not run; one
  /// that has begun is waited for by the thread that runs it, and not by the loop: it keeps what it uses by itself.
  Task<void> run(Runtime& runtime, std::function<void()> function);

  /// The trainer's thread: runs functions until `ended` returns true or notify() has come and it does. It is called
  /// without locks, about every `look` where that is not 0.
  void run_until(const std::function<bool()>& ended, Duration look = 0s);
  /// Has run_until look again. Any thread.
  void notify();

 private:
  struct Job;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool notified_ = false;
};

}  // namespace cohive::train
