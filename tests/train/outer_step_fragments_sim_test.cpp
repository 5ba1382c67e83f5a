// Outer steps of models that are averaged fragment by fragment.
#include <algorithm>
#include <array>
#include <cmath>

#include "cohive/core/combine.hpp"
#include "outer_steps.hpp"
#include "train/exchanges/exchanges.hpp"

namespace cohive::train {
namespace {

/// Three tensors in two fragments, which are averaged in turn.
class OuterStepsInFragments : public OuterSteps {
 protected:
  OuterStepsInFragments() {
    shapes_ = {{4}, {4}, {4}};
    options_.outer_optimizer = OuterOptimizer{.fragments = 2};
  }
  /// What the exchanges keep.
  std::map<std::string, Values> state_of(Trainer& trainer) {
    auto state = saved(trainer);
    std::erase_if(state, [](const auto& one) { return !one.first.starts_with("exchange."); });
    return state;
  }
  bool train_to(std::uint64_t epoch, std::vector<Trainer*> trainers) {
    const bool there = wait_for(5min, [&] {
      return std::ranges::all_of(trainers, [epoch](Trainer* one) { return one->run->epoch() >= epoch; });
    });
    for (auto* trainer : trainers) trainer->tasks.reset();
    for (auto* trainer : trainers) (void)net_.run(trainer->run->settle());
    for (auto* trainer : trainers) (void)trainer->run->publish();
    return there;
  }
};

TEST_F(OuterStepsInFragments, AverageOneOfThemInEachEpochAndAllInTurn) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.run_id = delayed ? "behind" : "waiting";
    options_.delay_state_averaging = delayed;
    auto& one = add();
    auto& two = add();
    ASSERT_TRUE(train_to(9, {&one, &two}));
    auto states = std::array{state_of(one), state_of(two)};
    EXPECT_EQ(states[0], states[1]);
    const float first = states[0]["exchange.outer_step_1_of_2.steps"][0],
                second = states[0]["exchange.outer_step_2_of_2.steps"][0];
    EXPECT_GE(first + second, 7) << "one in each epoch";
    EXPECT_LE(std::abs(first - second), 1);
    for (const char* anchor : {"1_of_2.anchor.0", "1_of_2.anchor.1", "2_of_2.anchor.0"})
      EXPECT_GT(states[0][std::string("exchange.outer_step_") + anchor][3], 0.3) << anchor;
    // Between two rounds a tensor is as far from its anchor as local steps have led it.
    for (std::size_t tensor = 0; tensor < 3; ++tensor)
      EXPECT_NEAR(one.replica->parameter(tensor)[3], two.replica->parameter(tensor)[3], 0.05 * 24) << tensor;
    end(one);
    end(two);
  }
}

TEST_F(OuterStepsInFragments, ANewcomerGetsTheAnchorsOfAll) {
  options_.target_batch_size = 192;  // three times the time for a search
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 3 && two.steps >= 3; }));
  auto& newcomer = add();
  ASSERT_TRUE(wait_for(3min, [&] { return newcomer.steps >= 3; }));
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  ASSERT_TRUE(train_to(newcomer.run->epoch() + 2, {&one, &two, &newcomer}));
  EXPECT_EQ(state_of(one), state_of(newcomer));
}

TEST_F(OuterStepsInFragments, GoOnFromWhereATrainerHasComeToAlone) {
  options_.target_batch_size = 192;
  auto& one = add();
  net_.pass(5min);
  ASSERT_GT(one.parameters()[0], 20);
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2; }));
  auto state = saved(one);
  for (const char* fragment : {"1_of_2", "2_of_2"})  // two rounds' way alone is 2.4
    EXPECT_LT(std::abs(state[std::string("exchange.outer_step_") + fragment + ".momentum.0"][0]), 8) << fragment;
}

/// A trainer comes too late to the round of the first fragment. What it has made meanwhile counts in that of the second
/// one, too.
TEST_F(OuterStepsInFragments, WhatAMissedRoundLacksCountsInTheRoundsOfTheOthers) {
  options_.target_batch_size = 192;
  options_.next_chunk_timeout = 2s;
  add();
  add();
  auto& late = add();
  const auto takes_part = [&] {
    const auto steps = late.steps;
    EXPECT_TRUE(wait_for(2min, [&] { return late.steps > steps; }));
  };
  // Once both fragments have been averaged, one lacks the samples of the last epoch, and none lacks others.
  const auto lost = [&] {
    takes_part();
    const double before = late.samples;
    takes_part();
    return (before + late.samples) / 2 - late.run->stats().samples_averaged;
  };
  for (int i = 0; i < 3; ++i) takes_part();
  const double at_first = lost();  // before the first rounds
  const auto downloads = late.run->stats().state_downloads;
  for (const std::uint64_t rest : {0u, 1u}) ASSERT_TRUE(wait_for(1min, [&] { return late.run->epoch() % 2 == rest; }));
  late.pause = 11s;  // the others end this epoch after six, and wait for two
  net_.pass(8s);
  late.pause = 500ms;
  ASSERT_TRUE(wait_for(1min, [&] { return late.run->stats().state_downloads > downloads; })) << "it came in time";
  for (int i = 0; i < 3; ++i) takes_part();
  EXPECT_NEAR(lost(), at_first, 1);
}

/// The offer of a repair releases the trainer, which may change the parameters then.
TEST_F(OuterStepsInFragments, StepBeforeAnchorsAreRepaired) {
  Dht dht(net_.add_host());
  PlainReplica replica(net_.runtime(), shapes_, optim::SgdOptions{});
  std::vector<std::string> names;
  for (const auto& exchange : make_exchanges({dht, replica, options_}, nullptr)) names.push_back(exchange->name());
  EXPECT_EQ(names,
            (std::vector<std::string>{"outer_step_1_of_2", "outer_step_2_of_2", "anchors_1_of_2", "anchors_2_of_2"}));
}

TEST_F(OuterStepsInFragments, TrainersThatStopTogetherEndWithTheSameParameters) {
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(train_to(5, {&one, &two}));
  std::vector<Task<std::size_t>> last;
  for (auto* trainer : {&one, &two}) last.push_back(trainer->run->finish());
  EXPECT_EQ(net_.run(when_all(net_.runtime(), std::move(last))), (std::vector<std::size_t>{2, 2}));
  for (std::size_t tensor = 0; tensor < 3; ++tensor)
    EXPECT_TRUE(std::ranges::equal(one.replica->parameter(tensor), two.replica->parameter(tensor))) << tensor;
}

}  // namespace
}  // namespace cohive::train
