#include "cohive/core/combine.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

using testing::add_later;
using testing::fail_later;
using testing::hold;
using testing::Tracker;

Task<Result<int>> slow(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await runtime.sleep_for(10s);
  co_return 5;
}
Task<Result<int>> slow_within(Runtime& runtime, Duration limit, int& alive) {
  co_return co_await within(runtime, runtime.after(limit), slow(runtime, alive), "slow work");
}

TEST(Within, DropsTheTaskWhenTheDeadlinePassesAndNamesTheExchange) {
  SimRuntime runtime;
  int alive = 0;
  const auto start = runtime.now();
  auto result = runtime.run(slow_within(runtime, 3s, alive));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::timeout);
  EXPECT_NE(result.error().message().find("slow work"), std::string::npos);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.now() - start, 3s);
}

TEST(Within, PassesTheResultOnWhenInTime) {
  SimRuntime runtime;
  int alive = 0;
  EXPECT_EQ(runtime.run(slow_within(runtime, 11s, alive)).value(), 5);
  EXPECT_EQ(alive, 0);
}

TEST(Within, ADeadlineThatHasPassedStillLetsWorkEndThatNeedsNoWaiting) {
  SimRuntime runtime;
  auto at_once = []() -> Task<Result<int>> { co_return 3; };
  auto outer = [](Runtime& r, Task<Result<int>> task) -> Task<Result<int>> {
    co_return co_await within(r, Deadline(r.now() - 1s), std::move(task));
  };
  EXPECT_EQ(runtime.run(outer(runtime, at_once())).value(), 3);
}

TEST(Within, AnExceptionOfTheTaskReachesTheAwaiter) {
  SimRuntime runtime;
  auto fail = [](Runtime& r) -> Task<Result<>> {
    co_await fail_later(r);
    co_return ok();
  };
  auto outer = [](Runtime& r, Task<Result<>> task) -> Task<void> {
    (void)co_await within(r, r.after(1s), std::move(task));
  };
  EXPECT_THROW(runtime.run(outer(runtime, fail(runtime))), std::runtime_error);
}

TEST(Within, TakesTasksThatReturnNoResult) {
  SimRuntime runtime;
  auto plain = [](Runtime& r, Duration limit) -> Task<Result<int>> {
    co_return co_await within(r, r.after(limit), add_later(r, 2, 3, 1s));
  };
  EXPECT_EQ(runtime.run(plain(runtime, 2s)).value(), 5);
  EXPECT_EQ(runtime.run(plain(runtime, 500ms)).error(), Errc::timeout);

  int alive = 0;
  auto nothing = [](Runtime& r, Task<void> task, Duration limit) -> Task<Result<>> {
    co_return co_await within(r, r.after(limit), std::move(task), "waiting");
  };
  EXPECT_TRUE(runtime.run(nothing(runtime, [](Runtime& r) -> Task<void> { co_await r.sleep_for(1s); }(runtime), 2s)));
  EXPECT_EQ(runtime.run(nothing(runtime, hold(runtime, alive), 2s)).error(), Errc::timeout);
  EXPECT_EQ(alive, 0);
  EXPECT_THROW(runtime.run(nothing(runtime, fail_later(runtime), 2s)), std::runtime_error);
}

TEST(Within, DroppedItselfItDropsItsTask) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn([](Runtime& r, int& count) -> Task<void> { (void)co_await slow_within(r, 5s, count); }(runtime, alive));
  runtime.run_for(1s);
  EXPECT_EQ(alive, 1);
  group.cancel();
  EXPECT_EQ(alive, 0);
}

Task<std::size_t> race_two(Runtime& runtime, int& alive) {
  auto outcome = co_await race(runtime, hold(runtime, alive), add_later(runtime, 1, 1, 5ms));
  co_return outcome.index();
}

TEST(Race, ReturnsTheFirstAndDropsTheOther) {
  SimRuntime runtime;
  int alive = 0;
  EXPECT_EQ(runtime.run(race_two(runtime, alive)), 1u);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

TEST(Race, RethrowsTheExceptionOfTheFirst) {
  SimRuntime runtime;
  int alive = 0;
  auto both = [](Runtime& r, int& count) -> Task<void> { co_await race(r, fail_later(r), hold(r, count)); };
  EXPECT_THROW(runtime.run(both(runtime, alive)), std::runtime_error);
  EXPECT_EQ(alive, 0);
}

TEST(Race, DroppedItselfItDropsBoth) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn(
      [](Runtime& r, int& count) -> Task<void> { co_await race(r, hold(r, count), hold(r, count)); }(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 2);
  group.cancel();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

Task<std::vector<int>> three(Runtime& runtime) {
  std::vector<Task<int>> tasks;
  for (int i = 0; i < 3; ++i) tasks.push_back(add_later(runtime, i, 10, (3 - i) * 10ms));
  co_return co_await when_all(runtime, std::move(tasks));
}

TEST(WhenAll, RunsAtOnceAndKeepsTheOrderOfTheTasks) {
  SimRuntime runtime;
  const auto start = runtime.now();
  EXPECT_EQ(runtime.run(three(runtime)), (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(runtime.now() - start, 30ms);
}

TEST(WhenAll, RethrowsOnlyAfterAllHaveEnded) {
  SimRuntime runtime;
  const auto start = runtime.now();
  std::vector<Task<void>> tasks;
  tasks.push_back(fail_later(runtime, 1ms));
  tasks.push_back([](Runtime& r) -> Task<void> { co_await r.sleep_for(9ms); }(runtime));
  EXPECT_THROW(runtime.run(when_all(runtime, std::move(tasks))), std::runtime_error);
  EXPECT_EQ(runtime.now() - start, 9ms);
}

TEST(WhenAll, OfNothingEndsAtOnce) {
  SimRuntime runtime;
  EXPECT_TRUE(runtime.run(when_all(runtime, std::vector<Task<int>>())).empty());
}

}  // namespace
}  // namespace cohive
