// Trainers that leave a swarm which they cannot reach any more: the time that it takes is promised.
#include <gtest/gtest.h>

#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

/// A trainer whose cable is pulled, among enough nodes that a search for one that answers takes long.
class Unplugged : public ::testing::Test {
 protected:
  Unplugged() {
    swarm.options.shutdown_timeout = 4s;
    for (int i = 0; i < 12; ++i) swarm.add_stranger();
    me = &swarm.add();
    swarm.add();
    EXPECT_TRUE(swarm.wait_for(5min, [this] { return me->rounds > 1; }));
    swarm.net.fabric().crash(me->dht->host().addresses().front().tcp_endpoint()->host);
    me->tasks.reset();
  }
  TimePoint now() { return swarm.net.runtime().now(); }

  TrainingSwarm swarm;
  TrainingSwarm::Trainer* me;
};

TEST_F(Unplugged, ClosesWithinItsShutdownTimeout) {
  const TimePoint begin = now();
  swarm.net.run(me->run->close());
  EXPECT_LE(now() - begin, swarm.options.shutdown_timeout + 100ms);
  const TimePoint again = now();
  swarm.net.run(me->run->close());
  EXPECT_LE(now() - again, swarm.options.shutdown_timeout) << "idempotent";
}

TEST_F(Unplugged, FinishesWithoutWaitingForTheWholeSwarm) {
  const TimePoint begin = now();
  EXPECT_EQ(swarm.net.run(me->run->finish()), 0u);
  EXPECT_LE(now() - begin, swarm.options.averaging_timeout * 2 + swarm.options.shutdown_timeout * 3);
}

TEST(Closing, TellsTheSwarmGoodbyeAtOnce) {
  TrainingSwarm swarm;
  auto& first = swarm.add();
  auto& second = swarm.add();
  ASSERT_TRUE(swarm.wait_for(5min, [&] { return first.rounds > 1; }));
  second.tasks.reset();
  const TimePoint begin = swarm.net.runtime().now();
  swarm.net.run(second.run->close());
  EXPECT_LT(swarm.net.runtime().now() - begin, 2s);
  EXPECT_TRUE(swarm.wait_for(15s, [&] { return first.run->stats().peers == 1; })) << "long before its report expires";
}

/// The end of an epoch goes on by itself: it looks for a group whose other member computes no more.
TEST(Closing, GivesUpTheSearchForAGroupThatTheEndOfAnEpochWaitsFor) {
  TrainingSwarm swarm;
  auto& first = swarm.add();
  auto& second = swarm.add();
  ASSERT_TRUE(swarm.wait_for(5min, [&] { return first.rounds > 1; }));
  second.tasks.reset();
  const auto ends = [&] { return first.run->progress().own_samples >= swarm.options.target_batch_size; };
  ASSERT_TRUE(swarm.wait_for(1min, ends));
  swarm.pass(1s);
  ASSERT_TRUE(ends()) << "it waits for its group";
  const std::uint64_t failed = first.run->stats().grad_rounds_failed;
  const std::uint64_t epoch = first.epoch();
  first.tasks.reset();  // the trainer waits no longer
  const TimePoint begin = swarm.net.runtime().now();
  swarm.net.run(first.run->close());
  EXPECT_LE(swarm.net.runtime().now() - begin, swarm.options.shutdown_timeout + 100ms);
  swarm.pass(swarm.options.averaging_timeout);
  EXPECT_LE(first.epoch(), epoch + 1);
  EXPECT_EQ(first.run->stats().grad_rounds_failed, failed) << "the round was given up before it had a group";
}

}  // namespace
}  // namespace cohive::train
