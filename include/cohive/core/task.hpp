/// \file
/// Task<T>: the coroutine type of cohive.
///
/// A Task is lazy, has one awaiter and is resumed by symmetric transfer, so nesting costs nanoseconds and no stack.
/// Cancellation is destruction: dropping a Task that is suspended destroys its frame, and with it everything it waits
/// on; destructors do the cleanup (an unfinished stream resets itself). There is therefore no cancellation code path to
/// forget. Owners of running tasks are a TaskGroup or another Task that awaits them.
///
/// Lifetimes: a coroutine takes by value what must outlive its first suspension; a lambda coroutine gets its data as
/// parameters, never as captures.
/// Threads: a Task lives and dies on its Runtime's loop thread.
#pragma once

#include <cassert>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace cohive {

class TaskRoot;
template <class T>
class Task;

namespace detail {

/// Called when a root coroutine ends; destroys it.
void root_finished(TaskRoot* root) noexcept;

struct PromiseBase {
  std::coroutine_handle<> continuation;
  TaskRoot* root = nullptr;  ///< the spawned task this frame works for
  bool is_root = false;
  std::exception_ptr exception;

  static void* operator new(std::size_t size);
  static void operator delete(void* memory, std::size_t size) noexcept;

  std::suspend_always initial_suspend() noexcept { return {}; }
  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      PromiseBase& promise = self.promise();
      if (promise.continuation) return promise.continuation;
      if (promise.is_root) root_finished(promise.root);  // destroys this very frame: touch nothing afterwards
      return std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { exception = std::current_exception(); }
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object() noexcept;
  template <class U = T>
    requires std::is_convertible_v<U&&, T>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
  T take() {
    if (exception) std::rethrow_exception(std::exchange(exception, nullptr));
    return std::move(*value);
  }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() {
    if (exception) std::rethrow_exception(std::exchange(exception, nullptr));
  }
};

}  // namespace detail

/// A coroutine that returns T, or throws. It begins when it is awaited or spawned, and ends at once, with all that it
/// holds, when it is destroyed.
template <class T = void>
class [[nodiscard]] Task {
 public:
  /// What the compiler looks for.
  using promise_type = detail::Promise<T>;
  /// The coroutine, begun or not.
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  /// Owns a coroutine.
  explicit Task(Handle handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() { reset(); }

  /// Destroys the coroutine and all it is waiting on.
  void reset() noexcept {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }
  /// Tells whether there is a coroutine: not after a move.
  bool valid() const noexcept { return static_cast<bool>(handle_); }
  /// Returns the coroutine, which stays the task's.
  Handle handle() const noexcept { return handle_; }

  struct Awaiter {
    Handle child;
    bool await_ready() const noexcept { return false; }
    template <class ParentPromise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<ParentPromise> parent) noexcept {
      assert(child && !child.done());  // an empty task, or one awaited twice
      child.promise().continuation = parent;
      child.promise().root = parent.promise().root;
      return child;
    }
    T await_resume() { return child.promise().take(); }
  };
  /// Runs the task to its end; the Task object must stay alive until then (a temporary in the expression does).
  Awaiter operator co_await() & noexcept { return Awaiter{handle_}; }
  /// Awaitable, once: runs the task and gives its result; rethrows what it has thrown.
  Awaiter operator co_await() && noexcept { return Awaiter{handle_}; }

 private:
  Handle handle_;
};

namespace detail {
template <class>
struct TaskValueOf;
template <class T>
struct TaskValueOf<Task<T>> {
  using Type = T;
};
/// What a task returns.
template <class T>
using TaskValue = typename TaskValueOf<T>::Type;

template <class T>
Task<T> Promise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}
}  // namespace detail

}  // namespace cohive
