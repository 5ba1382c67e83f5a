// Runs of local steps with an outer optimizer.
#include "outer_steps.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cohive/core/metrics.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "false_member.hpp"
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

TEST(OuterStep, RoundsFollowTheOptionsOfTheAverager) {
  auto scenario = outer_steps();
  scenario.duration = 1min;
  scenario.tune = [&scenario, tune = scenario.tune](RunOptions& options) {
    tune(options);
    options.averager_options = [&scenario](averaging::AveragerOptions& how) {
      how.min_group_size = scenario.trainers + 1;
    };
  };
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_EQ(report.mean_group, 0);
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

/// Two groups of a hundred, as runs divide by themselves. In some runs a group falls apart in the beginning, as above:
/// one of two where that does not happen tells.
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
  scenario.seed = 4;
  auto report = sim::run_training(scenario);
  if (report.apart >= 0.01) {
    scenario.seed = 1;
    report = sim::run_training(scenario);
  }
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
                                       {{"averager", "outer_step"}, {"cause", "not_finite"}, {"run_id", "outer"}});
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
  TaskGroup liar(net_.runtime(), "liar");
  liar.spawn(take_part_falsely(add_node(), wrong_repairer(averaging::TrimmedMean())), "liar");
  for (int i = 0; i < 4; ++i) add();
  for (int i = 0; i < 120; ++i) {
    net_.runtime().run_for(500ms);
    for (const auto& trainer : trainers_) ASSERT_LT(std::abs(trainer->parameters()[0]), 1000) << i;
  }
  EXPECT_GE(trainers_[0]->run->stats().state_rounds, 5u);
  liar.cancel();
}

/// Takes part as soon as there is a group, and says that it has made so many steps.
FalseMember false_stepper(std::uint64_t steps) {
  FalseMember how{.tells = msgpack::Array{{steps, 0}}};
  how.options.prefix = "outer_outer_step_700000_900000n";
  how.options.class_name = "OuterStepAverager";
  return how;
}

/// A newcomer that ends an epoch late finds the group of the next one, and a false member ends epochs as it likes.
/// Those of its reducers that ended theirs with it would lose all other members.
TEST_F(OuterSteps, AMemberThatIsFarTooEarlyEndsNoEpoch) {
  options_.target_batch_size = 480;
  for (int i = 0; i < 3; ++i) add();
  auto& first = *trainers_[0];
  ASSERT_TRUE(wait_for(2min, [&] { return first.steps >= 3; }));
  const auto steps_in_minutes = [&] {
    const std::size_t before = first.steps;
    net_.runtime().run_for(5min);
    return static_cast<int>(first.steps - before);
  };
  const int without = steps_in_minutes();
  EXPECT_GT(without, 20);
  for (const std::uint64_t steps : {1, 1 << 24}) {
    SCOPED_TRACE(steps);
    TaskGroup early(net_.runtime(), "early");
    early.spawn(take_part_falsely(add_node(), false_stepper(steps)), "early member");
    EXPECT_NEAR(steps_in_minutes(), without, 2);
    early.cancel();
  }
}

/// What a trainer has learned stays, and it steps on, whoever says that the others are ahead.
TEST_F(OuterSteps, MembersThatSayInVainThatTheyAreAheadUndoNothing) {
  for (int i = 0; i < 2; ++i) add();
  auto& first = *trainers_[0];
  ASSERT_TRUE(wait_for(60s, [&] { return first.steps >= 3; }));
  TaskGroup liars(net_.runtime(), "liars");
  for (int i = 0; i < 3; ++i) {
    liars.spawn(take_part_falsely(add_node(), false_stepper(1 << 24)), "liar");
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

}  // namespace
}  // namespace cohive::train
