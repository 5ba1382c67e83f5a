// Asio operations inside tasks, and tasks as Asio operations, on an io_context that the test owns.
#include "cohive/core/asio.hpp"

#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <latch>
#include <thread>

#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using testing::add_later;
using testing::fail_later;
using testing::hold;
using testing::Tracker;

class OnOurContext : public ::testing::Test {
 protected:
  /// Two connected sockets.
  std::pair<tcp::socket, tcp::socket> connected() {
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    tcp::socket client(context);
    client.connect(acceptor.local_endpoint());
    return {std::move(client), acceptor.accept()};
  }

  asio::io_context context;
  std::unique_ptr<Runtime> runtime = make_runtime(context, {.seed = 1, .pool_threads = 1});
  TaskGroup tasks{*runtime};
};
using UseTask = OnOurContext;
using AsyncRun = OnOurContext;

// ---- use_task

Task<Result<>> sleep(asio::io_context& context, Duration duration) {
  asio::steady_timer timer(context, duration);
  co_return co_await timer.async_wait(use_task);
}

TEST_F(UseTask, AwaitsATimer) {
  const auto start = runtime->now();
  EXPECT_TRUE(runtime->run(sleep(context, 5ms)));
  EXPECT_GE(runtime->now() - start, 5ms);
}

Task<Result<std::string>> echo(tcp::socket& client, tcp::socket& server, std::string words) {
  auto sent = co_await asio::async_write(client, asio::buffer(words), use_task);
  if (!sent) co_return sent.error();
  std::string text(*sent, ' ');
  auto received = co_await asio::async_read(server, asio::buffer(text), use_task);
  if (!received) co_return received.error();
  co_return text.substr(0, *received);
}

TEST_F(UseTask, AwaitsSockets) {
  auto [client, server] = connected();
  EXPECT_EQ(runtime->run(echo(client, server, "hello")).value(), "hello");
}

TEST_F(UseTask, GivesTheErrorAsAResultThatComparesWithAsiosCodes) {
  auto [client, server] = connected();
  server.close();
  auto read = [](tcp::socket& socket) -> Task<Result<std::size_t>> {
    char byte = 0;
    co_return co_await socket.async_read_some(asio::buffer(&byte, 1), use_task);
  };
  const auto result = runtime->run(read(client));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), asio::error::eof);
  EXPECT_FALSE(result.error() == Errc::timeout);
}

TEST_F(UseTask, GivesErrorAndValuesTogetherWithAsTuple) {
  auto [client, server] = connected();
  asio::write(server, asio::buffer("half", 4));
  server.close();
  auto read = [](tcp::socket& socket) -> Task<std::tuple<boost::system::error_code, std::size_t>> {
    char bytes[100];
    co_return co_await asio::async_read(socket, asio::buffer(bytes), asio::as_tuple(use_task));
  };
  EXPECT_EQ(runtime->run(read(client)), std::make_tuple(asio::error::eof, std::size_t{4}));
}

TEST_F(UseTask, AwaitsAChannelAsADefaultToken) {
  using Channel = use_task_t::as_default_on_t<
      asio::experimental::channel<asio::io_context::executor_type, void(boost::system::error_code, std::string)>>;
  Channel channel(context, 1);
  tasks.spawn([](Channel& to) -> Task<void> {
    (co_await to.async_send({}, "one")).value();
    (co_await to.async_send({}, "two")).value();
    to.close();
  }(channel));
  auto receive = [](Channel& from) -> Task<std::string> {
    std::string all;
    while (auto item = co_await from.async_receive()) all += *item;
    co_return all;
  };
  EXPECT_EQ(runtime->run(receive(channel)), "onetwo");
}

/// An operation that completes with what it was given.
template <class... Args, class Token>
auto async_say(asio::io_context& context, Token&& token, Args... args) {
  return asio::async_initiate<Token, void(Args...)>(
      [&context](auto handler, Args... values) {
        asio::post(context, [handler = std::move(handler), ... values = std::move(values)]() mutable {
          std::move(handler)(std::move(values)...);
        });
      },
      token, std::move(args)...);
}

TEST_F(UseTask, TurnsEveryKindOfCompletionIntoAValue) {
  auto test = [](asio::io_context& on) -> Task<void> {
    co_await async_say(on, use_task);
    EXPECT_EQ(co_await async_say(on, use_task, 3), 3);
    EXPECT_EQ((co_await async_say(on, use_task, 3, std::string("x"))), std::make_tuple(3, std::string("x")));
    const boost::system::error_code good;
    const auto both = co_await async_say(on, use_task, good, std::make_unique<int>(4), 5);
    EXPECT_EQ(*std::get<0>(*both), 4);
    EXPECT_EQ(co_await async_say(on, use_task, std::exception_ptr(), 6), 6);
    co_await async_say(on, use_task, std::exception_ptr());
    const auto thrown = std::make_exception_ptr(std::runtime_error("thrown"));
    bool caught = false;
    try {
      co_await async_say(on, use_task, thrown, 7);
    } catch (const std::runtime_error&) {
      caught = true;
    }
    EXPECT_TRUE(caught);
  };
  runtime->run(test(context));
}

Task<Result<std::size_t>> read_byte(tcp::socket& socket) {
  char byte = 0;
  co_return co_await socket.async_read_some(asio::buffer(&byte, 1), use_task);
}
Task<Result<std::size_t>> read_byte_beside_a_stall(Runtime& runtime, tcp::socket& socket) {
  runtime.post([] { std::this_thread::sleep_for(500ms); });
  co_return co_await within(runtime, runtime.after(200ms), read_byte(socket), "a byte");
}

TEST_F(UseTask, WhatCameInTimeIsReadThoughTheLoopStalled) {
  auto [client, server] = connected();
  std::thread sender([&to = server] {
    std::this_thread::sleep_for(100ms);
    asio::write(to, asio::buffer("x", 1));
  });
  const auto result = runtime->run(read_byte_beside_a_stall(*runtime, client));
  sender.join();
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(*result, 1u);
}

TEST_F(UseTask, WhatDidNotComeTimesOutAfterAStall) {
  auto [client, server] = connected();
  const auto result = runtime->run(read_byte_beside_a_stall(*runtime, client));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::timeout);
}

Task<void> wait_an_hour(asio::io_context& context, int& alive) {
  Tracker tracker(alive);
  (void)co_await sleep(context, 1h);
}

TEST_F(UseTask, DroppingTheTaskCancelsTheOperation) {
  int alive = 0;
  tasks.spawn(wait_an_hour(context, alive));
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  EXPECT_EQ(alive, 1);
  tasks.cancel();
  EXPECT_EQ(alive, 0);
  context.run();  // would take an hour
}

TEST_F(UseTask, ADeadlineCancelsTheOperation) {
  auto limited = [](Runtime& r, asio::io_context& on) -> Task<Result<>> {
    co_return co_await within(r, r.after(5ms), sleep(on, 1h), "an hour's sleep");
  };
  EXPECT_EQ(runtime->run(limited(*runtime, context)).error(), Errc::timeout);
  context.run();
}

TEST_F(UseTask, ADroppedTasksBufferIsNotWrittenAnyMore) {
  auto [client, server] = connected();
  auto read = [](tcp::socket& socket, int& alive) -> Task<void> {
    Tracker tracker(alive);
    char bytes[1000];
    (void)co_await asio::async_read(socket, asio::buffer(bytes), use_task);
  };
  int alive = 0;
  tasks.spawn(read(client, alive));
  asio::write(server, asio::buffer("some bytes before", 10));
  runtime->run(add_later(*runtime, 0, 0, 5ms));
  EXPECT_EQ(alive, 1);
  tasks.cancel();
  asio::write(server, asio::buffer("and some after", 10));
  context.run();
  EXPECT_EQ(client.available(), 10u);
}

TEST_F(UseTask, ATaskMayBeDroppedBetweenCompletionAndResumption) {
  int alive = 0;
  auto wait = [](asio::steady_timer& timer, int& count) -> Task<void> {
    Tracker tracker(count);
    (void)co_await timer.async_wait(use_task);
    ADD_FAILURE() << "resumed after it was dropped";
  };
  auto timer = std::make_unique<asio::steady_timer>(context, 10ms);
  tasks.spawn(wait(*timer, alive));
  runtime->run(add_later(*runtime, 0, 0, 0ms));
  EXPECT_EQ(alive, 1);
  timer->async_wait(
      [&](auto) {  // behind the handler of the task's wait, and before the turn that would resume the task
        timer.reset();
        tasks.cancel();
      });
  context.run();
  EXPECT_EQ(alive, 0);
}

TEST_F(UseTask, EveryTaskOfAClosedSocketHears) {
  auto [client, server] = connected();
  auto read = [](tcp::socket& socket, int& aborted) -> Task<void> {
    char byte = 0;
    const auto result = co_await socket.async_read_some(asio::buffer(&byte, 1), use_task);
    if (!result && result.error() == asio::error::operation_aborted) ++aborted;
  };
  int aborted = 0;
  for (int i = 0; i < 3; ++i) tasks.spawn(read(client, aborted));
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  client.close();
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  EXPECT_EQ(aborted, 3);
}

TEST_F(UseTask, ComesBackFromAnotherContext) {
  asio::thread_pool pool(1);
  auto there_and_back = [](asio::thread_pool& elsewhere) -> Task<std::thread::id> {
    co_await asio::post(elsewhere, use_task);
    co_return std::this_thread::get_id();
  };
  EXPECT_EQ(runtime->run(there_and_back(pool)), std::this_thread::get_id());
}

TEST_F(UseTask, AnOperationOfAnotherContextGoesOnWhenItsTaskIsDropped) {
  asio::thread_pool pool(1);
  std::latch started(1), go_on(1);
  auto work = [&](asio::thread_pool& elsewhere) {
    return asio::co_spawn(
        elsewhere,
        [&]() -> asio::awaitable<void> {
          started.count_down();
          go_on.wait();
          co_return;
        },
        use_task);
  };
  auto wait = [](auto& make, asio::thread_pool& elsewhere) -> Task<void> {
    co_await make(elsewhere);
    ADD_FAILURE() << "resumed after it was dropped";
  };
  tasks.spawn(wait(work, pool));
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  started.wait();
  tasks.cancel();
  go_on.count_down();
  context.run();  // until the operation has come back
}

TEST(UseTaskSimulated, IsRefused) {
  SimRuntime runtime;
  asio::io_context context;
  EXPECT_THROW(runtime.run(sleep(context, 1ms)), std::logic_error);
}

// ---- async_run

TEST_F(AsyncRun, CallsBackWithTheValue) {
  int sum = 0;
  async_run(*runtime, add_later(*runtime, 2, 3, 1ms), [&](std::exception_ptr exception, int value) {
    EXPECT_FALSE(exception);
    sum = value;
  });
  context.run();
  EXPECT_EQ(sum, 5);
}

TEST_F(AsyncRun, CallsBackWithTheException) {
  int calls = 0;
  async_run(*runtime, fail_later(*runtime), [&](std::exception_ptr exception) {
    ++calls;
    EXPECT_THROW(std::rethrow_exception(exception), std::runtime_error);
  });
  context.run();
  EXPECT_EQ(calls, 1);
}

Task<std::unique_ptr<int>> boxed(Runtime& runtime, int value) {
  co_await runtime.yield();
  co_return std::make_unique<int>(value);
}

TEST_F(AsyncRun, MovesResultsAndHandlers) {
  auto mark = std::make_unique<int>(1);
  int result = 0;
  async_run(*runtime, boxed(*runtime, 7),
            [mark = std::move(mark), &result](std::exception_ptr, std::unique_ptr<int> box) { result = *mark + *box; });
  context.run();
  EXPECT_EQ(result, 8);
}

TEST_F(AsyncRun, GivesFuturesToOtherThreads) {
  auto work = asio::make_work_guard(context);
  std::thread loop([&] { context.run(); });
  auto value = async_run(*runtime, [this] { return add_later(*runtime, 1, 2, 1ms); }, asio::use_future);
  EXPECT_EQ(value.get(), 3);
  auto failure = async_run(*runtime, [this] { return fail_later(*runtime); }, asio::use_future);
  EXPECT_THROW(failure.get(), std::runtime_error);
  work.reset();
  loop.join();
}

TEST_F(AsyncRun, IsAwaitedByAsiosOwnCoroutines) {
  asio::io_context other;  // of another runtime's thread, say: the answer comes back to it
  auto outer = [](Runtime& r) -> asio::awaitable<int> {
    co_await async_run(r, [&r] { return add_later(r, 0, 0, 1ms); }, asio::use_awaitable);
    co_return co_await async_run(r, [&r] { return add_later(r, 4, 5, 1ms); }, asio::use_awaitable);
  };
  auto sum = asio::co_spawn(other, outer(*runtime), asio::use_future);
  auto work = asio::make_work_guard(context);
  std::thread loop([&] { context.run(); });
  other.run();
  EXPECT_EQ(sum.get(), 9);
  work.reset();
  loop.join();
}

Task<Result<int>> hold_result(Runtime& runtime, int& alive) {
  co_await hold(runtime, alive);
  co_return 1;
}

TEST_F(AsyncRun, CancellationDropsTheTaskAndIsAnErrorOfItsResult) {
  int alive = 0, calls = 0;
  asio::cancellation_signal signal;
  async_run(*runtime, hold_result(*runtime, alive),
            asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr exception, Result<int> result) {
              ++calls;
              EXPECT_EQ(alive, 0) << "what the task held is gone before";
              EXPECT_FALSE(exception);
              EXPECT_EQ(result.error(), Errc::cancelled);
            }));
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  EXPECT_EQ(alive, 1);
  signal.emit(asio::cancellation_type::total);
  context.run();
  EXPECT_EQ(calls, 1);
  signal.emit(asio::cancellation_type::terminal);  // too late to matter
}

TEST_F(AsyncRun, CancellationOfOtherTasksIsAnException) {
  int alive = 0, calls = 0;
  asio::cancellation_signal signal;
  async_run(*runtime, hold(*runtime, alive),
            asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr exception) {
              ++calls;
              try {
                std::rethrow_exception(exception);
              } catch (const boost::system::system_error& error) {
                EXPECT_EQ(error.code(), asio::error::operation_aborted);
              }
            }));
  signal.emit(asio::cancellation_type::terminal);  // before it has started
  context.run();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(alive, 0);
}

TEST_F(AsyncRun, TakesPartInAsiosCombinations) {
  using namespace asio::experimental::awaitable_operators;
  int alive = 0;
  auto outer = [](Runtime& r, int& count) -> asio::awaitable<std::size_t> {
    asio::steady_timer timer(r.io_context(), 5ms);
    const auto ended =
        co_await (async_run(r, hold_result(r, count), asio::use_awaitable) || timer.async_wait(asio::use_awaitable));
    co_return ended.index();
  };
  auto first = asio::co_spawn(context, outer(*runtime, alive), asio::use_future);
  context.run();
  EXPECT_EQ(first.get(), 1u);
  EXPECT_EQ(alive, 0);
}

TEST(AsyncRunHandler, HearsOfACancellationWhenTheRuntimeGoesFirst) {
  asio::io_context context;
  auto runtime = make_runtime(context, {.seed = 1, .pool_threads = 1});
  int alive = 0;
  std::vector<std::error_code> codes;
  const auto note = [&](std::exception_ptr, Result<int> result) { codes.push_back(result.error().code()); };
  async_run(*runtime, hold_result(*runtime, alive), note);
  runtime->run(add_later(*runtime, 0, 0, 1ms));
  EXPECT_EQ(alive, 1);
  async_run(*runtime, hold_result(*runtime, alive), note);  // has not even started
  runtime.reset();
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(codes.empty()) << "handlers run on their executor only";
  context.restart();
  context.run();
  EXPECT_EQ(codes, (std::vector<std::error_code>(2, make_error_code(Errc::cancelled))));
}

TEST(AsyncRunHandler, MayDestroyTheRuntime) {
  asio::io_context context;
  auto runtime = make_runtime(context, {.seed = 1, .pool_threads = 1});
  async_run(*runtime, add_later(*runtime, 1, 1, 1ms), [&](std::exception_ptr, int) { runtime.reset(); });
  context.run();
  EXPECT_FALSE(runtime);
}

TEST_F(AsyncRun, RunsTheHandlerOnItsOwnExecutor) {
  asio::thread_pool pool(1);
  std::thread::id where;
  auto strand = asio::make_strand(pool);
  async_run(*runtime, add_later(*runtime, 1, 1, 1ms),
            asio::bind_executor(strand, [&](std::exception_ptr, int) { where = std::this_thread::get_id(); }));
  context.run();
  pool.join();
  EXPECT_NE(where, std::thread::id());
  EXPECT_NE(where, std::this_thread::get_id());
}

}  // namespace
}  // namespace cohive
