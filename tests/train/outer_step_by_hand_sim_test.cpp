// Single rounds of outer steps, in which the test is the group.
#include <limits>
#include <optional>

#include "outer_steps.hpp"

namespace cohive::train {
namespace {

/// An outer step whose offers are answered by the test in place of a group.
class OuterStepsByHand : public OuterSteps {
 protected:
  /// \param to  all parameters
  static void train_to(Trainer& trainer, float to) {
    const float way = to - trainer.parameters()[0];
    trainer.replica->step_locally({Values(4, -100 * way)});  // the learning rate is 0.01
  }
  /// A round fails, in which others have averaged the first values of this trainer.
  /// \param during  what the trainer comes to meanwhile
  void fail_round(Trainer& trainer, std::size_t averaged, std::optional<float> during = std::nullopt) {
    const Moment moment{.epoch = 1, .samples = 8, .batches = 1};
    auto offer = net_.run(trainer.outer->offer(moment));
    if (averaged > 0) {
      auto own = net_.run(offer.parts->contribute({0, 0, averaged}, codec::Codec::none, {}));
      Values sum(averaged);
      ASSERT_TRUE(own.value()->add(sum, {.first = true, .divisor = 1}).value());
    }
    net_.run(offer.parts->finish());
    offer.parts.reset();
    if (during) train_to(trainer, *during);
    EXPECT_EQ(net_.run(trainer.outer->take(moment, nullptr)), Effect::none);
  }
  /// A round averages what this trainer gives, which is returned, with nothing else.
  Values average(Trainer& trainer, const averaging::RoundReport& round = {}) {
    const Moment moment{.epoch = 1, .samples = 8, .batches = 1};
    auto offer = net_.run(trainer.outer->offer(moment));
    Values given(4);
    {
      auto own = net_.run(offer.parts->contribute({0, 0, given.size()}, codec::Codec::none, {}));
      EXPECT_TRUE(own.value()->add(given, {.first = true, .divisor = 1}).value());
    }
    net_.run(offer.parts->finish());
    offer.parts.reset();
    effect_ = net_.run(trainer.outer->take(moment, &round));
    if (effect_ == Effect::publishable) trainer.replica->publish();
    return given;
  }
  /// A round whose other members tell this of their anchors.
  static averaging::RoundReport round_with(const std::vector<PeerId>& others, std::uint64_t steps,
                                           std::uint64_t checksum) {
    averaging::RoundReport round;
    for (const PeerId& peer : others) round.group.push_back({.peer = peer, .data = msgpack::Array{{steps, checksum}}});
    return round;
  }
  /// The others have stepped to an anchor of fives, which this trainer downloads.
  void download(Trainer& trainer, float steps = 1) {
    net_.run(trainer.outer->renewing());
    trainer.outer->memory()->anchor[0] = Values(4, 5);
    trainer.outer->memory()->steps = steps;
    net_.run(trainer.outer->loaded());
  }
  static void expect_near(const Values& values, const Values& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-4) << i;
  }
  static void expect_parameters(const Trainer& trainer, const Values& expected) {
    expect_near(trainer.parameters(), expected);
  }
  Effect effect_ = Effect::none;  ///< of the last average()
};

/// A trainer that most members have left out of a round gives those values once that one of them has averaged, and all
/// that nobody has, with what it makes of them until it has the anchor of the others.
TEST_F(OuterStepsByHand, WhatWasAveragedIsGivenOnceAndTheRestIsKept) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.delay_state_averaging = delayed;
    auto& one = make();
    train_to(one, 1);
    fail_round(one, 2, delayed ? std::optional(2.0f) : std::nullopt);
    train_to(one, 3);
    download(one);
    expect_parameters(one, {5 + 2, 5 + 2, 5 + 3, 5 + 3});
    // It counts once: nothing of it is left for the next download.
    download(one, 2);
    expect_parameters(one, {5 + 2, 5 + 2, 5 + 3, 5 + 3});
  }
}

/// The download after a round failed, too, and a later round was missed.
TEST_F(OuterStepsByHand, WhatCameAfterTheRoundThatWasAveragedIsKept) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.delay_state_averaging = delayed;
    auto& one = make();
    train_to(one, 1);
    fail_round(one, 4);
    train_to(one, 4);
    fail_round(one, 0);
    train_to(one, 6);
    download(one);
    expect_parameters(one, Values(4, 5 + 5));
  }
}

/// The anchor that was downloaded is that of before the round: nobody has stepped by what was averaged.
TEST_F(OuterStepsByHand, AnAnchorThatIsNotAheadHasNothingOfTheRound) {
  auto& one = make();
  train_to(one, 1);
  fail_round(one, 4);
  download(one, 0);
  expect_parameters(one, Values(4, 5 + 1));
}

/// This trainer could not download what the others have made of it.
TEST_F(OuterStepsByHand, WhatWasAveragedIsNotGivenAgain) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.delay_state_averaging = delayed;
    auto& one = make();
    train_to(one, 1);
    fail_round(one, 4);
    download(one, 0);  // of an anchor from before the round
    expect_parameters(one, Values(4, 5 + 1));
    train_to(one, 5 + 4);
    expect_near(average(one), Values(4, -3));
    // Nobody was ahead: nobody has stepped by it, and it is part of the next difference.
    expect_parameters(one, Values(4, one.anchor()[0][0] + 1));
    expect_near(average(one), Values(4, -1));
    expect_parameters(one, one.anchor()[0]);
  }
}

/// The anchor, and with it the difference, but not the parameters.
TEST_F(OuterStepsByHand, WhatARepairHasMovedIsGivenToNobody) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.delay_state_averaging = delayed;
    auto& one = make();
    auto& memory = *one.outer->memory();
    train_to(one, 1);
    std::ranges::fill(memory.anchor[0], 50.0f);
    memory.shift = {Values(4, 50)};
    expect_near(average(one), Values(4, -1));
    EXPECT_TRUE(memory.shift.empty());
    expect_parameters(one, one.anchor()[0]);
    // Nor is it carried into the anchor of the others.
    train_to(one, one.anchor()[0][0] + 2);
    for (float& value : memory.anchor[0]) value += 50;
    memory.shift = {Values(4, 50)};
    fail_round(one, 2);
    download(one, 2);
    expect_parameters(one, {5, 5, 5 + 2, 5 + 2});
  }
}

/// The parameters of a checkpoint have the repair, too, as those of the state that a donor shares.
TEST_F(OuterStepsByHand, WhatARepairHasMovedIsGivenToNobodyByWhoGoesOnFromACheckpoint) {
  const checkpoint::TemporaryFolder folder;
  const auto file = folder / "repaired.safetensors";
  auto& one = make();
  train_to(one, 1);
  std::ranges::fill(one.outer->memory()->anchor[0], 50.0f);
  one.outer->memory()->shift = {Values(4, 50)};
  ASSERT_TRUE(net_.run(one.run->save_checkpoint(file)));
  expect_parameters(one, Values(4, 1));
  for (auto* trainer : {&one, &make()}) {
    ASSERT_TRUE(net_.run(trainer->run->load_checkpoint(file)));
    EXPECT_EQ(trainer->anchor()[0], Values(4, 50));
    expect_near(average(*trainer), Values(4, -1));
    expect_parameters(*trainer, trainer->anchor()[0]);
  }
}

/// A trainer that was cut off has stepped alone as often as the others have together.
TEST_F(OuterStepsByHand, OneThatWasAloneTakesTheAnchorThatTheOthersHave) {
  auto& one = make();
  const std::vector<PeerId> others{net_.host(0).id(), make().dht->host().id()};
  train_to(one, 1);
  average(one, round_with(others, 0, 7));
  EXPECT_EQ(effect_, Effect::none) << "a repair is for those that have lost different parts";
  net_.run(one.outer->alone());
  EXPECT_EQ(one.anchor()[0], one.parameters());
  EXPECT_EQ(one.momentum()[0], Values(4));
  average(one, round_with(others, 2, 7));
  EXPECT_EQ(effect_, Effect::behind);
  download(one, 2);
  average(one, round_with(others, 2, 7));
  EXPECT_EQ(effect_, Effect::none);
}

TEST_F(OuterStepsByHand, OfTwoThatWereAloneOneTakesTheAnchorOfTheOther) {
  for (const bool larger : {false, true}) {
    auto& one = make();
    net_.run(one.outer->alone());
    average(one, round_with({net_.host(0).id()}, 1, larger ? std::numeric_limits<std::uint64_t>::max() : 1));
    EXPECT_EQ(effect_, larger ? Effect::behind : Effect::none);
  }
}

}  // namespace
}  // namespace cohive::train
