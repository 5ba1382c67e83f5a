#include "cohive/core/sync.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"
#include "core/helpers.hpp"

namespace cohive {
namespace {

using testing::join_group;

Task<void> wait_for(Event& event, Deadline deadline, std::vector<std::string>& log, std::string name) {
  log.push_back(name + (co_await event.wait(deadline) ? " set" : " late"));
}

TEST(Event, WakesAllWhoWaitInOrderAndStaysSet) {
  SimRuntime runtime;
  Event event(runtime);
  std::vector<std::string> log;
  TaskGroup group(runtime);
  group.spawn(wait_for(event, Deadline::never(), log, "a"));
  group.spawn(wait_for(event, runtime.after(1s), log, "b"));
  group.spawn(wait_for(event, runtime.after(5s), log, "c"));
  runtime.run_for(2s);
  event.set();
  group.spawn(wait_for(event, Deadline::never(), log, "d"));
  runtime.run(join_group(group));
  EXPECT_EQ(log, (std::vector<std::string>{"b late", "a set", "c set", "d set"}));
  event.reset();
  EXPECT_FALSE(event.is_set());
}

TEST(Event, SetAtTheVeryMomentOfTheDeadlineCountsAsSet) {
  SimRuntime runtime;
  Event event(runtime);
  std::vector<std::string> log;
  TaskGroup group(runtime);
  // Both timers are due at once; the one armed first sets the event.
  Timer setter(runtime, [](void* e) { static_cast<Event*>(e)->set(); }, &event);
  setter.arm(runtime.now() + 1s);
  group.spawn(wait_for(event, runtime.after(1s), log, "a"));
  runtime.run(join_group(group));
  EXPECT_EQ(log, (std::vector<std::string>{"a set"}));
}

TEST(Event, MayDieBeforeThoseWhoWait) {
  SimRuntime runtime;
  std::vector<std::string> log;
  TaskGroup group(runtime);
  {
    Event event(runtime);
    group.spawn(wait_for(event, Deadline::never(), log, "a"));
    runtime.run_ready();
  }
  group.cancel();
  EXPECT_TRUE(log.empty());
}

Task<void> take_turn(Condition& condition, std::vector<int>& order, int name) {
  co_await condition.wait();
  order.push_back(name);
}

TEST(Condition, ADroppedTaskPassesItsNotificationOn) {
  SimRuntime runtime;
  Condition condition(runtime);
  std::vector<int> order;
  TaskGroup first(runtime), second(runtime);
  first.spawn(take_turn(condition, order, 1));
  second.spawn(take_turn(condition, order, 2));
  runtime.run_ready();
  condition.notify_one();
  EXPECT_TRUE(condition.contended());
  first.cancel();  // chosen, and dropped before it ran
  runtime.run_ready();
  EXPECT_EQ(order, (std::vector<int>{2}));
  EXPECT_FALSE(condition.contended());
}

TEST(Condition, MayDieBeforeATaskItNotified) {
  SimRuntime runtime;
  auto condition = std::make_unique<Condition>(runtime);
  std::vector<int> order;
  TaskGroup group(runtime);
  group.spawn(take_turn(*condition, order, 1));
  runtime.run_ready();
  condition->notify_one();
  condition.reset();
  group.cancel();
  EXPECT_TRUE(order.empty());
}

Task<void> use_units(Runtime& runtime, Semaphore& semaphore, std::size_t count, int name, std::vector<int>& order,
                     Deadline deadline = Deadline::never()) {
  auto units = co_await semaphore.acquire(count, deadline);
  order.push_back(units ? name : -name);
  co_await runtime.sleep_for(10ms);
}

TEST(Semaphore, ServesInOrderEvenWhenALaterOneWouldFit) {
  SimRuntime runtime;
  Semaphore semaphore(runtime, 2);
  std::vector<int> order;
  TaskGroup group(runtime);
  group.spawn(use_units(runtime, semaphore, 1, 1, order));
  group.spawn(use_units(runtime, semaphore, 2, 2, order));
  group.spawn(use_units(runtime, semaphore, 1, 3, order));
  runtime.run_for(1ms);
  EXPECT_EQ(order, (std::vector<int>{1}));
  EXPECT_FALSE(semaphore.try_acquire());  // others wait: no overtaking
  runtime.run(join_group(group));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(semaphore.available(), 2u);
}

TEST(Semaphore, WhoGivesUpAtADeadlineMakesRoomForTheNext) {
  SimRuntime runtime;
  Semaphore semaphore(runtime, 2);
  std::vector<int> order;
  TaskGroup group(runtime);
  auto held = semaphore.try_acquire(1);
  group.spawn(use_units(runtime, semaphore, 2, 1, order, runtime.after(5ms)));
  group.spawn(use_units(runtime, semaphore, 1, 2, order));
  runtime.run(join_group(group));
  EXPECT_EQ(order, (std::vector<int>{2, -1}));
  EXPECT_EQ(semaphore.available(), 1u);
}

TEST(Semaphore, ADroppedTaskLosesItsPlaceAndWhatItWasGranted) {
  SimRuntime runtime;
  Semaphore semaphore(runtime, 1);
  std::vector<int> order;
  TaskGroup first(runtime), second(runtime), third(runtime);
  auto held = semaphore.try_acquire();
  first.spawn(use_units(runtime, semaphore, 1, 1, order));
  second.spawn(use_units(runtime, semaphore, 1, 2, order));
  third.spawn(use_units(runtime, semaphore, 1, 3, order));
  runtime.run_ready();
  second.cancel();  // from the middle of the line
  held.release();   // granted to the first, which does not live to use it
  first.cancel();
  runtime.run(join_group(third));
  EXPECT_EQ(order, (std::vector<int>{3}));
  EXPECT_EQ(semaphore.available(), 1u);
}

TEST(Semaphore, UnitsMoveAndComeBackOnce) {
  SimRuntime runtime;
  Semaphore semaphore(runtime, 3);
  auto a = semaphore.try_acquire(1);
  auto b = semaphore.try_acquire(2);
  EXPECT_FALSE(semaphore.try_acquire(1));
  a = std::move(b);  // gives its own back at once
  EXPECT_EQ(semaphore.available(), 1u);
  EXPECT_FALSE(b);
  a.release();
  a.release();
  EXPECT_EQ(semaphore.available(), 3u);
}

TEST(Semaphore, BoundsWhatRunsAtOnceAlsoWhenWaitersLeave) {
  SimRuntime runtime;
  Semaphore slots(runtime, 3);
  int running = 0, most = 0, done = 0;
  auto work = [](SimRuntime& loop, Semaphore& from, int& now, int& high, int& ended) -> Task<void> {
    const auto slot = co_await from.acquire();
    high = std::max(high, ++now);
    co_await loop.sleep_for(1s);
    --now;
    ++ended;
  };
  TaskGroup stays(runtime, "stays");
  {
    TaskGroup leaves(runtime, "leaves");
    for (int i = 0; i < 20; ++i) (i % 2 ? stays : leaves).spawn(work(runtime, slots, running, most, done), "work");
    runtime.run_for(1s + 1ns);
  }
  running = 0;
  runtime.run(stays.join());
  EXPECT_EQ(most, 3);
  EXPECT_GE(done, 10);
}

Task<void> critical(Runtime& runtime, Mutex& mutex, int& inside, int& most) {
  auto lock = co_await mutex.lock();
  most = std::max(most, ++inside);
  co_await runtime.sleep_for(1ms);
  --inside;
}

TEST(Mutex, KeepsOthersOutAcrossSuspensions) {
  SimRuntime runtime;
  Mutex mutex(runtime);
  int inside = 0, most = 0;
  TaskGroup group(runtime);
  for (int i = 0; i < 10; ++i) group.spawn(critical(runtime, mutex, inside, most));
  runtime.run(join_group(group));
  EXPECT_EQ(most, 1);
}

Task<void> consume(Channel<int>& channel, std::vector<int>& out) {
  while (auto item = co_await channel.receive()) out.push_back(*item);
}
Task<void> produce(Channel<int>& channel, int from, int count) {
  for (int i = 0; i < count; ++i) co_await channel.send(from + i);
}
Task<void> produce_and_close(Channel<int>& channel, int count) {
  co_await produce(channel, 0, count);
  channel.close();
}

TEST(Channel, DeliversInOrderThroughASmallBufferAndEndsWhenClosed) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 2);
  std::vector<int> out;
  TaskGroup group(runtime);
  group.spawn(consume(channel, out));
  group.spawn(produce_and_close(channel, 5));
  runtime.run(join_group(group));
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Channel, ManySendersAndReceiversLoseNothingAndRepeatNothing) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 3);
  std::vector<int> out;
  TaskGroup senders(runtime), receivers(runtime);
  for (int i = 0; i < 7; ++i) receivers.spawn(consume(channel, out));
  for (int i = 0; i < 5; ++i) senders.spawn(produce(channel, i * 100, 100));
  runtime.run(join_group(senders));
  channel.close();
  runtime.run(join_group(receivers));
  std::sort(out.begin(), out.end());
  ASSERT_EQ(out.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(out[i], i);
}

Task<void> send_one(Channel<int>& channel, int item, Deadline deadline, std::vector<std::string>& log) {
  const bool sent = co_await channel.send(item, deadline);
  log.push_back(std::to_string(item) + (sent ? " sent" : " lost"));
}

TEST(Channel, SendersWaitTheirTurnAndGiveUpAtTheirDeadline) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 1);
  std::vector<std::string> log;
  TaskGroup group(runtime);
  ASSERT_TRUE(channel.try_send(0));
  EXPECT_FALSE(channel.try_send(9));
  group.spawn(send_one(channel, 1, runtime.after(1s), log));
  group.spawn(send_one(channel, 2, Deadline::never(), log));
  runtime.run_for(2s);
  EXPECT_EQ(channel.try_receive(), 0);
  runtime.run_ready();
  EXPECT_EQ(channel.try_receive(), 2);
  EXPECT_EQ(channel.try_receive(), std::nullopt);
  EXPECT_EQ(log, (std::vector<std::string>{"1 lost", "2 sent"}));
}

TEST(Channel, ClosingReleasesSendersAndLetsTheRestBeReceived) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 1);
  std::vector<std::string> log;
  std::vector<int> out;
  TaskGroup group(runtime);
  ASSERT_TRUE(channel.try_send(7));
  group.spawn(send_one(channel, 8, Deadline::never(), log));
  runtime.run_ready();
  channel.close();
  EXPECT_FALSE(channel.try_send(9));
  group.spawn(consume(channel, out));
  runtime.run(join_group(group));
  EXPECT_EQ(log, (std::vector<std::string>{"8 lost"}));
  EXPECT_EQ(out, (std::vector<int>{7}));
}

Task<std::optional<int>> receive_until(Channel<int>& channel, Runtime& runtime, Duration limit) {
  co_return co_await channel.receive(runtime.after(limit));
}

TEST(Channel, ReceiveGivesUpAtItsDeadline) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 2);
  EXPECT_FALSE(runtime.run(receive_until(channel, runtime, 2s)));
}

TEST(Channel, AReceiverDroppedInTimeLeavesTheItemToTheNext) {
  SimRuntime runtime;
  Channel<int> channel(runtime, 2);
  std::vector<int> lost, kept;
  TaskGroup first(runtime), second(runtime);
  first.spawn(consume(channel, lost));
  second.spawn(consume(channel, kept));
  runtime.run_ready();
  ASSERT_TRUE(channel.try_send(5));
  first.cancel();
  runtime.run_ready();
  EXPECT_TRUE(lost.empty());
  EXPECT_EQ(kept, (std::vector<int>{5}));
}

}  // namespace
}  // namespace cohive
