#include "cohive/core/sim_runtime.hpp"

#include <gtest/gtest.h>

#include <ctime>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

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
  // The task that hung is gone, and the loop still works.
  EXPECT_EQ(runtime.task_count(), 0u);
  never.set();
  EXPECT_EQ(runtime.run(testing::add_later(runtime, 1, 1, 1ms)), 2);
}

Task<void> wander(Runtime& runtime, int name, std::vector<std::pair<TimePoint, int>>& log) {
  for (int i = 0; i < 20; ++i) {
    co_await runtime.sleep_for(from_seconds(runtime.random_unit() * 1e-3));
    log.emplace_back(runtime.now(), name);
  }
}
std::vector<std::pair<TimePoint, int>> history(std::uint64_t seed) {
  SimRuntime runtime(seed);
  std::vector<std::pair<TimePoint, int>> log;
  TaskGroup group(runtime);
  for (int i = 0; i < 20; ++i) group.spawn(wander(runtime, i, log));
  runtime.run_for(1min);
  return log;
}

TEST(SimRuntime, TheSameSeedGivesTheSameHistory) {
  EXPECT_EQ(history(5), history(5));
  EXPECT_NE(history(5), history(6));
}

TEST(SimRuntime, WallTimeAdvancesWithVirtualTime) {
  SimRuntime runtime;
  const double before = runtime.wall_time();
  runtime.run_for(90s);
  EXPECT_DOUBLE_EQ(runtime.wall_time() - before, 90.0);
}

TEST(SimRuntime, HasNoSocketsToOffer) {
  SimRuntime runtime;
  EXPECT_TRUE(runtime.simulated());
  EXPECT_THROW(runtime.io_context(), std::logic_error);
}

TEST(SimRuntime, PostedFunctionsRunInOrder) {
  SimRuntime runtime;
  std::vector<int> order;
  runtime.post([&] {
    order.push_back(1);
    runtime.post([&] { order.push_back(3); });
  });
  runtime.post([&] { order.push_back(2); });
  runtime.run_ready();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(SimRuntime, OffloadedWorkTakesNoVirtualTime) {
  SimRuntime runtime;
  const auto start = runtime.now();
  auto work = [](Runtime& r) -> Task<int> { co_return co_await r.offload([] { return 4; }); };
  EXPECT_EQ(runtime.run(work(runtime)), 4);
  auto failing = [](Runtime& r) -> Task<void> { co_await r.offload([] { throw std::runtime_error("work"); }); };
  EXPECT_THROW(runtime.run(failing(runtime)), std::runtime_error);
  EXPECT_EQ(runtime.now(), start);
}

/// Tells which turns of simulated loops are long, while it lives.
struct Watched {
  Watched() {
    SimRuntime::watch_turns([this](const SimRuntime::LongTurn& turn) { turns.push_back(turn); }, 20ms);
  }
  ~Watched() { SimRuntime::watch_turns(nullptr); }
  std::vector<SimRuntime::LongTurn> turns;
};

void compute_for(Duration time) {
  const auto used = [] { return Duration(std::chrono::seconds(1)) * std::clock() / CLOCKS_PER_SEC; };
  for (const Duration end = used() + time; used() < end;) {
  }
}

TEST(SimRuntime, NamesTasksThatKeepTheLoopForLong) {
  Watched watched;
  SimRuntime runtime;
  TaskGroup group(runtime, "workers");
  auto hog = [](Runtime& r) -> Task<void> {
    for (int i = 0; i < 100; ++i) co_await r.yield();
    compute_for(40ms);
  };
  group.spawn(hog(runtime), "a hog");
  group.spawn(
      [](Runtime& r) -> Task<void> {
        for (int i = 0; i < 100; ++i) co_await r.yield();
      }(runtime),
      "a polite one");
  runtime.run_ready();
  ASSERT_EQ(watched.turns.size(), 1u);
  EXPECT_EQ(watched.turns[0].what.find("workers/a hog, which waited for yield"), 0u) << watched.turns[0].what;
  EXPECT_GT(watched.turns[0].processor_time, 30ms);

  runtime.post([] { compute_for(40ms); });
  runtime.run_ready();
  ASSERT_EQ(watched.turns.size(), 2u);
  EXPECT_EQ(watched.turns[1].what, "a posted function");
}

TEST(SimRuntime, TakesNothingForTheLoopsThatOtherThreadsDoOnARealOne) {
  Watched watched;
  SimRuntime runtime;
  auto work = [](Runtime& r) -> Task<void> {
    co_await r.offload([] { compute_for(40ms); });
    co_await r.offload_io([] { compute_for(40ms); });
    const Runtime::OffLoop elsewhere(r);
    compute_for(40ms);
  };
  runtime.run(work(runtime));
  EXPECT_TRUE(watched.turns.empty()) << watched.turns[0].what;
}

}  // namespace
}  // namespace cohive
