// Rounds of local steps that follow the links of the trainers.
#include "train/link_fit.hpp"

#include <gtest/gtest.h>

#include <map>

#include "scenarios/fitted_swarm.hpp"

namespace cohive::train {
namespace {

using sim::FittedSwarm;
using sim::Line;

constexpr std::size_t kParameters = 200'000;
constexpr Line kFast{1000, 1000}, kThin{4, 1};  // as 20/5 for a million parameters

double steps_of_round(const FittedSwarm::Trainer& trainer, std::size_t trainers) {
  return trainer.samples_of_round() / static_cast<double>(trainer.samples) / static_cast<double>(trainers);
}

std::string told(const FittedSwarm& swarm) {
  return swarm.trainers.front()->run->stats().rounds;
}

class LinksOfTrainers : public ::testing::TestWithParam<Line> {};

TEST_P(LinksOfTrainers, AreHiddenBehindTheTrainingWithoutAFlag) {
  const auto report = sim::run_fitted({.line = GetParam(), .parameters = 5 * kParameters});
  SCOPED_TRACE(report.told);
  EXPECT_GE(report.computing, 0.95);
  EXPECT_LE(report.steps, 500);
  EXPECT_NE(report.told.find("s of exchange behind"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(FiveLines, LinksOfTrainers,
                         ::testing::Values(Line{20, 5}, Line{50, 10}, Line{100, 40}, Line{500, 110}, kFast));

TEST(LinkFit, AFastLinkGetsShortRoundsAndAllBits) {
  FittedSwarm swarm(kParameters);
  for (int i = 0; i < 3; ++i) swarm.add(kFast, 100ms);
  swarm.net.pass(5min);
  EXPECT_NEAR(steps_of_round(*swarm.trainers[0], 3), 150, 40);
  EXPECT_NE(told(swarm).find("float32 both ways"), std::string::npos) << told(swarm);
}

TEST(LinkFit, OneThinLinkHasAllSendFewBits) {
  FittedSwarm swarm(kParameters);
  for (int i = 0; i < 3; ++i) swarm.add(kFast, 100ms);
  swarm.net.pass(3min);
  EXPECT_NE(told(swarm).find("float32 both ways"), std::string::npos) << told(swarm);
  swarm.add(kThin, 100ms);
  swarm.net.pass(5min);
  EXPECT_GE(swarm.computing(10min), 0.95);
  EXPECT_NE(told(swarm).find("block4 both ways"), std::string::npos) << told(swarm);
  for (const auto& trainer : swarm.trainers)
    EXPECT_EQ(trainer->samples_of_round(), swarm.trainers[0]->samples_of_round());
}

TEST(LinkFit, FragmentsAreHiddenBehindTheTraining) {
  std::map<int, double> steps;
  for (const int fragments : {1, 4}) {
    FittedSwarm swarm(kParameters);
    swarm.options.outer_optimizer->fragments = fragments;
    for (int i = 0; i < 3; ++i) swarm.add(kThin, 100ms);
    swarm.net.pass(10min);
    SCOPED_TRACE(told(swarm));
    EXPECT_GE(swarm.computing(10min), 0.98);
    EXPECT_EQ(told(swarm).find(" in 4 fragments, ") != std::string::npos, fragments == 4);
    steps[fragments] = steps_of_round(*swarm.trainers[0], 3);
  }
  EXPECT_LT(steps[4], steps[1] * 1.3) << "of the four, each of which is as long as three searches at least";
}

TEST(LinkFit, ANewcomerTakesOverWhatTheRunHasAgreedOn) {
  FittedSwarm swarm(kParameters);
  for (int i = 0; i < 3; ++i) swarm.add(kThin, 100ms);
  swarm.net.pass(5min);
  // Batches of another size, by which it would begin a run of its own with quite other rounds.
  auto& newcomer = swarm.add(kThin, 100ms, 1);
  for (int i = 0; i < 600 && newcomer.steps == 0; ++i) swarm.net.pass(1s);
  ASSERT_GT(newcomer.steps, 0u);
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  EXPECT_EQ(newcomer.samples_of_round(), swarm.trainers[0]->samples_of_round());
}

/// While both wait for the exchange, one of them may make nearly all steps of a round, and the other one of the next.
/// They agree on rounds all the same.
TEST(LinkFit, WhatAnExchangeCannotHideBehindIsTold) {
  FittedSwarm swarm(5 * kParameters);
  for (int i = 0; i < 2; ++i) swarm.add({1, 0.25}, 20ms);
  swarm.net.pass(30min);
  const std::string line = told(swarm);
  EXPECT_NE(line.find("so that trainers wait"), std::string::npos) << line;
  EXPECT_NE(line.find("this link carries"), std::string::npos) << line;
  EXPECT_NE(line.find("500 local steps at most"), std::string::npos) << line;
  for (const auto& trainer : swarm.trainers) {
    EXPECT_EQ(trainer->samples_of_round(), swarm.trainers.front()->samples_of_round());
    EXPECT_NEAR(steps_of_round(*trainer, 2), 500, 10) << "as much as there may be";
  }
  EXPECT_GE(swarm.computing(10min), 0.5);
}

TEST(LinkFit, AGivenTargetIsKeptAndFollowed) {
  FittedSwarm swarm(kParameters);
  swarm.options.fit_target_batch_size = false;
  swarm.options.target_batch_size = 4000;
  swarm.add(kFast, 100ms);
  swarm.options.fit_target_batch_size = true;
  swarm.options.target_batch_size = 1024;
  swarm.add(kFast, 100ms);
  swarm.net.pass(10min);
  for (const auto& trainer : swarm.trainers) EXPECT_EQ(trainer->samples_of_round(), 4000);
}

TEST(LinkFit, AGivenCodecIsKept) {
  FittedSwarm swarm(kParameters);
  swarm.options.fit_compression = false;
  swarm.options.grad_compression = codec::Codec::float16;
  for (int i = 0; i < 2; ++i) swarm.add(kThin, 100ms);
  swarm.net.pass(10min);
  EXPECT_NE(told(swarm).find("float16 both ways"), std::string::npos) << told(swarm);
  EXPECT_GE(swarm.computing(10min), 0.95);
}

// ---- Wishes of others

std::vector<RoundWish> wishes(std::initializer_list<double> targets) {
  std::vector<RoundWish> all;
  for (const double target : targets) all.push_back({target});
  return all;
}

TEST(RoundWishes, OfOneMemberMakeRoundsFourTimesAsLongAtMost) {
  EXPECT_FALSE(outcome_of({}));
  EXPECT_EQ(outcome_of(wishes({100}))->target, 100);
  EXPECT_EQ(outcome_of(wishes({300, 100, 200}))->target, 300);
  EXPECT_EQ(outcome_of(wishes({1e15, 100, 200}))->target, 800);
  EXPECT_EQ(outcome_of(wishes({1e15, 200}))->target, 800) << "of two neither has more to say";
  EXPECT_EQ(outcome_of(wishes({1, 200, 220}))->target, 220);
  EXPECT_TRUE(outcome_of({{1, true}, {1, false}, {1, false}})->few_bits) << "which loses next to nothing";
  EXPECT_FALSE(outcome_of({{1, false}, {1, false}})->few_bits);
}

TEST(RoundWishes, ThatUsersHaveGivenCountWhereTheyAreHalf) {
  EXPECT_EQ(outcome_of({{100, false, true}, {200}})->target, 100);
  EXPECT_EQ(outcome_of({{900, false, true}, {200}, {300}})->target, 900) << "as any member's wish";
  EXPECT_EQ(outcome_of({{1, false, true}, {200}, {300}})->target, 300);
}

TEST(RoundWishes, ThatMakeNoSenseAreNotRead) {
  const auto read = [](msgpack::Value target, msgpack::Value few, msgpack::Value given) {
    return read_wish(msgpack::Array{{std::uint64_t{7}, std::move(target), std::move(few), std::move(given)}}, 1);
  };
  EXPECT_EQ(read(640.0, true, false)->target, 640);
  for (const double target : {0.0, -5.0, std::nan(""), HUGE_VAL, 1e300}) EXPECT_FALSE(read(target, true, false));
  EXPECT_FALSE(read("640", true, false));
  EXPECT_FALSE(read(640.0, 1, false));
  EXPECT_FALSE(read(640.0, true, {}));
  EXPECT_FALSE(read_wish(msgpack::Array{}, 1));
  EXPECT_FALSE(read_wish(msgpack::Array{{std::uint64_t{7}, 640.0, true}}, 1));
}

RunOptions fitted_options() {
  RunOptions options;
  options.matchmaking_time = 5s;
  options.use_local_updates = true;
  options.outer_optimizer.emplace();
  options.fit_target_batch_size = options.fit_compression = true;
  return options;
}

/// A hundred steps of 0.1 s, whose exchange took two seconds.
SeenRound seen_round() {
  return {.members = 2,
          .values = 1e6,
          .steps = 100,
          .computing = 10,
          .whole = true,
          .behind = 2,
          .transfer = 1.9,
          .few_bits = true};
}

TEST(LinkFit, HostileMembersGetRoundsOfTwoToEightThousandSteps) {
  for (const double wished : {1.0, 1e15}) {
    LinkFit fit(fitted_options());
    fit.count(8);
    const double target = fit.target();
    fit.round_ended(seen_round(), wishes({wished, wished, 800}));
    EXPECT_EQ(fit.target(), wished == 1 ? target / 4 : target * 4);
    for (int i = 0; i < 20; ++i) {
      SeenRound seen = seen_round();
      seen.steps = static_cast<std::uint64_t>(fit.target() / 40);
      seen.computing = static_cast<double>(seen.steps) / 10;
      fit.round_ended(seen, wishes({wished, wished, 800}));
    }
    EXPECT_NEAR(fit.target() / 40, wished == 1 ? 2 : 8000, 1);
    LinkFit other(fitted_options());
    other.count(8);
    other.round_ended(seen_round(), wishes({wished, target, target}));
    EXPECT_EQ(other.target(), wished == 1 ? target : target * 4);
  }
}

/// Whoever joins has measured nothing but its download: where that was quick, the run stays in full precision.
TEST(LinkFit, NewcomersWithAFastLinkDoNotHaveAllSendInFewBits) {
  LinkFit fit(fitted_options());
  fit.count(8);
  EXPECT_TRUE(fit.wish().few_bits);
  fit.restored();
  fit.downloaded(1, 40);
  EXPECT_FALSE(fit.wish().few_bits);
  SeenRound seen = seen_round();
  seen.whole = false;
  seen.few_bits = false;
  fit.round_ended(seen, wishes({4000, 4000}));
  EXPECT_FALSE(fit.wish().few_bits) << "also behind the rest of a round";
  LinkFit slow(fitted_options());
  slow.count(8);
  slow.restored();
  slow.downloaded(10, 40);
  EXPECT_TRUE(slow.wish().few_bits);
}

TEST(LinkFit, MeasuresNothingAnewAfterADownload) {
  LinkFit fit(fitted_options());
  fit.count(8);
  SeenRound seen = seen_round();
  seen.few_bits = false;
  for (int i = 0; i < 3; ++i) fit.round_ended(seen, wishes({4000, 4000}));
  const bool before = fit.wish().few_bits;
  fit.kept()[0] = 4000;
  fit.restored();
  EXPECT_EQ(fit.wish().few_bits, before);
  EXPECT_FALSE(before);
}

TEST(LinkFit, WishesWhatHidesTheExchange) {
  LinkFit fit(fitted_options());
  fit.count(8);
  EXPECT_EQ(fit.target(), 4000) << "500 batches of the first trainer";
  SeenRound seen = seen_round();
  seen.behind = 2, seen.transfer = 1.5;
  fit.round_ended(seen, wishes({4000, 4000}));
  const RoundWish wish = fit.wish();
  EXPECT_TRUE(wish.few_bits) << "1.5 s in 4.25 bits are 11 s in 32";
  EXPECT_EQ(wish.target, 6000) << "15 seconds, three searches of 5";
}

/// What takes 9.9 seconds in few bits takes twice as long in full, for the parameters that divided runs average; for
/// differences 7.5 times.
TEST(LinkFit, ReckonsWithTheBitsOfParametersWhereTheseAreAveraged) {
  for (const bool parameters : {false, true}) {
    LinkFit fit(fitted_options());
    fit.count(8);
    SeenRound seen = seen_round();
    seen.steps = 400, seen.computing = 40;
    seen.behind = 10, seen.transfer = 9.9;
    seen.parameters = parameters;
    for (int i = 0; i < 3; ++i) fit.round_ended(seen, wishes({4000, 4000}));
    EXPECT_TRUE(fit.wish().few_bits);
    const char* told = parameters ? "float32 both ways: 19.9 s" : "float32 both ways: 74.6 s";
    EXPECT_NE(fit.told().find(told), std::string::npos) << fit.told();
  }
  LinkFit fit(fitted_options());
  fit.count(8);
  SeenRound seen = seen_round();
  seen.steps = 400, seen.computing = 40;
  seen.parameters = true;
  fit.round_ended(seen, wishes({4000, 4000}));
  EXPECT_FALSE(fit.wish().few_bits) << "two seconds in 16 bits are four in 32";
}

TEST(LinkFit, WhoseDownloadIsLongerThanARoundWishesForLongerOnes) {
  LinkFit fit(fitted_options());
  fit.count(8);
  fit.downloaded(5, 10);
  EXPECT_EQ(fit.wish().target, 4000);
  fit.downloaded(20, 10);
  EXPECT_EQ(fit.wish().target, 10'000) << "and a quarter, as links are not always alike";
  fit.downloaded(2000, 10);
  EXPECT_EQ(fit.wish().target, 16'000);
}

TEST(LinkFit, NewcomersTakeNoImpossibleRounds) {
  LinkFit fit(fitted_options());
  fit.count(8);
  for (const float target : {0.0f, -1.0f, 1e30f}) {
    fit.kept()[0] = target;
    fit.restored();
    EXPECT_EQ(fit.target(), 4000);
  }
  fit.kept()[0] = 6400;
  fit.restored();
  EXPECT_EQ(fit.target(), 6400);
}

}  // namespace
}  // namespace cohive::train
