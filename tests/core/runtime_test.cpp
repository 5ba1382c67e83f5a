#include "cohive/core/runtime.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <latch>
#include <thread>

#include "cohive/core/metrics.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

using testing::add_later;
using testing::fail_later;
using testing::hold;
using testing::Tracker;

struct Note {
  std::vector<int>* out;
  int id;
  static void fire(void* self) { static_cast<Note*>(self)->out->push_back(static_cast<Note*>(self)->id); }
};

TEST(Timer, FiresInOrderAndCanBeRearmedAndDisarmed) {
  SimRuntime runtime;
  std::vector<int> fired;
  Note a{&fired, 1}, b{&fired, 2}, c{&fired, 3};
  Timer ta(runtime, Note::fire, &a), tb(runtime, Note::fire, &b), tc(runtime, Note::fire, &c);
  const auto start = runtime.now();
  ta.arm(start + 30ms);
  tb.arm(start + 20ms);
  tc.arm(start + 10ms);
  ta.arm(start + 5ms);
  tb.disarm();
  EXPECT_FALSE(tb.armed());
  runtime.run_for(1s);
  EXPECT_EQ(fired, (std::vector<int>{1, 3}));
  EXPECT_FALSE(ta.armed());
}

TEST(Timer, TiesFireInTheOrderOfArmingAndNeverDoesNotArm) {
  SimRuntime runtime;
  std::vector<int> fired;
  std::deque<Note> notes;
  std::deque<Timer> timers;
  const auto at = runtime.now() + 1s;
  for (int i = 0; i < 100; ++i) {
    notes.push_back({&fired, i});
    timers.emplace_back(runtime, Note::fire, &notes.back()).arm(at);
  }
  Note never{&fired, -1};
  Timer idle(runtime, Note::fire, &never);
  idle.arm(Deadline::never());
  EXPECT_FALSE(idle.armed());
  for (int i = 0; i < 100; i += 2) timers[i].arm(at);  // the even ones go behind
  runtime.run_for(2s);
  ASSERT_EQ(fired.size(), 100u);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(fired[i], 2 * i + 1);
    EXPECT_EQ(fired[50 + i], 2 * i);
  }
}

TEST(Timer, ManyRandomTimersFireSortedWhileOthersComeAndGo) {
  SimRuntime runtime(3);
  struct Clock {
    Runtime& runtime;
    std::vector<TimePoint> times;
  } clock{runtime, {}};
  auto fire = [](void* c) { static_cast<Clock*>(c)->times.push_back(static_cast<Clock*>(c)->runtime.now()); };
  std::deque<Timer> timers;
  for (int i = 0; i < 1000; ++i) timers.emplace_back(runtime, fire, &clock);
  std::vector<TimePoint> expected;
  for (int i = 0; i < 1000; ++i) {
    const auto at = runtime.now() + from_seconds(runtime.random_unit());
    timers[i].arm(at);
    if (i % 3 == 0) timers[i / 2].disarm();
  }
  std::size_t armed = 0;
  for (auto& timer : timers) armed += timer.armed();
  runtime.run_for(2s);
  EXPECT_EQ(clock.times.size(), armed);
  EXPECT_TRUE(std::is_sorted(clock.times.begin(), clock.times.end()));
}

Task<void> spin(Runtime& runtime, int& turns, const bool& stop) {
  while (!stop) {
    ++turns;
    co_await runtime.yield();
  }
}

TEST(Runtime, YieldLetsEveryReadyTaskRunOnce) {
  SimRuntime runtime;
  int a = 0, b = 0;
  bool stop = false;
  TaskGroup group(runtime);
  group.spawn(spin(runtime, a, stop));
  group.spawn(spin(runtime, b, stop));
  auto watch = [](Runtime& r, bool& flag) -> Task<void> {
    for (int i = 0; i < 10; ++i) co_await r.yield();
    flag = true;
  };
  runtime.run(watch(runtime, stop));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, 11);
}

TEST(Runtime, ABusyTaskStopsNeitherTimersNorPostedFunctions) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  int turns = 0;
  bool stop = false;
  TaskGroup group(*runtime);
  group.spawn(spin(*runtime, turns, stop));
  EXPECT_EQ(runtime->run(add_later(*runtime, 2, 2, 5ms)), 4);
  auto wait = [](Event& event) -> Task<void> { co_await event.wait(); };
  Event posted(*runtime);
  runtime->post([&] { posted.set(); });
  runtime->run(wait(posted));
  EXPECT_GT(turns, 0);
}

TEST(Runtime, RefusesToRunInsideItself) {
  SimRuntime runtime;
  auto nested = [](SimRuntime& r) -> Task<void> {
    r.run(add_later(r, 1, 1, 1ms));
    co_return;
  };
  EXPECT_THROW(runtime.run(nested(runtime)), std::logic_error);
}

TEST(Runtime, SleepingForeverIsNotSleepingNotAtAll) {
  SimRuntime runtime;
  TaskGroup group(runtime);
  group.spawn([](Runtime& r) -> Task<void> { co_await r.sleep_for(Duration::max()); }(runtime));
  runtime.run_for(std::chrono::hours(24 * 365));
  EXPECT_EQ(group.size(), 1u);
}

TEST(Runtime, KeepsOneObjectOfAKindPerLoop) {
  struct Counter {
    explicit Counter(Runtime&) {}
    int value = 0;
  };
  SimRuntime one, two;
  ++one.local<Counter>().value;
  ++one.local<Counter>().value;
  EXPECT_EQ(one.local<Counter>().value, 2);
  EXPECT_EQ(two.local<Counter>().value, 0);
}

Task<std::thread::id> where(Runtime& runtime) {
  co_return co_await runtime.offload([] { return std::this_thread::get_id(); });
}

TEST(Offload, RunsOnAnotherThreadAndComesBack) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  EXPECT_NE(runtime->run(where(*runtime)), std::this_thread::get_id());
}

TEST(Offload, BringsExceptionsAndMoveOnlyResultsBack) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  auto failing = [](Runtime& r) -> Task<void> { co_await r.offload([] { throw std::runtime_error("work"); }); };
  EXPECT_THROW(runtime->run(failing(*runtime)), std::runtime_error);
  auto boxed = [](Runtime& r) -> Task<int> {
    auto box = std::make_unique<int>(4);
    auto result = co_await r.offload([box = std::move(box)]() mutable { return std::move(box); });
    co_return *result;
  };
  EXPECT_EQ(runtime->run(boxed(*runtime)), 4);
}

TEST(Offload, WorkOfADroppedTaskStillRunsAndItsResultIsDiscarded) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  std::latch started(1), go_on(1);
  std::atomic<bool> finished = false;
  auto result = std::make_shared<int>(1);
  std::weak_ptr<int> watch = result;
  bool resumed = false;
  {
    TaskGroup group(*runtime);
    group.spawn([](Runtime& r, std::latch& s, std::latch& g, std::atomic<bool>& f, std::shared_ptr<int> value,
                   bool& resumed_flag) -> Task<void> {
      co_await r.offload([&s, &g, &f, value = std::move(value)] {
        s.count_down();
        g.wait();
        f = true;
        return value;
      });
      resumed_flag = true;
    }(*runtime, started, go_on, finished, std::move(result), resumed));
    runtime->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime));
    started.wait();
  }
  go_on.count_down();
  runtime->run(where(*runtime));  // the only worker is free again
  EXPECT_TRUE(finished);
  EXPECT_FALSE(resumed);
  runtime->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime));
  EXPECT_TRUE(watch.expired());
}

TEST(Offload, WorkThatHasNotBegunIsDroppedWithItsTask) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  std::latch started(1), go_on(1);
  std::atomic<int> ran = 0;
  TaskGroup first(*runtime);
  first.spawn([](Runtime& r, std::latch& s, std::latch& g) -> Task<void> {
    co_await r.offload([&s, &g] {
      s.count_down();
      g.wait();
    });
  }(*runtime, started, go_on));
  {
    TaskGroup waiting(*runtime);
    for (int i = 0; i < 100; ++i)
      waiting.spawn([](Runtime& r, std::atomic<int>& count) -> Task<void> {
        co_await r.offload([&count] { ++count; });
      }(*runtime, ran));
    runtime->run([](Runtime& r) -> Task<void> { co_await r.yield(); }(*runtime));
    started.wait();
  }
  go_on.count_down();
  runtime->run(where(*runtime));  // the only worker is free again
  EXPECT_EQ(ran, 0);
}

TEST(Offload, WorkThatWaitsForADiskHoldsNoThreadOfThePool) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  std::latch slow_disk(1);
  TaskGroup writing(*runtime);
  for (int i = 0; i < 3; ++i)
    writing.spawn([](Runtime& r, std::latch& disk) -> Task<void> { co_await r.offload_io([&disk] { disk.wait(); }); }(
                                                       *runtime, slow_disk));
  for (int i = 0; i < 10; ++i) runtime->run(where(*runtime));  // would wait for the disk for ever
  EXPECT_EQ(writing.size(), 3u);
  slow_disk.count_down();
  runtime->run(writing.join());
}

TEST(Offload, BringsResultsOfWorkThatWaitsBack) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  auto read = [](Runtime& r) -> Task<int> {
    co_return co_await r.offload_io([box = std::make_unique<int>(4)] { return *box; });
  };
  EXPECT_EQ(runtime->run(read(*runtime)), 4);
  auto failing = [](Runtime& r) -> Task<void> { co_await r.offload_io([] { throw std::runtime_error("disk"); }); };
  EXPECT_THROW(runtime->run(failing(*runtime)), std::runtime_error);
}

void spin_for(Duration time) {
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
  }
}

TEST(Runtime, ManyTasksThatTakeTheirTimeKeepNoTimerWaiting) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  struct Seen {
    int ran = 0, at_timer = -1;
  } seen;
  Timer timer(*runtime, [](void* s) { static_cast<Seen*>(s)->at_timer = static_cast<Seen*>(s)->ran; }, &seen);
  timer.arm(runtime->now() + 1ms);
  TaskGroup group(*runtime);
  for (int i = 0; i < 200; ++i)
    group.spawn([](int& count) -> Task<void> {
      spin_for(1ms);
      ++count;
      co_return;
    }(seen.ran));
  runtime->run(group.join());
  EXPECT_EQ(seen.ran, 200);
  EXPECT_GE(seen.at_timer, 0);
  EXPECT_LT(seen.at_timer, 50) << "what was ready ran before a timer that was due";
}

TEST(Runtime, ALoopThatIsAlwaysLateFiresItsTimers) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  struct Seen {
    int turns = 0, fired = 0, at_first = 0;
  } seen;
  struct Ticks {
    Ticks(Runtime& r, Seen& s) : loop(r), out(s), timer(r, &Ticks::fire, this) { timer.arm(loop.now() + 1ms); }
    static void fire(void* self) {
      auto& ticks = *static_cast<Ticks*>(self);
      if (ticks.out.fired++ == 0) ticks.out.at_first = ticks.out.turns;
      ticks.timer.arm(ticks.loop.now() + 1ms);
    }
    Runtime& loop;
    Seen& out;
    Timer timer;
  } ticks(*runtime, seen);
  ::testing::internal::CaptureStderr();  // of the stalls that it reports
  runtime->run([](Runtime& r, Seen& s) -> Task<void> {
    for (; s.turns < 100 && s.fired < 3; ++s.turns) {
      spin_for(15ms);
      co_await r.yield();
    }
  }(*runtime, seen));
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(seen.fired, 3);
  EXPECT_LT(seen.at_first, 30) << "the loop looks at its timers every fourth time";
}

TEST(Runtime, CountsTurnsInWhichNothingElseIsServedAndNamesOne) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  const auto stalls = runtime->metrics().counter("cohive_core_loop_stalls_total", "");
  TaskGroup group(*runtime, "workers");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 16; ++i)
    group.spawn(
        []() -> Task<void> {
          spin_for(20ms);
          co_return;
        }(),
        "a hog");
  runtime->run(group.join());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(stalls.value(), 1);
  EXPECT_NE(said.find("workers/a hog"), std::string::npos) << said;
  EXPECT_EQ(said.find("workers/a hog"), said.rfind("workers/a hog")) << "one in ten seconds: " << said;
}

TEST(RuntimeThread, RunsTasksForOtherThreadsAndStopsCleanly) {
  RuntimeThread loop;
  EXPECT_EQ(loop.run([&] { return add_later(loop.runtime(), 2, 3, 1ms); }), 5);
  EXPECT_THROW(loop.run([&] { return fail_later(loop.runtime()); }), std::runtime_error);
}

TEST(RuntimeThread, ManyThreadsSubmitAtOnce) {
  RuntimeThread loop({.seed = 1, .pool_threads = 2});
  std::atomic<int> sum = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) sum += loop.run([&] { return add_later(loop.runtime(), i, 0, 0ms); });
      });
    }
  }
  EXPECT_EQ(sum, 4 * 49 * 50 / 2);
}

Task<int> holding(Runtime& runtime, std::shared_ptr<int> value) {
  co_await runtime.yield();
  co_return *value;
}

TEST(RuntimeThread, WhatATaskHeldIsGoneWhenItsResultArrives) {
  RuntimeThread loop({.seed = 1, .pool_threads = 1});
  for (int i = 0; i < 100; ++i) {
    auto value = std::make_shared<int>(i);
    EXPECT_EQ(loop.run([&loop, copy = value] { return holding(loop.runtime(), copy); }), i);
    EXPECT_EQ(value.use_count(), 1);
  }
}

TEST(RuntimeThread, ATaskCutOffByTheEndBreaksItsPromise) {
  int alive = 0;
  std::future<void> future;
  {
    RuntimeThread loop({.seed = 1, .pool_threads = 1});
    future = loop.runtime().submit([&] { return hold(loop.runtime(), alive); });
    loop.run([&] { return add_later(loop.runtime(), 0, 0, 0ms); });
  }
  EXPECT_EQ(alive, 0);
  EXPECT_THROW(future.get(), std::future_error);
}

TEST(WaitForSignal, ReturnsTheNumberOfTheSignal) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  runtime->background().spawn([](Runtime& r) -> Task<void> {
    co_await r.yield();
    std::raise(SIGTERM);
  }(*runtime));
  EXPECT_EQ(runtime->run(wait_for_signal(*runtime)), SIGTERM);
}

}  // namespace
}  // namespace cohive
