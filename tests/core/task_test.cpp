#include "cohive/core/combine.hpp"
#include "cohive/core/sim_runtime.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace cohive {
namespace {

struct Tracker {
  int& alive;
  explicit Tracker(int& count) : alive(count) { ++alive; }
  ~Tracker() { --alive; }
};

Task<int> add_later(Runtime& runtime, int a, int b, Duration delay) {
  co_await runtime.sleep_for(delay);
  co_return a + b;
}

Task<int> nested(Runtime& runtime) {
  const int first = co_await add_later(runtime, 1, 2, 10ms);
  co_return first + co_await add_later(runtime, 3, 4, 20ms);
}

Task<void> fail_later(Runtime& runtime) {
  co_await runtime.sleep_for(1ms);
  throw std::runtime_error("broken");
}

Task<void> hold(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await runtime.sleep_for(std::chrono::hours(1));
}

Task<void> hold_nested(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await hold(runtime, alive);
}

Task<void> cancel_own_group(Runtime& runtime, TaskGroup& group, int& alive, bool& continued) {
  Tracker tracker(alive);
  group.cancel();
  co_await runtime.sleep_for(1ms);
  continued = true;
}

TEST(Task, NestedTasksReturnValuesAndLetVirtualTimePass) {
  SimRuntime runtime;
  const auto start = runtime.now();
  EXPECT_EQ(runtime.run(nested(runtime)), 10);
  EXPECT_EQ(runtime.now() - start, 30ms);
}

TEST(Task, ExceptionsReachTheAwaiter) {
  SimRuntime runtime;
  EXPECT_THROW(runtime.run(fail_later(runtime)), std::runtime_error);
}

TEST(TaskGroup, CancellingDestroysFramesAndTheirLocals) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn(hold_nested(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 2);
  group.cancel();
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(group.empty());
  EXPECT_EQ(runtime.task_count(), 0u);
}

TEST(TaskGroup, DestructorDropsWhatStillRuns) {
  SimRuntime runtime;
  int alive = 0;
  {
    TaskGroup group(runtime);
    group.spawn(hold(runtime, alive));
    runtime.run_ready();
  }
  EXPECT_EQ(alive, 0);
}

TEST(TaskGroup, ATaskThatCancelsItsOwnGroupIsDroppedAtItsNextSuspension) {
  SimRuntime runtime;
  int alive = 0;
  bool continued = false;
  TaskGroup group(runtime);
  group.spawn(hold(runtime, alive));
  group.spawn(cancel_own_group(runtime, group, alive, continued));
  runtime.run_for(1s);
  EXPECT_EQ(alive, 0);
  EXPECT_FALSE(continued);
  EXPECT_TRUE(group.empty());
}

Task<void> destroy_own_group(Runtime& runtime, std::unique_ptr<TaskGroup>& group, int& alive) {
  Tracker tracker(alive);
  group.reset();
  co_await runtime.sleep_for(1ms);
}

TEST(TaskGroup, MayBeDestroyedByItsOwnTask) {
  SimRuntime runtime;
  int alive = 0;
  auto group = std::make_unique<TaskGroup>(runtime);
  group->spawn(destroy_own_group(runtime, group, alive));
  runtime.run_for(1s);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

Task<void> join_group(TaskGroup& group) { co_await group.join(); }

TEST(TaskGroup, JoinRethrowsTheFirstFailure) {
  SimRuntime runtime;
  TaskGroup group(runtime);
  group.spawn(fail_later(runtime));
  EXPECT_THROW(runtime.run(join_group(group)), std::runtime_error);
}

Task<Result<int>> slow(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await runtime.sleep_for(10s);
  co_return 5;
}

Task<Result<int>> slow_within(Runtime& runtime, Duration limit, int& alive) {
  co_return co_await within(runtime, runtime.after(limit), slow(runtime, alive), "slow work");
}

TEST(Within, DropsTheTaskWhenTheDeadlinePasses) {
  SimRuntime runtime;
  int alive = 0;
  const auto start = runtime.now();
  auto result = runtime.run(slow_within(runtime, 3s, alive));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::timeout);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.now() - start, 3s);
}

TEST(Within, PassesTheResultOnWhenInTime) {
  SimRuntime runtime;
  int alive = 0;
  EXPECT_EQ(runtime.run(slow_within(runtime, 11s, alive)).value(), 5);
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
}

Task<std::vector<int>> three(Runtime& runtime) {
  std::vector<Task<int>> tasks;
  for (int i = 0; i < 3; ++i) tasks.push_back(add_later(runtime, i, 10, (3 - i) * 10ms));
  co_return co_await when_all(runtime, std::move(tasks));
}

TEST(WhenAll, KeepsTheOrderOfTheTasks) {
  SimRuntime runtime;
  const auto start = runtime.now();
  EXPECT_EQ(runtime.run(three(runtime)), (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(runtime.now() - start, 30ms);
}

Task<void> consume(Channel<int>& channel, std::vector<int>& out) {
  while (auto item = co_await channel.receive()) out.push_back(*item);
}
Task<void> produce(Channel<int>& channel, int count) {
  for (int i = 0; i < count; ++i) co_await channel.send(i);
  channel.close();
}

TEST(Channel, DeliversInOrderThroughASmallBufferAndEndsWhenClosed) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 2);
  std::vector<int> out;
  TaskGroup group(runtime);
  group.spawn(consume(channel, out));
  group.spawn(produce(channel, 5));
  runtime.run(join_group(group));
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3, 4}));
}

Task<std::optional<int>> receive_until(Channel<int>& channel, Runtime& runtime, Duration limit) {
  co_return co_await channel.receive(runtime.after(limit));
}

TEST(Channel, ReceiveGivesUpAtItsDeadline) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 2);
  EXPECT_FALSE(runtime.run(receive_until(channel, runtime, 2s)));
}

Task<void> use_units(Runtime& runtime, Semaphore& semaphore, std::size_t count, int name, std::vector<int>& order) {
  auto units = co_await semaphore.acquire(count);
  order.push_back(name);
  co_await runtime.sleep_for(1ms);
}

TEST(Semaphore, ServesInOrderEvenWhenALaterOneWouldFit) {
  SimRuntime runtime;
  Semaphore semaphore(runtime, 2);
  std::vector<int> order;
  TaskGroup group(runtime);
  group.spawn(use_units(runtime, semaphore, 1, 1, order));
  group.spawn(use_units(runtime, semaphore, 2, 2, order));
  group.spawn(use_units(runtime, semaphore, 1, 3, order));
  runtime.run(join_group(group));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(semaphore.available(), 2u);
}

TEST(SimRuntime, ReportsADeadlockWithTheNamesOfTheWaiters) {
  SimRuntime runtime;
  Event never(runtime, "the event that never comes");
  auto wait = [](Event& event) -> Task<void> { co_await event.wait(); };
  try {
    runtime.run(wait(never));
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("the event that never comes"), std::string::npos);
  }
}

Task<std::thread::id> where(Runtime& runtime) {
  co_return co_await runtime.offload([] { return std::this_thread::get_id(); });
}

TEST(Runtime, OffloadsToAnotherThreadAndComesBack) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  EXPECT_NE(runtime->run(where(*runtime)), std::this_thread::get_id());
}

TEST(RuntimeThread, RunsTasksForOtherThreadsAndStopsCleanly) {
  RuntimeThread loop;
  EXPECT_EQ(loop.run([&] { return add_later(loop.runtime(), 2, 3, 1ms); }), 5);
  EXPECT_THROW(loop.run([&] { return fail_later(loop.runtime()); }), std::runtime_error);
}

TEST(Runtime, TimersFireInOrderAndCanBeRearmed) {
  SimRuntime runtime;
  std::vector<int> fired;
  struct Entry {
    std::vector<int>* out;
    int id;
  };
  Entry a{&fired, 1}, b{&fired, 2}, c{&fired, 3};
  auto note = [](void* p) { static_cast<Entry*>(p)->out->push_back(static_cast<Entry*>(p)->id); };
  Timer ta(runtime, note, &a), tb(runtime, note, &b), tc(runtime, note, &c);
  const auto start = runtime.now();
  ta.arm(start + 30ms);
  tb.arm(start + 20ms);
  tc.arm(start + 10ms);
  ta.arm(start + 5ms);
  tb.disarm();
  runtime.run_for(1s);
  EXPECT_EQ(fired, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace cohive
