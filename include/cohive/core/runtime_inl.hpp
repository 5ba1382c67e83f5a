// Template parts of runtime.hpp.
#pragma once

#include "cohive/core/runtime.hpp"

namespace cohive {
namespace detail {

template <class F>
class OffloadJobOf final : public OffloadJob {
 public:
  using Value = std::invoke_result_t<F&>;
  explicit OffloadJobOf(F work) : work_(std::move(work)) {}
  void run() noexcept override {
    try {
      if constexpr (std::is_void_v<Value>) {
        work_();
      } else {
        value_.emplace(work_());
      }
    } catch (...) {
      exception_ = std::current_exception();
    }
  }
  Value take() {
    if (exception_) std::rethrow_exception(exception_);
    if constexpr (!std::is_void_v<Value>) return std::move(*value_);
  }

 private:
  struct Nothing {};
  F work_;
  std::optional<std::conditional_t<std::is_void_v<Value>, Nothing, Value>> value_;
  std::exception_ptr exception_;
};

template <class F>
class Offload : public Waiter {
 public:
  Offload(Runtime& runtime, F work, bool waits)
      : Waiter(runtime, waits ? "a disk or a router" : "offloaded work"),
        job_(std::make_shared<OffloadJobOf<F>>(std::move(work))) {
    job_->waits = waits;
  }
  ~Offload() {
    job_->waiter = nullptr;
    job_->abandoned.store(true, std::memory_order_relaxed);
  }
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend(handle);
    job_->waiter = this;
    runtime().start_job(job_);
  }
  auto await_resume() { return job_->take(); }

 private:
  std::shared_ptr<OffloadJobOf<F>> job_;
};

template <class T>
struct Captured {
  std::optional<T> value;
  std::exception_ptr exception;
  bool done = false;
  T take() {
    if (exception) std::rethrow_exception(exception);
    return std::move(*value);
  }
};
template <>
struct Captured<void> {
  std::exception_ptr exception;
  bool done = false;
  void take() {
    if (exception) std::rethrow_exception(exception);
  }
};

template <class T>
Task<void> capture(Task<T> task, Captured<T>& out) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await task;
    } else {
      out.value.emplace(co_await task);
    }
  } catch (...) {
    out.exception = std::current_exception();
  }
  out.done = true;
}

/// Everything the task held is gone before the future's owner hears of the result.
template <class T, class F>
Task<void> fulfil(std::shared_ptr<F> make, std::shared_ptr<std::promise<T>> promise) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await (*make)();
      make.reset();
      promise->set_value();
    } else {
      T value = co_await (*make)();
      make.reset();
      promise->set_value(std::move(value));
    }
    co_return;
  } catch (...) {
    make.reset();
    promise->set_exception(std::current_exception());
  }
}

}  // namespace detail

template <class T>
void Waiter::drop_for_waiter(Task<T> task) noexcept {
  Runtime& loop = *runtime_;
  TaskRoot* const before = std::exchange(loop.current_, root_);
  task.reset();
  loop.current_ = before;
  if (!before) loop.drop_doomed();
}

template <class T>
T& Runtime::local() {
  auto& object = locals_[typeid(T)];
  if (!object) object = std::make_shared<T>(*this);
  return *static_cast<T*>(object.get());
}

template <class F>
detail::Offload<F> Runtime::offload(F work) {
  return detail::Offload<F>(*this, std::move(work), false);
}

template <class F>
detail::Offload<F> Runtime::offload_io(F work) {
  return detail::Offload<F>(*this, std::move(work), true);
}

template <class T>
T Runtime::run(Task<T> task) {
  detail::Captured<T> captured;
  run_root(detail::capture(std::move(task), captured), captured.done);
  return captured.take();
}

template <class F>
auto Runtime::submit(F make) -> std::future<detail::TaskValue<std::invoke_result_t<F&>>> {
  using T = detail::TaskValue<std::invoke_result_t<F&>>;
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  post([this, shared = std::make_shared<F>(std::move(make)), promise]() mutable {
    spawn_background(detail::fulfil<T, F>(std::move(shared), std::move(promise)));
  });
  return future;
}

}  // namespace cohive
