#include "cohive/core/task.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

using testing::add_later;
using testing::fail_later;
using testing::hold;
using testing::hold_nested;
using testing::Tracker;

Task<int> nested(Runtime& runtime) {
  const int first = co_await add_later(runtime, 1, 2, 10ms);
  co_return first + co_await add_later(runtime, 3, 4, 20ms);
}

TEST(Task, NestedTasksReturnValuesAndLetVirtualTimePass) {
  SimRuntime runtime;
  const auto start = runtime.now();
  EXPECT_EQ(runtime.run(nested(runtime)), 10);
  EXPECT_EQ(runtime.now() - start, 30ms);
}

Task<std::unique_ptr<int>> make_box(int value) {
  co_return std::make_unique<int>(value);
}
Task<std::string> open_box() {
  auto box = co_await make_box(7);
  co_return std::to_string(*box);
}

TEST(Task, ResultsMayBeMoveOnlyAndNeedNoDefaultConstructor) {
  struct Number {
    explicit Number(int n) : value(n) {}
    int value;
  };
  SimRuntime runtime;
  EXPECT_EQ(runtime.run(open_box()), "7");
  auto number = [](int n) -> Task<Number> { co_return Number(n); };
  EXPECT_EQ(runtime.run(number(3)).value, 3);
}

Task<int> catch_and_go_on(Runtime& runtime) {
  try {
    co_await fail_later(runtime);
  } catch (const std::runtime_error& error) {
    co_return std::string(error.what()) == "broken" ? 1 : 2;
  }
  co_return 0;
}

Task<void> fail_deep(Runtime& runtime, int depth, int& alive) {
  Tracker tracker(alive);
  co_await (depth == 0 ? fail_later(runtime) : fail_deep(runtime, depth - 1, alive));
}

TEST(Task, ExceptionsUnwindThroughEveryAwaiter) {
  SimRuntime runtime;
  int alive = 0;
  EXPECT_THROW(runtime.run(fail_deep(runtime, 5, alive)), std::runtime_error);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.run(catch_and_go_on(runtime)), 1);
}

TEST(Task, ATaskThatNeverStartedOnlyDropsItsArguments) {
  SimRuntime runtime;
  auto argument = std::make_shared<int>(1);
  bool ran = false;
  {
    auto task = [](std::shared_ptr<int>, bool& flag) -> Task<void> {
      flag = true;
      co_return;
    }(argument, ran);
    EXPECT_EQ(argument.use_count(), 2);
  }
  EXPECT_EQ(argument.use_count(), 1);
  EXPECT_FALSE(ran);
}

Task<void> drop_child(Runtime& runtime, int& alive, int& seen) {
  auto child = hold_nested(runtime, alive);
  {
    TaskGroup group(runtime);
    group.spawn(std::move(child));
    co_await runtime.sleep_for(1ms);
    seen = alive;
  }
}

TEST(Task, DroppingASuspendedTaskRunsItsDestructorsAndDisarmsItsTimers) {
  SimRuntime runtime;
  int alive = 0, seen = 0;
  const auto start = runtime.now();
  runtime.run(drop_child(runtime, alive, seen));
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(alive, 0);
  runtime.run_for(2h);
  EXPECT_EQ(runtime.now() - start, 2h + 1ms);
  EXPECT_EQ(runtime.task_count(), 0u);
}

Task<int> count_down(int n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await count_down(n - 1);
}
Task<int> many_in_a_row(int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += co_await count_down(1);
  co_return sum;
}

TEST(Task, NeitherDeepNestingNorLongLoopsUseUpTheStack) {
  SimRuntime runtime;
  EXPECT_EQ(runtime.run(count_down(20'000)), 20'000);
  EXPECT_EQ(runtime.run(many_in_a_row(200'000)), 200'000);
}

}  // namespace
}  // namespace cohive
