/// \file
/// Asio and tasks together, both ways:
///
///   co_await any Asio operation inside a Task:     auto read = co_await socket.async_read_some(buffer, use_task);
///   run any Task as an Asio operation:             async_run(runtime, dht.get("key"), asio::use_future);
///
/// On whose io_context a Runtime turns, and on which thread, make_runtime says (core/runtime.hpp). Simulated runtimes
/// have no io_context: both throw std::logic_error there.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/system/error_code.hpp>
#include <concepts>
#include <type_traits>
#include <utility>

#include "cohive/core/result.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive {

/// The completion token with which a Task awaits an Asio operation. The awaiting Task gets
///
///   what the operation completes with      the value of co_await
///   nothing; a value; several              void; the value; a std::tuple
///   an error code, and perhaps values      Result<>; Result<value>; Result<std::tuple>
///   an exception, and perhaps values       as above, and the exception is thrown
///
/// boost::asio::as_tuple(use_task) gives the error code and the values together, as one needs them when an operation
/// may fail half-way.
///
/// Dropping the Task cancels the operation at once, so buffers may live in its frame. The I/O object must outlive the
/// wait: close it to end a wait, and destroy it later. An operation of another execution context than the runtime's (a
/// thread pool, say) is not cancelled: it goes on, its result is thrown away, and its buffers must not be in the frame.
struct use_task_t {
  /// An executor of I/O objects whose operations take use_task when no token is named.
  template <class Executor>
  struct executor_with_default : Executor {
    /// Asio asks for it: what a call without a token gets.
    using default_completion_token_type = use_task_t;
    /// Wraps an executor.
    template <class Other>
      requires(!std::same_as<Other, executor_with_default> && std::convertible_to<Other, Executor>)
    executor_with_default(const Other& other) noexcept : Executor(other) {}
  };
  /// An I/O object type with that executor: use_task_t::as_default_on_t<asio::ip::tcp::socket>.
  template <class Object>
  using as_default_on_t =
      typename Object::template rebind_executor<executor_with_default<typename Object::executor_type>>::other;
};
/// The completion token that makes an operation of Asio a task.
inline constexpr use_task_t use_task;

/// Compares with an error code of Boost or Asio: error == boost::asio::error::eof.
template <class Code>
  requires(boost::system::is_error_code_enum<Code>::value)
bool operator==(const Error& error, Code code) {
  return error.code() == static_cast<std::error_code>(boost::system::error_code(code));
}

/// Runs a task on the runtime's loop as an asynchronous operation of Asio, with a completion token of the caller's
/// choice (a callback, use_future, use_awaitable, ...). Completes with the signature of co_spawn:
/// void(std::exception_ptr, T), and void(std::exception_ptr) for Task<void>. Everything that the task held is gone by
/// then.
///
/// Per-operation cancellation of any kind drops the task. It then completes with Errc::cancelled if it returns a
/// Result, else with the exception boost::system::system_error of operation_aborted. So it does when the runtime is
/// destroyed first, if the executor of the handler goes on running.
///
/// Any thread may call it. `task` must not have started, and making it must not have touched objects of the loop, which
/// calling a coroutine does not; where in doubt pass a function that makes it, which is called on the loop.
/// Instead of Task<T>, T must be default-constructible or a Result.
template <class T, class CompletionToken>
auto async_run(Runtime& runtime, Task<T> task, CompletionToken&& token);
/// The same for a function that makes the task, which is called on the loop.
template <class MakeTask, class CompletionToken>
  requires std::invocable<MakeTask&>
auto async_run(Runtime& runtime, MakeTask make, CompletionToken&& token);

}  // namespace cohive

#include "cohive/core/asio_inl.hpp"  // IWYU pragma: export
