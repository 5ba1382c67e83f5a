/// \file
/// Combining tasks: a deadline around one, the first of several, all of several.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "cohive/core/errors.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive {

/// Awaits a task that may be dropped meanwhile, by calling drop(). Yields whether it ended for a Task<void>, else its
/// value, nullopt when it was dropped.
template <class T>
class Droppable : public Waiter {
 public:
  /// Waits for `task`. \param what  a string literal, for diagnostics
  Droppable(Runtime& runtime, Task<T> task, const char* what) : Waiter(runtime, what), task_(std::move(task)) {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> parent) noexcept {
    suspend(parent);
    auto child = task_.handle();
    child.promise().continuation = parent;
    child.promise().root = parent.promise().root;
    return child;
  }
  auto await_resume() {
    if constexpr (std::is_void_v<T>) {
      if (!dropped_) task_.handle().promise().take();
      return !dropped_;
    } else {
      return dropped_ ? std::nullopt : std::optional<T>(task_.handle().promise().take());
    }
  }
  /// Only while the task is being awaited, and not from inside it.
  void drop() noexcept {
    dropped_ = true;
    wake();
    drop_for_waiter(std::move(task_));
  }

 private:
  Task<T> task_;
  bool dropped_ = false;
};

namespace detail {
template <class T>
struct ResultOf {
  using Type = Result<T>;
};
template <class T>
struct ResultOf<Result<T>> {
  using Type = Result<T>;
};
}  // namespace detail

/// See within().
template <class T>
class Within : public Droppable<T> {
 public:
  /// As within() makes it.
  Within(Runtime& runtime, Deadline deadline, Task<T> task, const char* what)
      : Droppable<T>(runtime, std::move(task), what),
        deadline_(deadline),
        what_(what),
        timer_(runtime, &Within::expire, this) {}
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> parent) {
    timer_.arm(deadline_);
    return Droppable<T>::await_suspend(parent);
  }
  typename detail::ResultOf<T>::Type await_resume() {
    timer_.disarm();
    auto ended = Droppable<T>::await_resume();
    if (!ended) return Error(Errc::timeout, what_);
    if constexpr (std::is_void_v<T>) {
      return ok();
    } else {
      return std::move(*ended);
    }
  }

 private:
  static void expire(void* self) { static_cast<Within*>(self)->drop(); }
  Deadline deadline_;
  const char* what_;
  Timer timer_;
};

/// Awaits `task`; when the deadline passes first, the task is dropped and the result is Errc::timeout. A task that
/// returns a Result keeps its type, one that returns T gives Result<T>. `what` (a string literal) names the exchange in
/// the error.
template <class T>
Within<T> within(Runtime& runtime, Deadline deadline, Task<T> task, const char* what = "deadline") {
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
  Nursery group(runtime, "race");
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
  Nursery group(runtime, "when_all");
  for (std::size_t i = 0; i < tasks.size(); ++i)
    group.spawn(detail::capture(std::move(tasks[i]), captured[i]), "branch");
  co_await group.join();
  std::vector<T> results;
  results.reserve(captured.size());
  for (auto& one : captured) results.push_back(one.take());
  co_return results;
}
/// Runs all at once. The first exception is rethrown after all have ended.
inline Task<void> when_all(Runtime& runtime, std::vector<Task<void>> tasks) {
  std::vector<detail::Captured<void>> captured(tasks.size());
  Nursery group(runtime, "when_all");
  for (std::size_t i = 0; i < tasks.size(); ++i)
    group.spawn(detail::capture(std::move(tasks[i]), captured[i]), "branch");
  co_await group.join();
  for (auto& one : captured) one.take();
}

}  // namespace cohive
