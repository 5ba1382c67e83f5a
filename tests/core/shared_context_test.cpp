// A runtime on an io_context that belongs to somebody else.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <latch>
#include <thread>

#include "cohive/core/asio.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

namespace asio = boost::asio;
using testing::add_later;
using testing::hold;

std::unique_ptr<Runtime> on(asio::io_context& context) {
  return make_runtime(context, {.seed = 1, .pool_threads = 1});
}

Task<void> count_turns(Runtime& runtime, int turns, int& done) {
  for (int i = 0; i < turns; ++i) co_await runtime.sleep_for(1ms);
  ++done;
}

TEST(SharedContext, RunEndsWhenNoTaskIsLeft) {
  asio::io_context context;
  const auto runtime = on(context);
  EXPECT_EQ(&runtime->io_context(), &context);
  context.run();  // there was none
  int done = 0;
  TaskGroup tasks(*runtime);
  tasks.spawn(count_turns(*runtime, 5, done));
  tasks.spawn(count_turns(*runtime, 3, done));
  context.restart();
  context.run();
  EXPECT_EQ(done, 2);
}

TEST(SharedContext, RunWaitsForATaskThatOnlyAnotherThreadCanWake) {
  asio::io_context context;
  const auto runtime = on(context);
  Event woken(*runtime);
  bool ended = false;
  TaskGroup tasks(*runtime);
  tasks.spawn([](Event& event, bool& flag) -> Task<void> {
    co_await event.wait();
    flag = true;
  }(woken, ended));
  std::latch waiting(1);
  asio::post(context, [&] { asio::post(context, [&] { waiting.count_down(); }); });
  std::thread waker([&] {
    waiting.wait();
    runtime->post([&] { woken.set(); });
  });
  context.run();
  waker.join();
  EXPECT_TRUE(ended);
}

TEST(SharedContext, ServesOthersToo) {
  asio::io_context context;
  const auto one = on(context), two = on(context);
  int done = 0, ticks = 0;
  TaskGroup tasks_of_one(*one), tasks_of_two(*two);
  tasks_of_one.spawn(count_turns(*one, 5, done));
  tasks_of_two.spawn(count_turns(*two, 5, done));
  asio::steady_timer timer(context, 1ms);
  timer.async_wait([&](auto) { ++ticks; });
  context.run();
  EXPECT_EQ(done, 2);
  EXPECT_EQ(ticks, 1);
}

TEST(SharedContext, TwoRuntimesHaveTheirOwnTasksAndMetrics) {
  asio::io_context context;
  const auto one = on(context), two = on(context);
  int alive = 0;
  TaskGroup tasks(*one);
  tasks.spawn(hold(*one, alive));
  EXPECT_EQ(two->run(add_later(*two, 1, 2, 1ms)), 3);
  EXPECT_EQ(alive, 1) << "two's run() turned the context for both";
  EXPECT_EQ(one->task_count(), 1u);
  EXPECT_EQ(two->task_count(), 0u);
  EXPECT_NE(&one->metrics(), &two->metrics());
}

TEST(SharedContext, RuntimeRunRestartsAStoppedContext) {
  asio::io_context context;
  const auto runtime = on(context);
  context.run();
  ASSERT_TRUE(context.stopped());
  EXPECT_EQ(runtime->run(add_later(*runtime, 1, 2, 1ms)), 3);
}

TEST(SharedContext, RuntimeRunDoesNotLeaveTheContextStopped) {
  asio::io_context context;
  const auto runtime = on(context);
  EXPECT_EQ(runtime->run(add_later(*runtime, 1, 2, 1ms)), 3);
  int done = 0;
  TaskGroup tasks(*runtime);
  tasks.spawn(count_turns(*runtime, 3, done));
  context.run();
  EXPECT_EQ(done, 1);
}

TEST(SharedContext, RuntimeRunThrowsWhenTheContextIsStopped) {
  asio::io_context context;
  const auto runtime = on(context);
  int alive = 0;
  asio::steady_timer timer(context, 1ms);
  timer.async_wait([&](auto) { context.stop(); });
  try {
    runtime->run(hold(*runtime, alive));
    FAIL() << "no exception";
  } catch (const ErrorException& exception) {
    EXPECT_EQ(exception.error(), Errc::cancelled);
  }
  EXPECT_EQ(alive, 0);
}

TEST(SharedContext, RuntimeRunIsRefusedInAHandler) {
  asio::io_context context;
  const auto runtime = on(context);
  asio::post(context, [&] { EXPECT_THROW(runtime->run(add_later(*runtime, 1, 1, 1ms)), std::logic_error); });
  context.run();
}

TEST(SharedContext, ASecondThreadIsRefused) {
  asio::io_context context;
  const auto runtime = on(context);
  std::latch inside(1), refused(1);
  runtime->post([&] {
    inside.count_down();
    refused.wait();
  });
  std::thread first([&] { context.run(); });
  inside.wait();
  runtime->post([] { ADD_FAILURE() << "two threads inside"; });
  EXPECT_THROW(context.run(), std::logic_error);
  refused.count_down();
  first.join();
}

TEST(SharedContext, AThreadBesideRuntimeRunIsRefused) {
  asio::io_context context;
  const auto runtime = on(context);
  std::latch inside(1), refused(1);
  auto block = [](std::latch& here, std::latch& go_on) -> Task<void> {
    here.count_down();
    go_on.wait();
    co_return;
  };
  std::thread first([&] { runtime->run(block(inside, refused)); });
  inside.wait();
  runtime->post([] { ADD_FAILURE() << "two threads inside"; });
  EXPECT_THROW(context.run(), std::logic_error);
  refused.count_down();
  first.join();
}

TEST(SharedContext, MayMoveToAnotherThread) {
  asio::io_context context;
  const auto runtime = on(context);
  EXPECT_EQ(runtime->run(add_later(*runtime, 1, 2, 1ms)), 3);
  std::thread([&] { EXPECT_EQ(runtime->run(add_later(*runtime, 3, 4, 1ms)), 7); }).join();
}

TEST(SharedContext, SurvivesTheRuntime) {
  asio::io_context context;
  auto runtime = on(context);
  int alive = 0, others = 0;
  bool posted_ran = false;
  {
    TaskGroup tasks(*runtime);
    tasks.spawn(hold(*runtime, alive));
    runtime->run(add_later(*runtime, 0, 0, 1ms));
    tasks.spawn(hold(*runtime, alive));
    runtime->post([&] { posted_ran = true; });
    asio::post(context, [&] { ++others; });
  }
  runtime.reset();
  EXPECT_EQ(alive, 0);
  context.restart();
  context.run();
  EXPECT_EQ(others, 1);
  EXPECT_FALSE(posted_ran);
}

TEST(SharedContext, OffloadedWorkEndsBeforeTheRuntimeDoes) {
  asio::io_context context;
  std::latch started(1);
  std::atomic<bool> finished = false;
  {
    const auto runtime = on(context);
    TaskGroup tasks(*runtime);
    tasks.spawn([](Runtime& r, std::latch& begun, std::atomic<bool>& done) -> Task<void> {
      co_await r.offload([&begun, &done] {
        begun.count_down();
        std::this_thread::sleep_for(5ms);
        done = true;
      });
    }(*runtime, started, finished));
    runtime->run(add_later(*runtime, 0, 0, 1ms));
    started.wait();
  }
  EXPECT_TRUE(finished);
  context.restart();
  context.run();
}

}  // namespace
}  // namespace cohive
