// Work that strangers cause does not stand in the way of this program's own.
#include "core/detail/low_priority_thread.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <latch>

#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive {
namespace {

TEST(LowPriorityThread, OwnWorkGoesOnInAPoolOfOneThreadWhileManyJobsOfStrangersWait) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  LowPriorityThread low(*runtime);
  const auto own_work_is_done = std::make_shared<std::latch>(1);
  int finished = 0;
  const auto strangers = [&](int number) -> Task<void> {
    EXPECT_EQ(co_await low.run([own_work_is_done, number] {
      own_work_is_done->wait();  // for ever, if our own work had to wait for this
      return number;
    }),
              number);
    ++finished;
  };
  const auto all = [&]() -> Task<void> {
    Nursery jobs(*runtime, "jobs of strangers");
    for (int i = 0; i < 100; ++i) jobs.spawn(strangers(i), "a job");
    co_await runtime->yield();
    for (int i = 0; i < 3; ++i) co_await runtime->offload([] { return 1; });
    EXPECT_EQ(finished, 0);
    own_work_is_done->count_down();
    co_await jobs.join();
  };
  runtime->run(all());
  EXPECT_EQ(finished, 100);
}

TEST(LowPriorityThread, HasALowPriority) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  LowPriorityThread low(*runtime);
  const int usual = ::getpriority(PRIO_PROCESS, 0);
  EXPECT_GT(runtime->run(low.run([] { return ::getpriority(PRIO_PROCESS, 0); })), usual);
  const auto in_the_pool = [&]() -> Task<int> {
    co_return co_await runtime->offload([] { return ::getpriority(PRIO_PROCESS, 0); });
  };
  EXPECT_EQ(runtime->run(in_the_pool()), usual);
}

TEST(LowPriorityThread, ExceptionsComeBackAndWhatNobodyAwaitsIsNotBegun) {
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  const auto begun = std::make_shared<std::atomic<int>>(0);
  {
    LowPriorityThread low(*runtime);
    EXPECT_THROW(runtime->run(low.run([]() -> int { throw std::runtime_error("no"); })), std::runtime_error);
    const auto go_on = std::make_shared<std::latch>(1);
    const auto all = [&]() -> Task<void> {
      TaskGroup jobs(*runtime, "jobs");
      const auto job = [](LowPriorityThread& thread, std::shared_ptr<std::latch> gate,
                          std::shared_ptr<std::atomic<int>> count) -> Task<void> {
        co_await thread.run([gate, count] {
          ++*count;
          gate->wait();
          return 0;
        });
      };
      for (int i = 0; i < 10; ++i) jobs.spawn(job(low, go_on, begun), "a job");
      while (*begun == 0) co_await runtime->yield();
      jobs.cancel();
      go_on->count_down();
    };
    runtime->run(all());
  }
  EXPECT_EQ(*begun, 1);
}

TEST(LowPriorityThread, RunsInPlaceUnderSimulation) {
  SimRuntime runtime(1);
  LowPriorityThread low(runtime);
  EXPECT_EQ(runtime.run(low.run([] { return 42; })), 42);
}

}  // namespace
}  // namespace cohive
