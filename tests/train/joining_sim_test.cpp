// Trainers that come to a run that others have begun, that are behind, or are told so by strangers.
#include <gtest/gtest.h>

#include <filesystem>

#include "cohive/checkpoint/errors.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/log.hpp"
#include "scenarios/progress_record.hpp"
#include "train/false_member.hpp"
#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

using Trainer = TrainingSwarm::Trainer;

/// Reports under new keys of peers that do not exist, `count` of them each `period`.
Task<void> claim_under_new_keys(Dht& dht, std::uint64_t epoch, std::size_t count, Duration period) {
  for (std::size_t number = 0;; ++number) {
    const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(100 + number % 100));
    auto report = sim::progress_record(sim::invented_peer(number).bytes(), epoch + number, 1, 1.0, dht.now());
    co_await sim::store_under_key(dht, key, "run_progress", std::move(report), dht.now() + 60);
    if (number % count == count - 1) co_await dht.runtime().sleep_for(period);
  }
}

TEST(Joining, ANewcomerTakesTheStateOfARunInItsFirstEpoch) {
  TrainingSwarm swarm;
  swarm.options.target_batch_size = 10'000;  // the epoch goes on
  auto& first = swarm.add({.value = 5});
  swarm.pass(10s);
  const std::size_t before = swarm.lines_with("which others have begun");
  auto& second = swarm.add({.value = 1});
  auto& third = swarm.add({.value = 2, .loads_at_once = false});
  swarm.pass(10s);
  EXPECT_EQ(second.value(), 5);
  EXPECT_EQ(third.value(), 5) << "with its first batch";
  EXPECT_EQ(first.value(), 5);
  EXPECT_EQ(first.run->stats().state_downloads, 0u);
  EXPECT_EQ(swarm.lines_with("which others have begun"), before + 2) << "it says so";
  EXPECT_EQ(swarm.offences(), 0);
}

TEST(Joining, ANewcomerWithTheSameParametersDownloadsNothing) {
  TrainingSwarm swarm;
  swarm.options.target_batch_size = 10'000;
  swarm.add({.value = 5});
  swarm.pass(10s);
  auto& second = swarm.add({.value = 5});
  swarm.pass(10s);
  EXPECT_EQ(second.run->stats().state_downloads, 0u);
}

TEST(Joining, FoundersWithDifferentParametersAreTold) {
  for (const bool same : {true, false}) {
    TrainingSwarm swarm;
    const std::size_t before = swarm.lines_with("with other parameters than this peer");
    auto& first = swarm.add({.value = 5, .batch = 3s});
    auto& second = swarm.add({.value = same ? 5.0f : 1.0f, .batch = 3s});
    ASSERT_TRUE(swarm.wait_for(60s, [&] { return first.rounds > 2 && second.rounds > 2; }));
    EXPECT_EQ(swarm.lines_with("with other parameters than this peer"), before + (same ? 0 : 2));
    EXPECT_EQ(first.run->stats().state_downloads + second.run->stats().state_downloads, 0u);
    EXPECT_EQ(first.value(), second.value());
  }
}

TEST(Joining, ThreeThatStartInOneSecondDoNotDownloadFromEachOtherForEver) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    TrainingSwarm swarm(64, seed);
    for (int i = 0; i < 3; ++i) {
      swarm.add({.value = static_cast<float>(i)});
      swarm.pass(300ms);
    }
    ASSERT_TRUE(swarm.wait_for(
        30s, [&] { return std::ranges::all_of(swarm.trainers, [](const auto& one) { return one->rounds >= 3; }); }));
    for (const auto& trainer : swarm.trainers) EXPECT_LE(trainer->run->stats().state_downloads, 1u);
    EXPECT_EQ(swarm.trainers[0]->value(), swarm.trainers[2]->value());
    EXPECT_EQ(swarm.offences(), 0);
  }
}

TEST(Joining, ANewcomerIsInARunOfManyEpochsAtOnce) {
  TrainingSwarm swarm;
  for (int i = 0; i < 3; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(600s, [&] { return swarm.trainers[0]->epoch() >= 100; }));
  auto& newcomer = swarm.add({.value = 1});
  const std::uint64_t epoch = swarm.trainers[0]->epoch();
  ASSERT_TRUE(swarm.wait_for(20s, [&] { return newcomer.rounds > 0; }));
  EXPECT_LE(newcomer.first_in, epoch + 4);
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  EXPECT_EQ(swarm.offences(), 0);
}

struct SlowDownload {
  const char* name;
  std::int64_t target;  // samples of an epoch; three trainers of 16 a second each
  Duration batch;
  std::size_t parameters;
  double line;                // bytes a second of each trainer, up
  bool short_rounds = false;  // a download is far longer than a round
  std::uint64_t most_downloads = 2;
};

class SlowDownloads : public ::testing::TestWithParam<SlowDownload> {};

TEST_P(SlowDownloads, EndInTheSwarm) {
  const SlowDownload& how = GetParam();
  TrainingSwarm swarm(how.parameters);
  swarm.options.target_batch_size = how.target;
  swarm.net.set_limits({how.line, 0});
  if (how.short_rounds) {
    swarm.options.grad_compression = swarm.options.state_averaging_compression = codec::Codec::uniform8;
    swarm.options.average_state_every = 4;
  }
  for (int i = 0; i < 3; ++i) swarm.add({.value = 5, .batch = how.batch});
  ASSERT_TRUE(swarm.wait_for(600s, [&] { return swarm.trainers[0]->epoch() >= 5; })) << swarm.trainers[0]->epoch();
  const TimePoint began = swarm.net.runtime().now();
  const std::uint64_t epoch = swarm.trainers[0]->epoch();
  auto& newcomer = swarm.add({.value = 1, .batch = how.batch});
  EXPECT_TRUE(swarm.wait_for(how.target > 1000 ? 600s : 240s, [&] { return newcomer.rounds > 3; })) << newcomer.rounds;
  const double seconds = to_seconds(swarm.net.runtime().now() - began);
  const auto stats = newcomer.run->stats();
  SCOPED_TRACE(log::format("{} s, from epoch {} to {}, {} downloads, {} followed", seconds, epoch, newcomer.first_in,
                           stats.state_downloads, stats.states_followed));
  EXPECT_LE(stats.state_downloads, how.most_downloads);
  EXPECT_EQ(swarm.offences(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ratios, SlowDownloads,
                         ::testing::Values(SlowDownload{"half_an_epoch", 192, 500ms, 50'000, 300e3},
                                           SlowDownload{"two_epochs", 192, 500ms, 200'000, 300e3, false, 6},
                                           SlowDownload{"three_short_epochs", 48, 500ms, 100'000, 300e3, false, 5},
                                           SlowDownload{"many_short_epochs", 24, 100ms, 50'000, 300e3, false, 4},
                                           SlowDownload{"four_epochs", 48, 500ms, 100'000, 300e3, true, 8},
                                           SlowDownload{"tenths_and_large", 24, 100ms, 100'000, 3e6, true},
                                           SlowDownload{"epochs_of_a_tenth", 24, 100ms, 10'000, 3e6, false, 3},
                                           SlowDownload{"epochs_of_a_minute", 1440, 1s, 1'000'000, 150e3, true}),
                         [](const auto& test) { return std::string(test.param.name); });

/// A download takes as long as the gradients of an epoch: who came a moment too late for its group used to download
/// again, and to be late again. The round of the parameters is not over by then.
TEST(Joining, ANewcomerOnAThinLineIsInSoon) {
  std::uint64_t downloads = 0;
  for (const std::uint64_t seed : {1, 3, 7, 9, 19}) {
    SCOPED_TRACE(seed);
    TrainingSwarm swarm(100'000, seed);
    swarm.net.set_limits({1e6, 0});
    for (int i = 0; i < 3; ++i) swarm.add({.value = 5});
    ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[2]->rounds >= 3; }));
    swarm.pass(60s + seed * 170ms);
    auto& newcomer = swarm.add({.value = 1});
    EXPECT_TRUE(swarm.wait_for(60s, [&] { return newcomer.rounds >= 3; })) << newcomer.rounds;
    downloads += newcomer.run->stats().state_downloads;
    EXPECT_EQ(newcomer.value(), 5);
    EXPECT_EQ(swarm.offences(), 0);
  }
  EXPECT_LE(downloads, 15u) << "of five newcomers: some are a moment late again and again";
}

TEST(Joining, TrainersThatDoNotShareTheirStateGiveItToNobody) {
  TrainingSwarm swarm;
  swarm.options.share_state = false;
  for (int i = 0; i < 2; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[1]->rounds >= 3; }));
  auto& newcomer = swarm.add({.value = 1});
  EXPECT_TRUE(swarm.wait_for(120s, [&] { return newcomer.rounds > 0; })) << "it averages with them all the same";
  EXPECT_TRUE(swarm.wait_for(120s, [&] { return newcomer.value() == 5; })) << "a round has given it their parameters";
  EXPECT_EQ(newcomer.run->stats().state_downloads, 0u);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(swarm.trainers[i]->value(), 5) << "and has not taken its own";
}

/// The only trainer that can be dialled has begun anew without a checkpoint.
TEST(Joining, ANewcomerTakesTheParametersOfClientsThatAreAheadAndGivesThemNoneOfItsOwn) {
  TrainingSwarm swarm;
  swarm.options.client_mode = true;
  auto &one = swarm.add({.value = 5}), &other = swarm.add({.value = 5});
  const auto least_epoch = [&] { return std::min(one.epoch(), other.epoch()); };
  ASSERT_TRUE(swarm.wait_for(10min, [&] { return least_epoch() >= 3; }));
  swarm.options.client_mode = false;
  const std::size_t before = swarm.lines_with("and share no state: the parameters of this peer");
  auto& newcomer = swarm.add({.value = 1});
  EXPECT_TRUE(swarm.wait_for(3min, [&] { return newcomer.value() == 5 && newcomer.epoch() + 2 >= least_epoch(); }))
      << newcomer.value() << " of epoch " << newcomer.epoch() << ", and they are in " << least_epoch();
  EXPECT_EQ(swarm.lines_with("and share no state: the parameters of this peer"), before + 1) << "it says so";
  EXPECT_EQ(newcomer.run->stats().state_downloads, 0u);
  swarm.pass(30s);
  for (const auto& trainer : swarm.trainers) EXPECT_EQ(trainer->value(), 5) << trainer->number;
  EXPECT_EQ(swarm.offences(), 0);
}

TEST(Behind, ATrainerThatSleptComesBackAtOnce) {
  TrainingSwarm swarm;
  for (int i = 0; i < 3; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[2]->rounds >= 3; }));
  swarm.net.fabric().partition({sim::Swarm::ip(4)}, {sim::Swarm::ip(1), sim::Swarm::ip(2), sim::Swarm::ip(3)});
  swarm.pass(90s);
  swarm.net.fabric().heal();
  auto& sleeper = *swarm.trainers[2];
  const std::size_t rounds = sleeper.rounds;
  EXPECT_TRUE(swarm.wait_for(120s, [&] { return sleeper.rounds > rounds + 1; }));
  EXPECT_GE(sleeper.epoch() + 1, swarm.trainers[0]->epoch());
  EXPECT_EQ(swarm.offences(), 0);
}

/// Clients have no vote on the epoch of the run, and share no state.
TEST(Behind, ATrainerThatSleptTakesTheParametersOfClients) {
  TrainingSwarm swarm;
  auto& node = swarm.add({.value = 5});
  swarm.options.client_mode = true;
  auto &one = swarm.add({.value = 5}), &other = swarm.add({.value = 5});
  const auto least_epoch = [&] { return std::min(one.epoch(), other.epoch()); };
  ASSERT_TRUE(swarm.wait_for(2min, [&] { return node.rounds >= 3 && one.rounds >= 3 && other.rounds >= 3; }));
  swarm.net.fabric().partition({sim::Swarm::ip(2)}, {sim::Swarm::ip(1), sim::Swarm::ip(3), sim::Swarm::ip(4)});
  node.plan.batch = 60s;
  ASSERT_TRUE(swarm.wait_for(20min, [&] { return least_epoch() >= node.epoch() + 4; }));
  swarm.net.fabric().heal();
  node.plan.batch = 500ms;
  std::ranges::fill(node.replica->parameter(0), 100.f);  // as if the others had come far
  EXPECT_TRUE(swarm.wait_for(5min, [&] { return node.value() == 5 && node.epoch() + 2 >= least_epoch(); }))
      << node.value() << " of epoch " << node.epoch() << ", and they are in " << least_epoch();
  EXPECT_EQ(one.value(), 5);
  EXPECT_EQ(other.value(), 5);
  EXPECT_EQ(swarm.offences(), 0);
}

/// As one that has just woken up: its next look at the run comes later than its next round.
TEST(Behind, ATrainerLearnsItFromItsGroupAndPullsNobodyBack) {
  TrainingSwarm swarm;
  for (int i = 0; i < 2; ++i) swarm.add({.value = 5});
  auto& tracker = swarm.options.tracker_options;
  tracker.min_refresh_period = tracker.default_refresh_period = tracker.max_refresh_period = 60s;
  auto& last = swarm.add({.value = 5});
  int far_behind = 0;
  for (int i = 0; i < 600; ++i) {
    swarm.pass(500ms);
    if (last.epoch() + 4 > swarm.trainers[0]->epoch()) continue;
    ++far_behind;
    std::ranges::fill(last.replica->parameter(0), 100.f);  // as if the others had come far
  }
  EXPECT_LE(far_behind, 4) << "half seconds of five minutes: between two rounds of which it hears";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(swarm.trainers[static_cast<std::size_t>(i)]->value(), 5);
}

/// Epochs in a minute.
std::uint64_t pace(TrainingSwarm& swarm) {
  const std::uint64_t before = swarm.trainers[0]->epoch();
  swarm.pass(60s);
  return swarm.trainers[0]->epoch() - before;
}

/// Gives nothing to the gradients, and tells the other members that they are far behind.
FalseMember boaster() {
  FalseMember how{.values = 64, .tells = msgpack::Value(std::uint64_t{1'000'000})};
  how.options.prefix = "run_grad_averager";
  how.options.class_name = "GradientAverager";
  return how;
}

/// They have averaged with all trainers, and are more.
TEST(Behind, MembersThatSayItInVainAreBelievedLessAndLess) {
  TrainingSwarm swarm;
  for (int i = 0; i < 2; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[1]->rounds >= 3; }));
  swarm.pass(10s);
  const auto downloads = [&] {
    std::uint64_t sum = 0;
    for (const auto& trainer : swarm.trainers) sum += trainer->run->stats().state_downloads;
    return sum;
  };
  const std::uint64_t calm = pace(swarm), before = downloads();
  TaskGroup liars(swarm.net.runtime(), "liars");
  for (int i = 0; i < 3; ++i) liars.spawn(take_part_falsely(swarm.add_stranger(), boaster()), "liar");
  std::uint64_t epochs = 0;
  for (int i = 0; i < 10; ++i) epochs += pace(swarm);
  EXPECT_GE(swarm.trainers[0]->largest, 4u) << "they are members";
  EXPECT_GE(downloads(), before + 2) << "that are believed at first";
  EXPECT_LE(downloads(), before + 2 * 8) << "pauses of 5, 10, 20, 40, 80, 160 and 320 seconds";
  EXPECT_GE(static_cast<double>(epochs), 0.95 * 10 * static_cast<double>(calm));
  EXPECT_EQ(swarm.trainers[0]->value(), 5);
  liars.cancel();
}

TEST(Behind, OfTwoTheOneThatIsAheadIsFollowed) {
  TrainingSwarm swarm;
  swarm.options.target_batch_size = 16;
  for (int i = 0; i < 2; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[1]->rounds >= 3; }));
  swarm.net.fabric().partition({sim::Swarm::ip(3)}, {sim::Swarm::ip(1), sim::Swarm::ip(2)});
  swarm.trainers[1]->plan.batch = 30s;
  swarm.pass(60s);
  swarm.net.fabric().heal();
  swarm.trainers[1]->plan.batch = 500ms;
  const std::size_t rounds = swarm.trainers[1]->rounds;
  EXPECT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[1]->rounds > rounds + 1; }));
  EXPECT_GE(swarm.trainers[1]->epoch() + 1, swarm.trainers[0]->epoch());
}

TEST(Claims, OfPairsOfNewKeysCostTheRunNothing) {
  TrainingSwarm swarm(100'000);
  swarm.net.set_limits({1e6, 0});
  for (int i = 0; i < 3; ++i) swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[2]->rounds >= 3; }));
  const std::uint64_t calm = pace(swarm);
  std::vector<std::uint64_t> downloads;
  for (const auto& trainer : swarm.trainers) {
    downloads.push_back(trainer->run->stats().state_downloads);
    EXPECT_LE(downloads.back(), 3u) << "nobody is left behind at the start";
  }
  TaskGroup attack(swarm.net.runtime(), "attack");
  attack.spawn(claim_under_new_keys(swarm.add_stranger(), std::uint64_t{1} << 40, 2, 1500ms), "claims");
  swarm.pass(5s);
  for (int minute = 0; minute < 2; ++minute)  // in the second one they would be trainers enough for shards
    EXPECT_GE(static_cast<double>(pace(swarm)), 0.8 * static_cast<double>(calm)) << minute;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(swarm.trainers[i]->run->stats().state_downloads, downloads[i]);
  auto& newcomer = swarm.add({.value = 1});
  // It may miss the ends of some epochs while the state is on its way, which takes about as long as one of them.
  EXPECT_TRUE(swarm.wait_for(60s, [&] { return newcomer.rounds > 0; })) << "a newcomer is in";
  attack.cancel();
}

TEST(Claims, StopNobodyWhoTrainsAlone) {
  TrainingSwarm swarm;
  swarm.options.target_batch_size = 16;
  TaskGroup attack(swarm.net.runtime(), "attack");
  attack.spawn(claim_under_new_keys(swarm.add_stranger(), std::uint64_t{1} << 40, 2, 1500ms), "claims");
  swarm.pass(3s);
  swarm.add({.value = 5});
  swarm.pass(20s);
  EXPECT_GE(pace(swarm), 45u);
  EXPECT_EQ(swarm.trainers[0]->value(), 5);
  attack.cancel();
}

TEST(Claims, OfTheStateOfAStrangerAreProvenBesideTheTraining) {
  TrainingSwarm swarm;
  swarm.options.target_batch_size = 16;
  auto& first = swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return first.epoch() >= 20; }));
  swarm.net.fabric().partition({sim::Swarm::ip(2)}, {sim::Swarm::ip(1), sim::Swarm::ip(3)});
  swarm.pass(70s);  // its reports are forgotten
  auto& second = swarm.add({.value = 1});
  swarm.pass(10s);
  ASSERT_LT(second.epoch(), first.epoch());
  swarm.net.fabric().heal();
  EXPECT_TRUE(swarm.wait_for(60s, [&] { return second.rounds > 1 && first.rounds > 1; }));
  EXPECT_EQ(second.value(), 5);
  EXPECT_EQ(swarm.offences(), 0);
}

/// A donor sends each peer one state at a time.
TEST(Claims, AreNotProvenBesideADownload) {
  TrainingSwarm swarm(1'000'000);
  swarm.net.set_limits({500e3, 0});
  swarm.options.target_batch_size = 16;
  auto& first = swarm.add({.value = 5});
  ASSERT_TRUE(swarm.wait_for(60s, [&] { return first.epoch() >= 20; }));
  swarm.net.fabric().partition({sim::Swarm::ip(2)}, {sim::Swarm::ip(1), sim::Swarm::ip(3)});
  swarm.pass(70s);
  auto& second = swarm.add({.value = 1});
  swarm.pass(10s);
  ASSERT_LT(second.epoch(), first.epoch());
  swarm.net.fabric().heal();
  const std::size_t refused = swarm.lines_with("too many downloads at once");
  EXPECT_TRUE(swarm.wait_for(180s, [&] { return second.run->stats().state_downloads > 0; }));
  EXPECT_EQ(swarm.lines_with("too many downloads at once"), refused);
}

TEST(Ending, WhoIsBehindWhenAllStopEndsWithTheOthers) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    TrainingSwarm swarm(64, seed);
    for (int i = 0; i < 5; ++i) swarm.add({.value = 5, .batch = i == 4 ? 700ms : 500ms, .until = 8});
    ASSERT_TRUE(swarm.wait_for(60s, [&] { return swarm.trainers[4]->epoch() >= 6; }));
    swarm.net.fabric().partition({sim::Swarm::ip(6)}, {sim::Swarm::ip(1), sim::Swarm::ip(2), sim::Swarm::ip(3),
                                                       sim::Swarm::ip(4), sim::Swarm::ip(5)});
    swarm.wait_for(30s, [&] { return swarm.trainers[0]->epoch() >= 8; });
    swarm.net.fabric().heal();
    ASSERT_TRUE(swarm.wait_for(
        120s, [&] { return std::ranges::all_of(swarm.trainers, [](const auto& one) { return one->finished; }); }));
    for (const auto& trainer : swarm.trainers) EXPECT_EQ(trainer->epoch(), 8u) << trainer->number;
    EXPECT_EQ(swarm.offences(), 0);
  }
}

/// Its number may come from a state that was taken while others slept. Rounds go by samples and not by numbers, so that
/// they would never agree again by themselves.
TEST(Joining, TrainersThatAverageTogetherComeToOneEpoch) {
  for (const bool ahead : {true, false}) {
    SCOPED_TRACE(ahead ? "one ahead" : "three ahead");
    TrainingSwarm swarm;
    for (int i = 0; i < 4; ++i) swarm.add({.value = 1.0f});
    swarm.net.runtime().run_for(60s);
    const std::uint64_t jump = 100;
    for (std::size_t i = 0; i < swarm.trainers.size(); ++i)
      if ((i == 0) == ahead) swarm.trainers[i]->restores = swarm.trainers[i]->epoch() + jump;
    swarm.net.runtime().run_for(30s);
    std::uint64_t least = swarm.trainers[0]->epoch(), most = least;
    for (const auto& trainer : swarm.trainers) {
      least = std::min(least, trainer->epoch());
      most = std::max(most, trainer->epoch());
    }
    EXPECT_LE(most - least, 2u) << least << " and " << most;
  }
}

TEST(GoingBack, ToAnEarlierCheckpointALoneTrainerGoesOnFromThereAtOnce) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "going_back.safetensors";
  TrainingSwarm swarm;
  auto& trainer = swarm.add({.value = 5, .batch = 1h});
  const auto end_epoch = [&] {
    for (int batches = 0; batches < 6; ++batches) {  // one epoch's samples
      trainer.replica->add_gradients({std::vector<float>(64)}, 8);
      (void)swarm.net.run(trainer.run->step(8));
    }
  };
  end_epoch();
  const std::uint64_t earlier = trainer.epoch();
  ASSERT_TRUE(swarm.net.run(trainer.run->save_checkpoint(file)));
  for (int i = 0; i < 3; ++i) end_epoch();
  ASSERT_EQ(trainer.epoch(), earlier + 3);
  const auto loaded = swarm.net.run(trainer.run->load_checkpoint(file));
  ASSERT_TRUE(loaded) << loaded.error();
  EXPECT_EQ(trainer.epoch(), earlier);
  end_epoch();
  EXPECT_EQ(trainer.epoch(), earlier + 1) << "what it had come to is no progress of others that it is behind";
  std::filesystem::remove(file);
}

TEST(LargeEpochs, OfACheckpointAreRefused) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "large_epochs.safetensors";
  for (const std::uint64_t epoch : {kMostEpochs, kMostEpochs + 1, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    TrainingSwarm swarm;
    auto& trainer = swarm.add({.value = 5, .batch = 1h});
    ASSERT_TRUE(swarm.net.run(trainer.run->save_checkpoint(file)));
    auto content = checkpoint::read_file(file).value();
    content.metadata["cohive.epoch"] = std::to_string(epoch);
    ASSERT_TRUE(checkpoint::write_file(file, content));
    const auto loaded = swarm.net.run(trainer.run->load_checkpoint(file));
    if (epoch == kMostEpochs) {
      EXPECT_TRUE(loaded);
      continue;
    }
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error(), checkpoint::Errc::does_not_fit);
    EXPECT_EQ(trainer.epoch(), 0u);
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace cohive::train
