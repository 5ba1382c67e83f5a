// Template parts of asio.hpp.
#pragma once

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/query.hpp>
#include <boost/system/system_error.hpp>
#include <memory>
#include <optional>
#include <tuple>

#include "cohive/core/asio.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::detail {

namespace asio = boost::asio;

// ---- An Asio operation in a Task

/// Whether an executor runs its work on `context`.
template <class Executor>
bool runs_on(const Executor& executor, asio::io_context& context) {
  if constexpr (asio::can_query_v<const Executor&, asio::execution::context_t>) {
    const asio::execution_context& its = asio::query(executor, asio::execution::context);
    return &its == &context;
  } else if constexpr (requires { executor.context(); }) {
    const asio::execution_context& its = executor.context();
    return &its == &context;
  } else {
    return false;
  }
}

/// What co_await makes of the values of a completion.
template <class... Values>
struct Completed {
  static auto value(std::tuple<Values...> values) {
    if constexpr (sizeof...(Values) == 0) {
      return;
    } else if constexpr (sizeof...(Values) == 1) {
      return std::get<0>(std::move(values));
    } else {
      return values;
    }
  }
};
template <class... Values>
struct Completed<boost::system::error_code, Values...> {
  using Rest = Completed<Values...>;
  using Value = decltype(Rest::value(std::declval<std::tuple<Values...>>()));
  static Result<Value> value(std::tuple<boost::system::error_code, Values...> values) {
    return std::apply(
        [](boost::system::error_code code, Values... rest) -> Result<Value> {
          if (code) return Error(static_cast<std::error_code>(code));
          if constexpr (std::is_void_v<Value>) {
            return ok();
          } else {
            return Rest::value(std::tuple<Values...>(std::move(rest)...));
          }
        },
        std::move(values));
  }
};
template <class... Values>
struct Completed<std::exception_ptr, Values...> {
  static auto value(std::tuple<std::exception_ptr, Values...> values) {
    return std::apply(
        [](std::exception_ptr exception, Values... rest) {
          if (exception) std::rethrow_exception(exception);
          return Completed<Values...>::value(std::tuple<Values...>(std::move(rest)...));
        },
        std::move(values));
  }
};

/// What an operation and the task that awaits it share: either may be gone before the other. Loop thread only.
template <class... Values>
struct OperationState {
  Waiter* waiter = nullptr;  ///< null once the operation completed or the task is gone
  std::optional<std::tuple<Values...>> values;
  asio::cancellation_signal cancel;
};

template <class... Values>
class OperationHandler {
 public:
  using executor_type = asio::io_context::executor_type;
  using cancellation_slot_type = asio::cancellation_slot;

  OperationHandler(std::shared_ptr<OperationState<Values...>> state, executor_type executor,
                   cancellation_slot_type slot) noexcept
      : state_(std::move(state)), executor_(executor), slot_(slot) {}
  executor_type get_executor() const noexcept { return executor_; }
  cancellation_slot_type get_cancellation_slot() const noexcept { return slot_; }

  template <class... Args>
  void operator()(Args&&... args) {
    state_->values.emplace(std::forward<Args>(args)...);
    if (Waiter* waiter = std::exchange(state_->waiter, nullptr)) waiter->wake();
  }

 private:
  std::shared_ptr<OperationState<Values...>> state_;
  executor_type executor_;
  cancellation_slot_type slot_;
};

/// The awaitable that an initiating function returns for use_task. It initiates the operation when awaited.
template <class Values, class Initiation, class... Args>
class Operation;
template <class... Values, class Initiation, class... Args>
class Operation<std::tuple<Values...>, Initiation, Args...> {
 public:
  template <class... From>
  explicit Operation(Initiation&& initiation, From&&... args)
      : initiation_(std::move(initiation)), args_(std::forward<From>(args)...) {}
  /// Before it is awaited.
  Operation(Operation&& other) : initiation_(std::move(other.initiation_)), args_(std::move(other.args_)) {}
  ~Operation() {
    if (!state_ || !state_->waiter) return;
    const auto state = std::move(state_);  // the last other owner may go while we cancel
    state->waiter = nullptr;
    state->cancel.emit(asio::cancellation_type::terminal);
  }

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    Runtime& runtime = handle.promise().root->runtime();
    asio::io_context& context = runtime.io_context();
    state_ = std::make_shared<OperationState<Values...>>();
    wait_.emplace(runtime, handle);
    const auto slot = cancellable(context) ? state_->cancel.slot() : asio::cancellation_slot();
    OperationHandler<Values...> handler(state_, context.get_executor(), slot);
    state_->waiter = &*wait_;
    std::apply([&](Args&&... args) { std::move(initiation_)(std::move(handler), std::move(args)...); },
               std::move(args_));
  }
  auto await_resume() { return Completed<Values...>::value(std::move(*state_->values)); }

 private:
  struct Wait final : Waiter {
    template <class Promise>
    Wait(Runtime& runtime, std::coroutine_handle<Promise> handle) : Waiter(runtime, "an Asio operation") {
      suspend(handle);
    }
  };

  /// Cancelling is not for other threads, so an operation that another context runs gets no slot.
  bool cancellable(asio::io_context& context) const {
    if constexpr (requires { initiation_.get_executor(); }) {
      return runs_on(initiation_.get_executor(), context);
    } else {
      return true;
    }
  }

  Initiation initiation_;
  std::tuple<Args...> args_;
  std::shared_ptr<OperationState<Values...>> state_;
  std::optional<Wait> wait_;
};

// ---- A Task as an Asio operation

template <class T>
inline constexpr bool kIsResult = false;
template <class T>
inline constexpr bool kIsResult<Result<T>> = true;

template <class T>
struct RunSignature {
  using Type = void(std::exception_ptr, T);
};
template <>
struct RunSignature<void> {
  using Type = void(std::exception_ptr);
};

/// Calls the handler once, on its executor: with the outcome of the task, or as cancelled when it was dropped.
template <class T, class Handler>
class Delivery {
 public:
  using Executor = asio::associated_executor_t<Handler, asio::io_context::executor_type>;

  Delivery(Handler handler, asio::io_context::executor_type loop)
      : handler_(std::in_place, std::move(handler)), work_(asio::get_associated_executor(*handler_, loop)) {}
  Delivery(Delivery&& other) noexcept
      : handler_(std::exchange(other.handler_, std::nullopt)), work_(std::move(other.work_)) {}
  ~Delivery() {
    if (!handler_) return;
    Captured<T> dropped;
    if constexpr (kIsResult<T>) {
      dropped.value.emplace(Error(Errc::cancelled));
    } else {
      dropped.exception = std::make_exception_ptr(boost::system::system_error(asio::error::operation_aborted));
    }
    (*this)(std::move(dropped));
  }

  void operator()(Captured<T> outcome) {
    auto call = [handler = std::move(*handler_), outcome = std::move(outcome)]() mutable {
      asio::get_associated_cancellation_slot(handler).clear();
      if constexpr (std::is_void_v<T>) {
        std::move(handler)(outcome.exception);
      } else {
        std::move(handler)(outcome.exception, value_of(outcome));
      }
    };
    handler_.reset();
    asio::post(work_.get_executor(), std::move(call));
  }

  Handler& handler() noexcept { return *handler_; }

 private:
  static T value_of(Captured<T>& outcome) {
    if (outcome.value) return std::move(*outcome.value);
    if constexpr (kIsResult<T>) {
      return Error(Errc::internal, "the task ended with an exception");
    } else {
      return T();
    }
  }

  std::optional<Handler> handler_;
  asio::executor_work_guard<Executor> work_;
};

/// How a cancellation slot reaches the task. `stopped` and `task` belong to the loop's thread.
template <class T>
struct StopLink {
  bool stopped = false;
  Droppable<T>* task = nullptr;  ///< while it runs
};

template <class T, class Make, class Handler>
struct AsioRun {
  Make make;
  Delivery<T, Handler> delivery;
  std::shared_ptr<StopLink<T>> link;
};

/// The run's delivery outlives all else of it, so that a handler finds everything gone that the task held.
template <class T, class Make, class Handler>
Task<void> run_and_deliver(Runtime& runtime, std::shared_ptr<AsioRun<T, Make, Handler>> run) {
  const auto link = run->link;
  auto delivery = std::move(run->delivery);
  std::optional<Make> make(std::move(run->make));
  run.reset();
  if (link->stopped) co_return;
  Captured<T> outcome;
  try {
    Droppable<T> task(runtime, (*make)(), "a task run from Asio");
    make.reset();
    link->task = &task;
    const auto unlink = on_exit([&] { link->task = nullptr; });
    if constexpr (std::is_void_v<T>) {
      if (!co_await task) co_return;
    } else {
      auto value = co_await task;
      if (!value) co_return;
      outcome.value.emplace(std::move(*value));
    }
  } catch (...) {
    outcome.exception = std::current_exception();
  }
  delivery(std::move(outcome));
}

template <class T>
struct StartTask {
  using executor_type = asio::io_context::executor_type;
  Runtime& runtime;
  executor_type get_executor() const noexcept { return runtime.io_context().get_executor(); }

  template <class Handler, class Make>
  void operator()(Handler&& handler, Make make) const {
    const auto loop = get_executor();
    auto link = std::make_shared<StopLink<T>>();
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) {
      slot.assign([link, loop](asio::cancellation_type type) {
        if (type == asio::cancellation_type::none) return;
        asio::post(loop, [link] {
          link->stopped = true;
          if (link->task) link->task->drop();
        });
      });
    }
    using Run = AsioRun<T, Make, std::decay_t<Handler>>;
    auto run = std::make_shared<Run>(Run{
        std::move(make), Delivery<T, std::decay_t<Handler>>(std::forward<Handler>(handler), loop), std::move(link)});
    runtime.post([&runtime = runtime, run = std::move(run)]() mutable {
      runtime.background().spawn(run_and_deliver(runtime, std::move(run)), "task run from Asio");
    });
  }
};

}  // namespace cohive::detail

template <class R, class... Args>
class boost::asio::async_result<cohive::use_task_t, R(Args...)> {
 public:
  template <class Initiation, class... InitArgs>
  static auto initiate(Initiation&& initiation, const cohive::use_task_t&, InitArgs&&... args) {
    using Operation = cohive::detail::Operation<std::tuple<std::decay_t<Args>...>, std::decay_t<Initiation>,
                                                std::decay_t<InitArgs>...>;
    return Operation(std::decay_t<Initiation>(std::forward<Initiation>(initiation)), std::forward<InitArgs>(args)...);
  }
};

namespace cohive {

template <class MakeTask, class CompletionToken>
  requires std::invocable<MakeTask&>
auto async_run(Runtime& runtime, MakeTask make, CompletionToken&& token) {
  using T = detail::TaskValue<std::invoke_result_t<MakeTask&>>;
  static_assert(std::is_void_v<T> || std::is_default_constructible_v<T> || detail::kIsResult<T>,
                "a completion without a value needs one made from nothing");
  return boost::asio::async_initiate<CompletionToken, typename detail::RunSignature<T>::Type>(
      detail::StartTask<T>{runtime}, token, std::move(make));
}

template <class T, class CompletionToken>
auto async_run(Runtime& runtime, Task<T> task, CompletionToken&& token) {
  return async_run(
      runtime, [task = std::move(task)]() mutable { return std::move(task); }, std::forward<CompletionToken>(token));
}

}  // namespace cohive
