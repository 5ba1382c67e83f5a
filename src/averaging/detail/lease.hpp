// Memory that is lent to work on other threads. Such work may outlive the task that asked for it; the memory belongs to
// an owner that gets it back when the task ends.
#pragma once

#include <atomic>
#include <memory>

#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {

class Lease {
 public:
  /// Worker threads: runs `work` unless the lease has ended; tells whether it ran.
  template <class Work>
  bool use(Work&& work) {
    users_.fetch_add(1);
    struct Done {  // also when it throws
      std::atomic<int>& users;
      ~Done() {
        if (users.fetch_sub(1) == 1) users.notify_all();
      }
    } done{users_};
    const bool open = !ended_.load();
    if (open) work();
    return open;
  }
  /// Afterwards nothing touches the memory. Blocks while work is in progress: at most the arithmetic of one part.
  void end() noexcept {
    ended_.store(true);
    for (int users = users_.load(); users != 0; users = users_.load()) users_.wait(users);
  }

  /// Ends a lease with a scope.
  class End {
   public:
    explicit End(Lease& lease) : lease_(lease) {}
    ~End() { lease_.end(); }
    End(const End&) = delete;

   private:
    Lease& lease_;
  };

 private:
  std::atomic<bool> ended_{false};
  std::atomic<int> users_{0};
};

/// What work yields that came too late.
inline Error lease_ended() {
  return Error(Errc::round_cancelled);
}

/// Runs `work`, which returns a Result, on the pool. It does not outlive the task: dropping that waits for work that is
/// running, and work that has not begun does nothing.
template <class Work>
Task<std::invoke_result_t<Work&>> offload_leased(Runtime& runtime, Work work) {
  using Outcome = std::invoke_result_t<Work&>;
  const auto lease = std::make_shared<Lease>();
  const Lease::End end(*lease);
  auto leased = [lease, work = std::move(work)]() mutable {
    Outcome outcome = lease_ended();
    lease->use([&] { outcome = work(); });
    return outcome;
  };
  co_return co_await runtime.offload(std::move(leased));
}

/// As offload_leased where `work` goes through many values; else in place.
template <class Work>
Task<std::invoke_result_t<Work&>> work_on_values(Runtime& runtime, std::size_t values, Work work) {
  if (values <= inline_values()) co_return work();
  co_return co_await offload_leased(runtime, std::move(work));
}

}  // namespace cohive::averaging
