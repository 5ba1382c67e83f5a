#include "cohive/core/task_group.hpp"

#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

using testing::fail_later;
using testing::hold;
using testing::hold_nested;
using testing::join_group;
using testing::Tracker;

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

TEST(TaskGroup, CancelsWhatHasNotStartedAndCanBeUsedAgain) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn(hold(runtime, alive));
  group.cancel();
  runtime.run_ready();
  EXPECT_EQ(alive, 0);
  group.spawn(hold(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 1);
  EXPECT_EQ(group.size(), 1u);
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

Task<void> cancel_own_group(Runtime& runtime, TaskGroup& group, int& alive, bool& went_on, bool& continued) {
  Tracker tracker(alive);
  group.cancel();
  went_on = true;
  co_await runtime.sleep_for(1ms);
  continued = true;
}

TEST(TaskGroup, ATaskThatCancelsItsOwnGroupIsDroppedAtItsNextSuspension) {
  SimRuntime runtime;
  int alive = 0;
  bool went_on = false, continued = false;
  TaskGroup group(runtime);
  group.spawn(hold(runtime, alive));
  group.spawn(cancel_own_group(runtime, group, alive, went_on, continued));
  runtime.run_for(1s);
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(went_on);
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

/// An object kept alive by a task in its own group.
struct Session {
  explicit Session(Runtime& runtime, int& count) : tracker(count), tasks(runtime) {}
  Tracker tracker;
  TaskGroup tasks;
};
Task<void> use_session(Runtime& runtime, std::shared_ptr<Session> session) {
  co_await runtime.sleep_for(1ms);
  (void)session;
}

TEST(TaskGroup, MayEndWithTheLastTaskThatKeptItsOwnerAlive) {
  SimRuntime runtime;
  int alive = 0;
  auto session = std::make_shared<Session>(runtime, alive);
  session->tasks.spawn(use_session(runtime, session));
  session.reset();
  EXPECT_EQ(alive, 1);
  runtime.run_for(1s);
  EXPECT_EQ(alive, 0);
}

TEST(TaskGroup, MayEndInTheMidstOfItsOwnCancellation) {
  SimRuntime runtime;
  int alive = 0;
  auto session = std::make_shared<Session>(runtime, alive);
  Session* raw = session.get();
  raw->tasks.spawn(use_session(runtime, std::move(session)));
  for (int i = 0; i < 3; ++i) raw->tasks.spawn(hold(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 4);
  raw->tasks.cancel();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

// A server's task waits in a race; the handler that runs in the race shuts the server down.
Task<void> shut_down(Runtime& runtime, std::unique_ptr<TaskGroup>& server, std::vector<int>& parents_variable,
                     bool& done) {
  server.reset();
  parents_variable.push_back(1);  // must still exist
  done = true;
  co_await runtime.sleep_for(1ms);
  parents_variable.push_back(2);
}
Task<void> serve(Runtime& runtime, std::unique_ptr<TaskGroup>& server, int& alive, bool& done) {
  Tracker tracker(alive);
  std::vector<int> variable(1000);
  co_await race(runtime, shut_down(runtime, server, variable, done), hold(runtime, alive));
  ++alive;  // never reached
}

TEST(TaskGroup, ARacingHandlerMayDestroyTheGroupItWorksFor) {
  SimRuntime runtime;
  int alive = 0;
  bool done = false;
  auto server = std::make_unique<TaskGroup>(runtime);
  server->spawn(serve(runtime, server, alive, done));
  server->spawn(hold(runtime, alive));
  runtime.run_for(1s);
  EXPECT_TRUE(done);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

// A coroutine waits for its own nursery, one of whose tasks ends the group that the coroutine belongs to.
Task<void> search(Runtime& runtime, std::unique_ptr<TaskGroup>& server, int& alive, bool& done) {
  Tracker tracker(alive);
  std::vector<int> variable(1000);
  Nursery workers(runtime, "workers");
  workers.spawn(shut_down(runtime, server, variable, done));
  workers.spawn(hold(runtime, alive));
  co_await workers.join();
  ++alive;  // never reached
}

TEST(Nursery, ItsTasksMayEndTheGroupThatTheirCoroutineBelongsTo) {
  SimRuntime runtime;
  int alive = 0;
  bool done = false;
  auto server = std::make_unique<TaskGroup>(runtime);
  server->spawn(search(runtime, server, alive, done));
  runtime.run_for(1s);
  EXPECT_TRUE(done);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(runtime.task_count(), 0u);
}

TEST(Nursery, DropsItsTasksWithTheCoroutine) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn([](Runtime& r, int& count) -> Task<void> {
    Nursery workers(r);
    for (int i = 0; i < 3; ++i) workers.spawn(hold(r, count));
    co_await workers.join();
  }(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 3);
  group.cancel();
  EXPECT_EQ(alive, 0);
}

struct CancelOnExit {
  TaskGroup& group;
  ~CancelOnExit() { group.cancel(); }
};
Task<Result<int>> cancel_when_dropped(Runtime& runtime, TaskGroup& group, int& alive) {
  Tracker tracker(alive);
  CancelOnExit guard{group};
  co_await runtime.sleep_for(1h);
  co_return 1;
}
Task<void> give_up_soon(Runtime& runtime, TaskGroup& group, int& alive) {
  Tracker tracker(alive);
  (void)co_await within(runtime, runtime.after(1s), cancel_when_dropped(runtime, group, alive));
  co_await runtime.sleep_for(1h);
}

TEST(TaskGroup, ADestructorThatRunsAtADeadlineMayCancelTheGroup) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  group.spawn(give_up_soon(runtime, group, alive));
  group.spawn(hold(runtime, alive));
  runtime.run_for(2s);
  EXPECT_EQ(alive, 0);
  EXPECT_TRUE(group.empty());
}

TEST(TaskGroup, JoinWaitsForAllAndRethrowsTheFirstFailure) {
  SimRuntime runtime;
  TaskGroup group(runtime);
  const auto start = runtime.now();
  group.spawn(fail_later(runtime, 5ms));
  group.spawn([](Runtime& r) -> Task<void> { co_await r.sleep_for(20ms); }(runtime));
  EXPECT_THROW(runtime.run(join_group(group)), std::runtime_error);
  EXPECT_EQ(runtime.now() - start, 20ms);
  runtime.run(join_group(group));  // reported once
  EXPECT_NE(runtime.metrics().text().find("cohive_core_task_failures_total 1"), std::string::npos);
}

TEST(TaskGroup, CancellationReleasesThoseWhoJoin) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime), waiting(runtime);
  group.spawn(hold(runtime, alive));
  waiting.spawn(join_group(group));
  runtime.run_ready();
  EXPECT_FALSE(waiting.empty());
  group.cancel();
  runtime.run_ready();
  EXPECT_TRUE(waiting.empty());
}

TEST(TaskGroup, ManyTasksAreDroppedAtOnce) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime);
  for (int i = 0; i < 50'000; ++i) group.spawn(hold(runtime, alive));
  runtime.run_ready();
  EXPECT_EQ(alive, 50'000);
  group.cancel();
  EXPECT_EQ(alive, 0);
}

TEST(TaskGroup, LiveTasksCanBeListedWithWhatTheyWaitFor) {
  SimRuntime runtime;
  int alive = 0;
  TaskGroup group(runtime, "sessions");
  group.spawn(hold(runtime, alive), "reader");
  runtime.run_for(3s);
  const auto tasks = runtime.tasks();
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].group, "sessions");
  EXPECT_EQ(tasks[0].name, "reader");
  EXPECT_EQ(tasks[0].waiting_for, "sleep");
  EXPECT_EQ(tasks[0].age, 3s);
}

}  // namespace
}  // namespace cohive
