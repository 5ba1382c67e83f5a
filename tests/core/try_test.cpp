// Going on with a result's value or returning its error, in functions and in coroutines; and guards at a scope's end.
#include "cohive/core/try.hpp"

#include <gtest/gtest.h>

#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"
#include "core/vectors.hpp"

namespace cohive {
namespace {

using testing::kPeer;

Result<int> half(int number) {
  if (number % 2) return Error(Errc::invalid_argument, kPeer, "odd");
  return number / 2;
}
Result<> even(int number) {
  if (number % 2) return Error(Errc::invalid_argument, "odd");
  return ok();
}
Result<std::unique_ptr<int>> boxed_half(int number) {
  TRY(int value, half(number));
  return std::make_unique<int>(value);
}

Result<int> quarter(int number, int& went_on) {
  TRY(even(number));
  TRY(const auto once, half(number));
  ++went_on;
  if (once > 0) TRY(half(once));  // its value is of no interest
  TRY(auto twice, boxed_half(once));
  return *twice;
}

TEST(Try, GoesOnWithTheValue) {
  int went_on = 0;
  EXPECT_EQ(quarter(12, went_on).value(), 3);
  EXPECT_EQ(went_on, 1);
}

TEST(Try, ReturnsTheErrorWithItsPeerAndDetail) {
  int went_on = 0;
  EXPECT_FALSE(quarter(3, went_on));
  EXPECT_EQ(went_on, 0);
  const auto failed = quarter(6, went_on);
  EXPECT_EQ(went_on, 1);
  EXPECT_EQ(failed.error(), Errc::invalid_argument);
  EXPECT_EQ(failed.error().detail(), "odd");
  EXPECT_EQ(*failed.error().peer(), kPeer);
}

Result<std::string> moved_from(Result<std::string> given) {
  TRY(auto text, given);  // a variable is copied from, not emptied
  return text + given.value();
}
TEST(Try, LeavesAVariableAsItIs) {
  EXPECT_EQ(moved_from(std::string("a long text that lives on the heap ")).value().size(), 70u);
}

Task<Result<int>> later(Runtime& runtime, Result<int> result) {
  co_await runtime.sleep_for(1ms);
  co_return result;
}
Task<Result<>> sum(Runtime& runtime, Result<int> first, Result<int> second, int& out) {
  CO_TRY(const int one, co_await later(runtime, first));
  CO_TRY(co_await later(runtime, second));
  CO_TRY(auto two, co_await later(runtime, second));
  out = one + two;
  co_return ok();
}

TEST(CoTry, DoesTheSameInCoroutines) {
  SimRuntime runtime;
  int out = 0;
  EXPECT_TRUE(runtime.run(sum(runtime, 1, 2, out)));
  EXPECT_EQ(out, 3);
  EXPECT_EQ(runtime.run(sum(runtime, Error(Errc::reset), 2, out)).error(), Errc::reset);
  EXPECT_EQ(runtime.run(sum(runtime, 1, Error(Errc::closed), out)).error(), Errc::closed);
}

TEST(OnExit, CallsAtTheEndOfTheScopeHoweverItIsLeft) {
  int calls = 0;
  const auto leave = [&](bool by_exception) {
    const auto done = on_exit([&] { ++calls; });
    if (by_exception) throw std::runtime_error("out");
    EXPECT_EQ(calls, 0);
  };
  leave(false);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(leave(true), std::runtime_error);
  EXPECT_EQ(calls, 2);
}

TEST(OnExit, CanBeCancelled) {
  int calls = 0;
  {
    auto done = on_exit([&] { ++calls; });
    done.cancel();
  }
  EXPECT_EQ(calls, 0);
}

TEST(OnExit, RunsWhenATaskIsDropped) {
  SimRuntime runtime;
  int calls = 0;
  TaskGroup tasks(runtime);
  tasks.spawn([](Runtime& r, int& count) -> Task<void> {
    const auto done = on_exit([&] { ++count; });
    co_await r.sleep_for(1h);
  }(runtime, calls));
  runtime.run_ready();
  EXPECT_EQ(calls, 0);
  tasks.cancel();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace cohive
