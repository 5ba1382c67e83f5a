#include "averaging/rounds/reducer.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/sim_runtime.hpp"

namespace cohive::averaging {
namespace {

using Add = std::function<Result<bool>(std::span<float>, Adding)>;

/// A sender's values for the mean.
class Adds final : public Contribution {
 public:
  explicit Adds(Add add) : add_(std::move(add)) {}
  Result<bool> add(std::span<float> sum, Adding how) override { return add_(sum, how); }
  Result<ReadValues> open() override { return Error(cohive::Errc::internal); }

 private:
  Add add_;
};

Add constant(float value, double weight = 1) {
  return [=](std::span<float> sum, Adding how) -> Result<bool> {
    for (float& one : sum) {
      one = (how.first ? 0 : one) + value * static_cast<float>(weight);
      if (how.divisor > 0) one /= static_cast<float>(how.divisor);
    }
    return true;
  };
}

class Reducing : public ::testing::Test {
 protected:
  struct Outcome {
    bool done = false;
    Result<PartSumPtr> sum = Error(Errc::round_cancelled);
  };
  /// Contributes in the background.
  std::shared_ptr<Outcome> add(std::size_t sender, std::size_t index, float value, double weight = 1) {
    return add(sender, index, weight, constant(value, weight));
  }
  std::shared_ptr<Outcome> add(std::size_t sender, std::size_t index, double weight, Add function) {
    auto outcome = std::make_shared<Outcome>();
    tasks.spawn([](Reducer& reducer, std::size_t s, std::size_t i, double w, Add a,
                   std::shared_ptr<Outcome> out) -> Task<void> {
      out->sum = co_await reducer.contribute(s, i, w, std::make_shared<Adds>(std::move(a)));
      out->done = true;
    }(reducer, sender, index, weight, std::move(function), outcome));
    runtime.run_ready();
    return outcome;
  }
  static float average(const std::shared_ptr<Outcome>& outcome) { return outcome->sum.value()->average().front(); }

  SimRuntime runtime{1};
  Reducer reducer{runtime, {8, 8, 8, 8, 8, 8}, 3, 9};  // a reducer that sends nothing itself
  TaskGroup tasks{runtime};
};

TEST_F(Reducing, APartIsAveragedWhenAllHaveContributed) {
  const auto first = add(0, 0, 10, 1);
  add(1, 0, 20, 2);
  EXPECT_FALSE(first->sum.value()->finished.is_set());
  add(2, 0, 40, 1);
  EXPECT_TRUE(first->sum.value()->finished.is_set());
  EXPECT_EQ(average(first), 22.5f);
}

TEST_F(Reducing, OurOwnPartIsAddedLast) {
  Reducer with_own{runtime, {8}, 3, 1};
  std::string order;
  const auto noting = [&order](char who) {
    return [&order, who](std::span<float> sum, Adding how) -> Result<bool> {
      std::fill(sum.begin(), sum.end(), 1.0f);
      order += who;
      if (how.first) order += '!';
      if (how.divisor > 0) order += '/';
      return true;
    };
  };
  for (std::size_t sender : {1u, 0u, 2u}) {
    tasks.spawn([](Reducer& reducer, std::size_t s, Add add) -> Task<void> {
      (void)co_await reducer.contribute(s, 0, 1, std::make_shared<Adds>(std::move(add)));
    }(with_own, sender, noting(static_cast<char>('a' + sender))));
    runtime.run_ready();
  }
  EXPECT_EQ(order, "a!cb/");
}

TEST_F(Reducing, AFastSenderRunsOnlyALittleAhead) {
  std::vector<std::shared_ptr<Outcome>> fast;
  for (std::size_t i = 0; i < 6; ++i) fast.push_back(add(0, i, 1));
  EXPECT_TRUE(fast[3]->done);
  EXPECT_FALSE(fast[4]->done);
  add(1, 0, 1);
  add(2, 0, 1);
  EXPECT_TRUE(fast[4]->done) << "the first part is averaged: the next may open";
  EXPECT_FALSE(fast[5]->done);
}

TEST_F(Reducing, ALostSendersWeightDoesNotCount) {
  const auto kept = add(2, 0, 6, 1);
  const auto part = add(0, 0, 0, 2);
  const auto next = add(0, 1, 4, 2);
  reducer.ban(2);
  runtime.run_ready();
  add(1, 0, 0, 1);
  add(1, 1, 1, 1);
  EXPECT_EQ(average(part), 1.5f) << "what it had added stays";
  EXPECT_EQ(average(next), 3.0f);
  EXPECT_EQ(next->sum.value()->weight, 3.0);
  EXPECT_FALSE(add(2, 1, 5)->sum) << "nothing more is taken from it";
}

TEST_F(Reducing, ABadPartIsRefusedAndTheRestIsAveragedWithoutIt) {
  const auto bad =
      add(0, 0, 1, [](std::span<float>, Adding) -> Result<bool> { return Error(cohive::Errc::malformed); });
  EXPECT_TRUE(bad->done);
  EXPECT_FALSE(bad->sum);
  reducer.ban(0);
  const auto good = add(1, 0, 3);
  add(2, 0, 5);
  EXPECT_EQ(average(good), 4.0f);
}

TEST_F(Reducing, WithoutAnyWeightThereIsNoAverage) {
  const auto part = add(0, 0, 1, 0.0);
  add(1, 0, 2, 0.0);
  add(2, 0, 3, 0.0);
  EXPECT_TRUE(part->sum.value()->finished.is_set());
  EXPECT_TRUE(part->sum.value()->average().empty());
}

TEST_F(Reducing, WhenAllAreLostNobodyWaits) {
  const auto part = add(0, 0, 1);
  for (std::size_t i = 0; i < 3; ++i) reducer.ban(i);
  runtime.run_ready();
  EXPECT_TRUE(reducer.finished());
  EXPECT_TRUE(part->sum.value()->finished.is_set());
}

TEST_F(Reducing, CancellingEndsEveryWait) {
  const auto open = add(0, 0, 1);
  const auto ahead = add(0, 5, 1);
  reducer.cancel();
  runtime.run_ready();
  EXPECT_TRUE(ahead->done);
  EXPECT_FALSE(ahead->sum);
  EXPECT_FALSE(runtime.run(reducer.wait_for(open->sum.value())));
  EXPECT_TRUE(tasks.empty());
}

TEST_F(Reducing, APartComesOncePerSender) {
  add(0, 0, 1);
  EXPECT_FALSE(add(0, 0, 1)->sum);
}

}  // namespace
}  // namespace cohive::averaging
