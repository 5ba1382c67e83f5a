// Memory that work of other threads uses is not freed before, and the loop does not stand still for that.
#include "cohive/train/work_count.hpp"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "cohive/core/task_group.hpp"
#include "cohive/train/plain_replica.hpp"

namespace cohive::train {
namespace {

TEST(WorkCount, AWaitEndsAfterTheLastCopyOfEveryToken) {
  auto count = std::make_unique<WorkCount>();
  count->wait();
  int value = 0;  // ThreadSanitizer sees whether the wait orders the accesses
  std::latch begun(2);
  std::vector<std::jthread> workers;
  std::mutex mutex;
  for (int i = 0; i < 2; ++i)
    workers.emplace_back([token = count->begin(), &value, &begun, &mutex]() mutable {
      auto copy = token;
      token.reset();
      begun.count_down();
      {
        const std::lock_guard lock(mutex);
        ++value;
      }
      copy.reset();
    });
  begun.wait();
  count->wait();
  EXPECT_EQ(value, 2);
  count.reset();
}

TEST(WorkCount, TokensMayOutliveIt) {
  auto count = std::make_unique<WorkCount>();
  auto token = count->begin();
  count.reset();
  token.reset();
}

TEST(WorkCount, TheLoopGoesOnWhileAReplicaIsClosed) {
  auto runtime = make_runtime({.seed = 1, .pool_threads = 1});
  auto replica = std::make_unique<PlainReplica>(*runtime, std::vector<codec::Shape>{{8}}, optim::SgdOptions{});
  std::latch busy(1);  // the only worker is, so that the copy below is used until it is not
  TaskGroup others(*runtime);
  others.spawn([](Runtime& r, std::latch& until) -> Task<void> { co_await r.offload([&until] { until.wait(); }); }(
                                                     *runtime, busy));
  const auto turns = [&] {
    runtime->run([](Runtime& r) -> Task<void> {
      for (int i = 0; i < 10; ++i) co_await r.yield();
    }(*runtime));
  };
  {
    TaskGroup copying(*runtime);
    copying.spawn([](Replica& model) -> Task<void> { (void)co_await model.snapshot(1); }(*replica));
    turns();
  }  // nobody wants the copy any more
  bool closed = false;
  others.spawn([](Replica& model, bool& done) -> Task<void> {
    co_await model.close();
    done = true;
  }(*replica, closed));
  turns();
  EXPECT_FALSE(closed) << "a worker may still begin to copy";
  busy.count_down();
  runtime->run(others.join());
  EXPECT_TRUE(closed);
  replica.reset();
}

}  // namespace
}  // namespace cohive::train
