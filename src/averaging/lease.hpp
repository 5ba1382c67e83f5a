// The caller's tensors, as work on other threads uses them. Such work may outlive the task that asked for it; the
// tensors belong to a caller who gets them back when the round ends.
#pragma once

#include <atomic>

namespace cohive::averaging {

class TensorLease {
 public:
  /// Worker threads: runs `work` unless the lease has ended; tells whether it ran.
  template <class Work>
  bool use(Work&& work) {
    users_.fetch_add(1);
    const bool open = !ended_.load();
    if (open) work();
    if (users_.fetch_sub(1) == 1) users_.notify_all();
    return open;
  }
  /// Afterwards nothing touches the tensors. Blocks while work is in progress: at most the arithmetic of one part.
  void end() noexcept {
    ended_.store(true);
    for (int users = users_.load(); users != 0; users = users_.load()) users_.wait(users);
  }

 private:
  std::atomic<bool> ended_{false};
  std::atomic<int> users_{0};
};

}  // namespace cohive::averaging
