// Runs of local steps with an outer optimizer.
#include "outer_steps.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "cohive/core/combine.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "false_member.hpp"
#include "train/exchanges/exchanges.hpp"
#include "train/forwarding_exchange.hpp"

namespace cohive::train {
namespace {

using checkpoint::TemporaryFolder;

sim::TrainScenario outer_steps() {
  auto scenario = sim::small_training();
  scenario.learning_rate = 0.005;  // many steps an epoch
  scenario.tune = [](RunOptions& options) {
    options.use_local_updates = true;
    options.outer_optimizer.emplace();
  };
  return scenario;
}

/// What becomes of it without a codec by agreement, and with one.
std::array<sim::TrainScenarioReport, 2> without_and_with(codec::Codec codec, sim::TrainScenario scenario) {
  std::array<sim::TrainScenarioReport, 2> reports;
  reports[0] = sim::run_training(scenario);
  scenario.tune = [codec, tune = scenario.tune](RunOptions& options) {
    tune(options);
    options.agreed_grad_compression = codec;
  };
  reports[1] = sim::run_training(scenario);
  return reports;
}

TEST(OuterStep, TrainersWithLocalStepsLearnByIt) {
  const auto report = sim::run_training(outer_steps());
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, 5u);
  EXPECT_GT(report.mean_group, 4.5);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
  EXPECT_EQ(report.offences, 0);
}

/// Half of the tensors in each of two epochs, which are half as long.
TEST(OuterStep, LearnsInFragments) {
  auto scenario = outer_steps();
  scenario.ballast = 1000;
  const auto tune = scenario.tune;
  scenario.tune = [&tune](RunOptions& options) {
    tune(options);
    options.outer_optimizer->fragments = 2;
    options.target_batch_size /= 2;
  };
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, 10u);
  EXPECT_GT(report.mean_group, 4.5);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
  EXPECT_EQ(report.offences, 0);
}

TEST(OuterStep, LearnsWhileTrainersAreKilledAndReplaced) {
  auto scenario = outer_steps();
  scenario.duration = 5min;
  scenario.replaced_per_minute = 0.2;
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.newcomers, 2u);
  EXPECT_GE(report.downloads, report.newcomers);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
}

/// Many local steps in rounds of groups that are drawn anew.
sim::TrainScenario groups_of(std::size_t group, std::size_t trainers) {
  auto scenario = sim::small_training();
  scenario.trainers = trainers;
  scenario.batch_size = 100;
  scenario.duration = 105s;
  scenario.shortest_batch = scenario.longest_batch = 300ms;
  scenario.batches_per_epoch = 30;
  scenario.learning_rate = 0.001;
  scenario.tune = [group](RunOptions& options) {
    options.use_local_updates = true;
    options.delay_state_averaging = false;
    options.matchmaking_time = 2s;
    options.outer_optimizer = OuterOptimizer{.momentum = 0.5};
    options.target_group_size = group;
  };
  return scenario;
}

/// What trainers differ by does not add up from round to round, as it would if they stepped by the mean difference of
/// their group, from anchors of their own. In some runs a group falls apart in the beginning, and what is measured is
/// how its trainers come back: one of three runs where that does not happen tells.
TEST(OuterStep, GroupsOfADividedRunStayTogether) {
  std::vector<double> apart;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    auto scenario = groups_of(8, 16);
    scenario.seed = seed;
    const auto report = sim::run_training(scenario);
    SCOPED_TRACE(::testing::PrintToString(report));
    EXPECT_GE(report.epochs, 9u);
    EXPECT_GT(report.mean_group, 5);
    EXPECT_LT(report.mean_group, 11);
    EXPECT_GT(report.apart, 0) << "rounds were measured";
    EXPECT_LT(report.apart, 0.05);
    EXPECT_LT(report.loss_after_round, 1.02 * report.loss_of_one_group);
    EXPECT_EQ(report.offences, 0);
    apart.push_back(report.apart);
  }
  EXPECT_LT(std::ranges::min(apart), 0.01);
}

/// In float16, as parameters do not travel in 4 bits. Downloads and reports are most of what is sent, with and without.
TEST(OuterStep, GroupsOfADividedRunSendParametersInFewerBits) {
  auto scenario = groups_of(8, 16);
  scenario.duration = 60s;
  scenario.ballast = 100'000;
  const auto reports = without_and_with(codec::Codec::block4, scenario);
  SCOPED_TRACE(::testing::PrintToString(reports));
  for (const auto& report : reports) {
    EXPECT_GE(report.epochs, 4u);
    EXPECT_LT(report.last_loss, report.first_loss);
  }
  EXPECT_LT(reports[1].bytes_per_peer_second, 0.95 * reports[0].bytes_per_peer_second);
}

/// Two groups of a hundred, as runs divide by themselves.
TEST(OuterStep, TwoHundredTrainersStayTogether) {
  auto scenario = groups_of(128, 200);
  scenario.batch_size = 16;
  scenario.duration = 5min;
  scenario.arrival = 30s;
  scenario.shortest_batch = 500ms;
  scenario.longest_batch = 1s;
  const auto tune = scenario.tune;
  scenario.tune = [&tune](RunOptions& options) {
    tune(options);
    options.matchmaking_time = 5s;
  };
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GT(report.mean_group, 80);
  EXPECT_GT(report.apart, 0);
  EXPECT_LT(report.apart, 0.01);
  EXPECT_LT(report.loss_after_round, 1.02 * report.loss_of_one_group);
}

/// SparseLoCo: a quarter of 64 values at a time, by both rules of its authors.
TEST(OuterStep, LearnsFromTheLargestDifferencesAlone) {
  for (const averaging::Aggregation& how :
       {averaging::Aggregation(), averaging::Aggregation(averaging::MeanOfSenders{1})}) {
    auto scenario = outer_steps();
    scenario.tune = [&how](RunOptions& options) {
      options.use_local_updates = true;
      options.outer_optimizer = OuterOptimizer{.momentum = 0};
      options.agreed_grad_compression = codec::Compression::per_tensor(
          std::vector<codec::Compression>{codec::CodecSpec(codec::Codec::sparse2, 0.25), codec::Codec::none});
      options.grad_aggregation = how;
    };
    const auto report = sim::run_training(scenario);
    SCOPED_TRACE(::testing::PrintToString(report));
    EXPECT_GE(report.epochs, 5u);
    EXPECT_LT(report.last_loss, report.first_loss / 5);
    EXPECT_EQ(report.offences, 0);
  }
}

TEST(OuterStep, SmallTensorsTravelAsTheyAreBesideSparseOnes) {
  auto scenario = outer_steps();
  scenario.ballast = 100'000;
  scenario.tune = [tune = scenario.tune](RunOptions& options) {
    tune(options);
    options.outer_optimizer->momentum = 0;
  };
  const auto reports = without_and_with(codec::Codec::sparse2, scenario);
  SCOPED_TRACE(::testing::PrintToString(reports));
  EXPECT_NEAR(reports[1].last_loss, reports[0].last_loss, 0.05 * reports[0].first_loss) << "nothing of it is left out";
  EXPECT_LT(reports[1].bytes_per_peer_second, reports[0].bytes_per_peer_second / 2) << "with downloads of the state";
}

TEST_F(OuterSteps, StepFromTheAnchorAsPyTorchsSgd) {
  auto& one = add();
  auto& two = add();
  Values anchor(4), momentum(4);
  for (std::size_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(wait_for(2min, [&] { return one.steps == step && two.steps == step; }));
    for (std::size_t i = 0; i < anchor.size(); ++i) {
      const float gradient = anchor[i] - (one.before[i] + two.before[i]) / 2;
      momentum[i] = 0.9f * momentum[i] + gradient;
      anchor[i] -= 0.7f * (gradient + 0.9f * momentum[i]);
      EXPECT_NEAR(one.anchor()[0][i], anchor[i], 1e-5) << "step " << step;
      EXPECT_NEAR(one.momentum()[0][i], momentum[i], 1e-5) << "step " << step;
    }
    expect_same_state(one, two);
  }
}

/// A quarter of the differences in the first step, a sixty-fourth from the twentieth on.
TEST_F(OuterSteps, SendMoreOfTheLargestDifferencesAtFirst) {
  shapes_ = {{4096}};
  options_.outer_optimizer = OuterOptimizer{.lr = 1, .momentum = 0};
  options_.agreed_grad_compression = codec::Codec::sparse2;
  auto& one = add();
  auto& two = add();
  Values anchor(4096);
  for (std::size_t step = 1; step <= 24; ++step) {
    ASSERT_TRUE(wait_for(2min, [&] { return one.steps == step && two.steps == step; }));
    const Values now = one.parameters();
    std::ptrdiff_t moved = 0;
    for (std::size_t i = 0; i < now.size(); ++i) moved += now[i] != anchor[i];
    if (step == 1) EXPECT_GE(moved, 1024);
    if (step > 21) EXPECT_LE(moved, 256);
    EXPECT_GT(moved, 0);
    anchor = now;
  }
}

/// One trainer becomes fast, so that the epoch ends long before the other one expects it to, and looks again.
TEST_F(OuterSteps, WaitForATrainerThatLooksAtTheRunAsSeldomAsHivemindMay) {
  options_.target_batch_size = 480;
  options_.next_chunk_timeout = 12s;  // longer than a step and a look
  auto& one = add();
  options_.tracker_options.min_refresh_period = options_.tracker_options.default_refresh_period = 10s;
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps > 0 && two.steps > 0; }));
  two.pause = 2s;
  for (const Duration phase : {7s, 9s, 11s, 13s, 15s}) {
    one.pause = 2s;
    net_.runtime().run_for(phase);
    const auto epoch = one.run->epoch();
    const auto steps = one.steps;
    one.pause = 20ms;
    ASSERT_TRUE(wait_for(1min, [&] { return one.run->epoch() > epoch; }));
    one.pause = 2s;
    EXPECT_TRUE(wait_for(15s, [&] { return one.steps > steps; })) << to_seconds(phase);
  }
  EXPECT_EQ(two.run->stats().state_downloads, 0u);
}

/// Hands its values over late, as a large model does.
class SlowToOffer final : public ForwardingExchange {
 public:
  explicit SlowToOffer(const ExchangeContext& context)
      : ForwardingExchange(std::make_unique<OuterStep>(context, OuterOptimizer(), whole_model(context))),
        runtime_(context.dht.runtime()) {}
  Task<Offer> offer(const Moment& moment) override {
    co_await runtime_.sleep_for(1500ms);
    co_return co_await ForwardingExchange::offer(moment);
  }

 private:
  Runtime& runtime_;
};

/// Members wait for it in the round of this epoch, which is no reason to end the next one.
TEST_F(OuterSteps, ATrainerThatIsWaitedForDoesNotEndItsNextEpochAtOnce) {
  options_.target_batch_size = 96;
  options_.next_chunk_timeout = 10s;
  auto& one = add();
  auto& slow = add([](const ExchangeContext& context) { return std::make_unique<SlowToOffer>(context); });
  ASSERT_TRUE(wait_for(5min, [&] { return one.steps >= 6 && slow.steps >= 6; }));
  for (const auto* trainer : {&one, &slow}) {
    EXPECT_GE(std::ranges::min(trainer->batches), 2u);
    EXPECT_EQ(trainer->run->stats().state_downloads, 0u);
  }
}

/// What was learned alone is no difference of one round, which would be taken further and be repeated by the momentum.
TEST_F(OuterSteps, GoOnFromWhereATrainerHasComeToAlone) {
  auto& one = add();
  net_.pass(2min);
  ASSERT_GT(one.parameters()[0], 5);
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps > 0 && two.steps > 0; }));
  for (std::size_t i = 0; i < 4; ++i) {  // a round's way is 6 steps of 0.05 at most
    EXPECT_NEAR(one.anchor()[0][i], (one.before[i] + two.before[i]) / 2, 1) << i;
    EXPECT_LT(std::abs(one.momentum()[0][i]), 2) << i;
  }
  // The same where the others have left, and come back.
  end(two);
  net_.pass(4min);
  auto& three = add();
  const auto steps = one.steps;
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps > steps && three.steps > 0; }));
  EXPECT_NEAR(one.anchor()[0][0], (one.before[0] + three.before[0]) / 2, 1);
  EXPECT_LT(std::abs(one.momentum()[0][0]), 2);
}

/// Steps as they are computed from what each trainer sent.
TEST_F(OuterSteps, AreAddedToWhatATrainerHasMadeMeanwhile) {
  options_.delay_state_averaging = true;
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.run->epoch() >= 6 && two.run->epoch() >= 6; }));
  for (auto* trainer : {&one, &two}) trainer->tasks.reset();
  for (auto* trainer : {&one, &two}) (void)net_.run(trainer->run->settle());
  for (auto* trainer : {&one, &two}) (void)trainer->run->publish();
  expect_same_state(one, two);
  // Each has made local steps of its own since: at most those of an epoch and of a round.
  for (auto* trainer : {&one, &two})
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(trainer->parameters()[i], trainer->anchor()[0][i], 0.05 * 12) << i;
  EXPECT_GT(one.anchor()[0][0], 0.5);
}

TEST_F(OuterSteps, AMissedRoundCostsNothingOfWhatWasLearned) {
  auto& one = add();
  auto& two = add();
  auto& three = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2 && three.steps >= 2; }));
  // Its parameters are far ahead in one direction when the others end a round without it.
  three.tasks.reset();
  const double samples = three.samples;
  three.replica->step_locally({Values{0, 0, 0, -1000}});
  const auto reached = one.run->epoch();
  ASSERT_TRUE(wait_for(1min, [&] { return one.run->epoch() >= reached + 2; }));
  const float before = one.anchor()[0][3];
  three.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
  three.tasks->spawn(train(net_.runtime(), three), "trainer");
  const auto steps = three.steps;
  ASSERT_TRUE(wait_for(2min, [&] { return three.steps >= steps + 2; }));
  EXPECT_GT(one.anchor()[0][3] - before, 1) << "a third of 10, times the outer rate";
  EXPECT_GE(three.run->stats().samples_averaged, samples) << "those of the missed round weigh in the next one";
  // Members round a mean differently where their own values differ much.
  const auto are_near = [&] {
    return std::ranges::equal(one.anchor()[0], three.anchor()[0],
                              [](float a, float b) { return std::abs(a - b) < 1e-4f; });
  };
  EXPECT_TRUE(wait_for(1min, are_near));
}

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

/// Its optimizer's statistics are none either: it takes those of another one.
TEST_F(OuterSteps, ATrainerWithoutUsableParametersTakesThoseOfTheOthers) {
  auto& one = add();
  auto& two = add();
  auto& three = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2 && three.steps >= 2; }));
  const auto steps = two.steps;
  one.replica->parameter(0)[0] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(wait_for(2min, [&] { return std::isfinite(one.parameters()[0]); }));
  EXPECT_LE(two.steps, steps + 3);
  EXPECT_NEAR(one.parameters()[0], two.anchor()[0][0], 1);
  EXPECT_GE(one.run->stats().state_rounds_failed, 1u);
  const auto failed =
      net_.runtime().metrics().counter("cohive_train_failed_rounds_total", "Rounds that averaged nothing, by cause.",
                                       {{"averager", "outer_step"}, {"cause", "not_finite"}});
  EXPECT_GE(failed.value(), 1);
  const auto own = one.steps;
  EXPECT_TRUE(wait_for(
      1min, [&] { return one.steps >= own + 2 && std::abs(one.anchor()[0][0] - two.anchor()[0][0]) < 1e-4f; }));
}

/// The trainers begin at different parameters, and count differently. The repair moves their anchors to the mean of
/// both, from where neither has made a difference.
TEST_F(OuterSteps, ARepairIsNoStepOfTrainersThatWeighDifferently) {
  options_.outer_optimizer = OuterOptimizer{.repair_every = 2};
  auto& fast = add();
  start_ = 100;
  auto& slow = add();
  fast.pause = 200ms;
  slow.pause = 800ms;
  ASSERT_TRUE(wait_for(5min, [&] { return fast.steps >= 4 && slow.steps >= 4; }));
  for (auto* trainer : {&fast, &slow}) EXPECT_NEAR(saved(*trainer)["exchange.outer_step.anchor.0"][3], 50, 25);
}

TEST_F(OuterSteps, AnchorsThatDifferAreRepaired) {
  TemporaryFolder folder;
  const auto file = folder.path() / "state.safetensors";
  const auto state_of = [&](Trainer& trainer) {
    EXPECT_TRUE(net_.run(trainer.run->save_checkpoint(file)));
    return *checkpoint::read_file(file);
  };
  const auto anchor_in = [](checkpoint::TensorFile& state) {
    const auto found = std::ranges::find(state.tensors, "exchange.outer_step.anchor.0", &checkpoint::NamedTensor::name);
    return reinterpret_cast<float*>(const_cast<std::uint8_t*>(found->tensor.data.data()));
  };
  for (const int every : {1000, 3}) {
    SCOPED_TRACE(every);
    options_.run_id = "repaired" + std::to_string(every);
    options_.outer_optimizer = OuterOptimizer{.repair_every = every};
    auto& one = add();
    auto& two = add();
    ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 1 && two.steps >= 1; }));
    auto state = state_of(one);
    anchor_in(state)[0] += 1;
    ASSERT_TRUE(checkpoint::write_file(file, state));
    ASSERT_TRUE(net_.run(one.run->load_checkpoint(file)));
    const auto reached = one.run->epoch();
    ASSERT_TRUE(wait_for(3min, [&] { return one.run->epoch() >= reached + 8 && two.run->epoch() >= reached + 8; }));
    for (auto* trainer : {&one, &two}) trainer->tasks.reset();
    auto of_one = state_of(one), of_two = state_of(two);
    const float apart = std::abs(anchor_in(of_one)[0] - anchor_in(of_two)[0]);
    if (every == 3)
      EXPECT_EQ(apart, 0);
    else
      EXPECT_GT(apart, 0.1);
    end(one);
    end(two);
  }
}

/// Would have all anchors far away.
FalseMember wrong_repairer(averaging::Aggregation aggregation) {
  FalseMember how{.tensors = 2, .value = 1e6f, .tells = msgpack::Value(std::uint64_t{1}), .weight = 1};
  how.options.prefix = "outer_anchors";
  how.options.class_name = "AnchorAverager";
  how.options.aggregation = aggregation;
  return how;
}

/// They are repaired by the mean only where all that goes into them is a mean.
TEST_F(OuterSteps, AnchorsAreRepairedByTheAggregationOfTheRun) {
  options_.outer_optimizer = OuterOptimizer();
  options_.grad_aggregation = averaging::TrimmedMean();
  nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
  ASSERT_TRUE(net_.run(nodes_.back()->start({net_.host(0).visible_addresses().front()})));
  TaskGroup liar(net_.runtime(), "liar");
  liar.spawn(take_part_falsely(*nodes_.back(), wrong_repairer(averaging::TrimmedMean())), "liar");
  for (int i = 0; i < 4; ++i) add();
  for (int i = 0; i < 120; ++i) {
    net_.runtime().run_for(500ms);
    for (const auto& trainer : trainers_) ASSERT_LT(std::abs(trainer->parameters()[0]), 1000) << i;
  }
  EXPECT_GE(trainers_[0]->run->stats().state_rounds, 5u);
  liar.cancel();
}

/// Takes part, and says that it has made more steps than anybody.
FalseMember boaster_of_steps() {
  FalseMember how{.tells = msgpack::Array{{std::uint64_t{1} << 24, 0}}};
  how.options.prefix = "outer_outer_step_700000_900000n";
  how.options.class_name = "OuterStepAverager";
  return how;
}

/// What a trainer has learned stays, and it steps on, whoever says that the others are ahead.
TEST_F(OuterSteps, MembersThatSayInVainThatTheyAreAheadUndoNothing) {
  for (int i = 0; i < 2; ++i) add();
  auto& first = *trainers_[0];
  ASSERT_TRUE(wait_for(60s, [&] { return first.steps >= 3; }));
  TaskGroup liars(net_.runtime(), "liars");
  for (int i = 0; i < 3; ++i) {
    nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
    ASSERT_TRUE(net_.run(nodes_.back()->start({net_.host(0).visible_addresses().front()})));
    liars.spawn(take_part_falsely(*nodes_.back(), boaster_of_steps()), "liar");
  }
  const std::size_t steps = first.steps;
  float last = first.parameters()[0];
  for (int i = 0; i < 60; ++i) {
    net_.runtime().run_for(5s);
    const float now = first.parameters()[0];
    EXPECT_GT(now, last) << "after " << 5 * (i + 1) << " s";
    last = now;
  }
  EXPECT_GE(first.steps, steps + 80);
  EXPECT_LE(first.run->stats().state_downloads, 10u);
  liars.cancel();
}

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
