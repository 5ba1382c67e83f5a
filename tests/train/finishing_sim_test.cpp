// Trainers that come to the end of their training, one a little later than another.
#include <gtest/gtest.h>

#include "train/four_trainers.hpp"
#include "train/still_model.hpp"
#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

/// With the groups in which they averaged their parameters for the last time.
std::vector<std::size_t> finish_one_after_another(FourTrainers& trainers, Duration pause) {
  auto finish = [](Run& run, Duration after) -> Task<std::size_t> {
    co_await run.runtime().sleep_for(after);
    co_return co_await run.finish();
  };
  std::vector<Task<std::size_t>> last;
  for (std::size_t i = 0; i < kTrainers; ++i)
    last.push_back(finish(*trainers[i].run, pause * static_cast<Duration::rep>(i)));
  return trainers.run(when_all(trainers[0].run->runtime(), std::move(last)));
}

class Finishing : public ::testing::Test {
 protected:
  Finishing() { trainers.train(2); }

  float next_value = 1;
  FourTrainers trainers{
      [this](Runtime& runtime, const RunOptions&) { return std::make_unique<StillModel>(runtime, next_value++); },
      [](RunOptions& options, std::size_t) { options.average_state_every = 1000; }};
};

TEST_F(Finishing, TheLastTrainerIsWaitedForThoughTheOthersHaveSaidGoodbye) {
  EXPECT_EQ(finish_one_after_another(trainers, 500ms), std::vector<std::size_t>(kTrainers, kTrainers));
  for (std::size_t i = 0; i < kTrainers; ++i)
    EXPECT_EQ(trainers[i].model->parameters(), std::vector<float>(64, 2.5f)) << "trainer " << i;
}

TEST_F(Finishing, ATrainerWhoseSwarmHasGoneLongAgoIsNotKeptWaiting) {
  for (std::size_t i = 1; i < kTrainers; ++i) trainers.run(trainers[i].run->close());
  trainers.run([](train::Run& run) -> Task<void> { co_await run.runtime().sleep_for(1min); }(*trainers[0].run));
  const TimePoint begin = trainers[0].run->runtime().now();
  EXPECT_EQ(trainers.run(trainers[0].run->finish()), 0u);
  EXPECT_LT(trainers[0].run->runtime().now() - begin, 1s);
}

/// Trainers that end at epochs of their own.
class FinishingApart : public TrainingSwarm, public ::testing::Test {
 protected:
  bool all_finish(Duration limit) {
    return wait_for(limit,
                    [this] { return std::ranges::all_of(trainers, [](const auto& one) { return one->finished; }); });
  }
};

TEST_F(FinishingApart, OneThatTrainsAnEpochMoreIsWaitedFor) {
  for (int pair = 0; pair < 4; ++pair) {
    trainers.clear();
    auto& first = add({.until = 4});
    auto& second = add({.until = 5});
    ASSERT_TRUE(all_finish(5min));
    EXPECT_EQ(first.last_group, 2u);
    EXPECT_EQ(second.last_group, 2u);
  }
}

/// The first one knows that the other has reached its epoch, too, and says goodbye. The epoch that the second one ends
/// alone takes longer than a search.
TEST_F(FinishingApart, OneThatTrainsASlowEpochMoreIsWaitedForByOneThatHasSaidGoodbye) {
  for (const Duration batch : std::initializer_list<Duration>{500ms, 750ms, 1s, 1500ms, 1750ms, 2s, 2500ms}) {
    trainers.clear();
    auto& first = add({.batch = batch, .until = 4, .rest = 3s});
    auto& second = add({.batch = batch, .until = 5});
    ASSERT_TRUE(all_finish(5min));
    EXPECT_EQ(first.last_group, 2u) << to_seconds(batch);
    EXPECT_EQ(second.last_group, 2u) << to_seconds(batch);
  }
}

/// What one has that ends is old by then: those that go on neither average with it nor wait for it.
TEST_F(FinishingApart, OneThatEndsDoesNotHoldUpThoseThatGoOn) {
  auto& leaves = add({.until = 4});
  std::vector<Trainer*> stay{&add(), &add()};
  ASSERT_TRUE(wait_for(5min, [&] { return leaves.epoch() >= 4; }));
  const TimePoint begin = net.runtime().now();
  const std::uint64_t missed = stay[0]->run->stats().grad_rounds_failed;
  ASSERT_TRUE(wait_for(1min, [&] { return leaves.finished; }));
  EXPECT_EQ(leaves.last_group, 0u);
  EXPECT_LE(net.runtime().now() - begin, options.averaging_timeout + options.shutdown_timeout);
  ASSERT_TRUE(wait_for(5min, [&] { return stay[0]->epoch() >= 10; }));
  for (Trainer* one : stay) EXPECT_EQ(one->run->stats().state_rounds_failed, 0u);
  EXPECT_EQ(stay[0]->run->stats().grad_rounds_failed, missed);
  EXPECT_LE(net.runtime().now() - begin, 6 * 2500ms + 5s) << "epochs of 48 samples, 32 a second";
  EXPECT_EQ(offences(), 0.0);
}

}  // namespace
}  // namespace cohive::train
