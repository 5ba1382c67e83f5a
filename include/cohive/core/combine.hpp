/// \file
/// Combining tasks: a deadline around one, the first of several, all of several.
#pragma once

#include <memory>
#include <tuple>
#include <variant>
#include <vector>

#include "cohive/core/errors.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive {

/// Awaits `task`, which returns a Result; when the deadline passes first, the task is dropped and the result is
/// Errc::timeout. `what` (a string literal) names the exchange in the error.
template <class ResultType>
class Within : public Waiter {
 public:
  Within(Runtime& runtime, Deadline deadline, Task<ResultType> task, const char* what)
      : Waiter(runtime, what),
        deadline_(deadline),
        task_(std::move(task)),
        what_(what),
        timer_(runtime, &Within::expire, this) {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> parent) {
    suspend(parent);
    timer_.arm(deadline_);
    auto child = task_.handle();
    child.promise().continuation = parent;
    child.promise().root = parent.promise().root;
    return child;
  }
  ResultType await_resume() {
    timer_.disarm();
    if (expired_) return Error(Errc::timeout, what_);
    return task_.handle().promise().take();
  }

 private:
  static void expire(void* self) {
    auto* within = static_cast<Within*>(self);
    within->expired_ = true;
    within->wake();
    within->drop_for_waiter(std::move(within->task_));
  }
  Deadline deadline_;
  Task<ResultType> task_;
  const char* what_;
  Timer timer_;
  bool expired_ = false;
};

template <class ResultType>
Within<ResultType> within(Runtime& runtime, Deadline deadline, Task<ResultType> task, const char* what = "deadline") {
  return {runtime, deadline, std::move(task), what};
}

namespace detail {
template <class T>
using NonVoid = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
NonVoid<T> take_captured(Captured<T>& captured) {
  if constexpr (std::is_void_v<T>) {
    captured.take();
    return {};
  } else {
    return captured.take();
  }
}

template <class T>
Task<void> capture_and_notify(Task<T> task, Captured<T>& out, Event& event) {
  co_await capture(std::move(task), out);
  event.set();
}
}  // namespace detail

/// Runs both; returns the outcome of whichever ends first (index 0 or 1) and drops the other. void becomes monostate.
template <class A, class B>
Task<std::variant<detail::NonVoid<A>, detail::NonVoid<B>>> race(Runtime& runtime, Task<A> first, Task<B> second) {
  using Outcome = std::variant<detail::NonVoid<A>, detail::NonVoid<B>>;
  detail::Captured<A> a;
  detail::Captured<B> b;
  Event ended(runtime, "race");
  TaskGroup group(runtime, "race", TaskGroup::Local());
  group.spawn(detail::capture_and_notify(std::move(first), a, ended), "race first");
  group.spawn(detail::capture_and_notify(std::move(second), b, ended), "race second");
  co_await ended.wait();
  group.cancel();
  if (a.done) co_return Outcome(std::in_place_index<0>, detail::take_captured(a));
  co_return Outcome(std::in_place_index<1>, detail::take_captured(b));
}

/// Runs all at once; results in the order of the tasks. The first exception is rethrown after all have ended.
template <class T>
Task<std::vector<T>> when_all(Runtime& runtime, std::vector<Task<T>> tasks) {
  std::vector<detail::Captured<T>> captured(tasks.size());
  TaskGroup group(runtime, "when_all", TaskGroup::Local());
  for (std::size_t i = 0; i < tasks.size(); ++i)
    group.spawn(detail::capture(std::move(tasks[i]), captured[i]), "branch");
  co_await group.join();
  std::vector<T> results;
  results.reserve(captured.size());
  for (auto& one : captured) results.push_back(one.take());
  co_return results;
}
inline Task<void> when_all(Runtime& runtime, std::vector<Task<void>> tasks) {
  std::vector<detail::Captured<void>> captured(tasks.size());
  TaskGroup group(runtime, "when_all", TaskGroup::Local());
  for (std::size_t i = 0; i < tasks.size(); ++i)
    group.spawn(detail::capture(std::move(tasks[i]), captured[i]), "branch");
  co_await group.join();
  for (auto& one : captured) one.take();
}

}  // namespace cohive
