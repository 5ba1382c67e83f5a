// Whole training runs on virtual time: trainers of a least-squares model, with churn, partitions, slow links and liars.
#include "cohive/train/run.hpp"

#include <gtest/gtest.h>

#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "scenarios/progress_record.hpp"
#include "support/sanitizers.hpp"

namespace cohive::train {
namespace {

using sim::run_training;
using sim::small_training;
using sim::TrainScenario;
using sim::TrainScenarioReport;
using sim::TrainSwarm;

void expect_learnt(const TrainScenarioReport& report, std::uint64_t epochs = 10) {
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, epochs);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
  EXPECT_EQ(report.over_budget, 0u) << "hosts of which peers filled more than their memory budget";
  EXPECT_LT(report.last_loss, 3 * report.loss_of_one + 0.02 * report.first_loss)
      << "one process has " << report.loss_of_one;
}

/// What is no number must not look like no loss: what other tests expect would hold then.
TEST(TrainingRun, ThatDivergesHasNoSmallLoss) {
  auto scenario = small_training();
  scenario.learning_rate = 1e12;
  scenario.duration = 1min;
  const auto report = run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GT(report.epochs, 3u);
  EXPECT_GT(report.last_loss, report.first_loss);
}

TEST(TrainingRun, AHundredTrainersLearnWhileATenthIsReplacedEveryMinute) {
  TrainScenario scenario;
  if (kSanitized) {
    scenario.trainers = 20;
    scenario.replaced_per_minute = 0.2;
  }
  scenario.duration = 4min;
  scenario.learning_rate = 0.1;
  const auto report = run_training(scenario);
  expect_learnt(report, 6);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_EQ(report.epochs_alone, 0u);
  EXPECT_GT(report.mean_group, (kSanitized ? 0.8 : 0.85) * static_cast<double>(scenario.trainers));
  EXPECT_EQ(report.offences, 0) << "all are honest";
  EXPECT_GE(report.newcomers, scenario.trainers / 10) << "too few to judge by";
  EXPECT_EQ(report.newcomers_late, 0u) << "of " << report.newcomers;
}

/// Late, behind, asleep and slow are no offences.
TEST(TrainingRun, HonestTrainersThatComeAndGoAndSleepOnSlowLinesAreAccusedOfNothing) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    auto scenario = small_training();
    scenario.seed = seed;
    scenario.trainers = 6;
    scenario.duration = 5min;
    scenario.slowest_line = 100e3;
    scenario.fastest_line = 1e6;
    scenario.ballast = 20'000;
    scenario.replaced_per_minute = 0.2;
    scenario.asleep_per_minute = 0.3;
    const auto report = run_training(scenario);
    SCOPED_TRACE(::testing::PrintToString(report));
    EXPECT_EQ(report.offences, 0);
    EXPECT_GE(report.epochs, 10u);
    EXPECT_LT(report.last_loss, report.first_loss / 5);
  }
}

TEST(TrainingRun, LearnsInGroupsThatAreDrawnAnewForEveryRound) {
  auto scenario = small_training();
  scenario.trainers = 24;
  scenario.tune = [](RunOptions& options) { options.target_group_size = 12; };
  const auto report = run_training(scenario);
  expect_learnt(report);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_EQ(report.epochs_alone, 0u);
  EXPECT_GT(report.mean_group, 8);
  EXPECT_LT(report.mean_group, 16);
  EXPECT_LE(report.downloads, 2u) << "a draw may leave a trainer alone";
  EXPECT_LT(report.spread, report.first_loss / 20) << "averages mix through the whole run";
}

/// A newcomer has averaged with nobody, and looks for its first group where all others do.
TEST(TrainingRun, TakesNewcomersIntoItsGroups) {
  auto scenario = small_training();
  scenario.trainers = 18;
  scenario.duration = 4min;
  scenario.replaced_per_minute = 0.05;
  scenario.tune = [](RunOptions& options) { options.target_group_size = 8; };
  const auto report = run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.newcomers, 2u);
  EXPECT_EQ(report.newcomers_late, 0u);
  EXPECT_LT(report.mean_group, 12) << "several groups";
}

/// Seven times as many as began the run come at once, and make groups of their own.
TEST(TrainingRun, MeetsAWaveOfNewcomers) {
  auto scenario = small_training();
  scenario.trainers = 4;
  scenario.batches_per_epoch = 64;
  scenario.duration = 5min;
  scenario.tune = [](RunOptions& options) { options.target_group_size = 8; };
  scenario.each_second = [](TrainSwarm& swarm, double second) {
    if (second == 60) swarm.add(28);
  };
  const auto report = run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GT(report.mean_group, 5);
  EXPECT_GT(report.least_group, 5) << "founders meet the newcomers";
}

TEST(TrainingRun, IsDividedIntoGroupsAboutAsLargeAsWanted) {
  auto scenario = small_training();
  scenario.trainers = 34;
  scenario.duration = 3min;
  scenario.shortest_batch = 1s;
  scenario.longest_batch = 4s;
  scenario.batches_per_epoch = 8;
  scenario.tune = [](RunOptions& options) { options.target_group_size = 16; };
  const auto report = run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GT(report.mean_group, 14) << "two groups";
  EXPECT_LE(report.downloads, 2u);
}

/// Reports as trainers that do not exist, each with a key of its own.
Task<void> invent_trainers(TrainSwarm& swarm, std::size_t count) {
  Dht* dht = co_await swarm.stranger();
  for (std::size_t i = 0; i < count; ++i) {
    const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1000 + i));
    auto record = sim::progress_record(as_bytes(std::to_string(i)), 0, 0, 1e-3, dht->now());
    co_await sim::store_under_key(*dht, key, "simulated_progress", std::move(record), dht->now() + 3600);
  }
}

TEST(TrainingRun, IsNotDividedByTrainersThatDoNotExist) {
  auto scenario = small_training();
  scenario.trainers = 8;
  scenario.tune = [](RunOptions& options) { options.target_group_size = 8; };
  scenario.each_second = [](TrainSwarm& swarm, double second) {
    if (second == 8) swarm.spawn(invent_trainers(swarm, 100));
  };
  const auto report = run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, 8u);
  EXPECT_GT(report.mean_group, 3.5) << "two groups at most";
  EXPECT_LT(report.last_loss, report.first_loss / 5);
}

TEST(TrainingRun, LearnsWhateverIsDelayed) {
  struct Mode {
    const char* name;
    bool state, step, gradients;
  };
  for (const Mode& mode : {Mode{"nothing", false, false, false}, Mode{"state", true, false, false},
                           Mode{"state and step", true, true, false}, Mode{"everything", true, true, true}}) {
    SCOPED_TRACE(mode.name);
    auto scenario = small_training();
    scenario.tune = [&mode](RunOptions& options) {
      options.delay_state_averaging = mode.state;
      options.delay_optimizer_step = options.offload_optimizer = mode.step;
      options.delay_grad_averaging = mode.gradients;
    };
    const auto report = run_training(scenario);
    expect_learnt(report);
    EXPECT_EQ(report.epochs_alone, 0u);
    EXPECT_GT(report.mean_group, 4.5);
    EXPECT_EQ(report.downloads, 0u) << "nobody was left behind";
  }
}

/// Stores the report of a trainer that has all but a sample of an epoch's.
Task<void> report_nearly_an_epoch(Dht& dht, const std::string& run_id, double samples) {
  const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(7));
  dht.add_validator(key);
  const msgpack::Map record =
      sim::progress_record(dht.host().id().bytes(), 0, static_cast<std::uint64_t>(samples), samples, dht.now());
  (void)co_await dht.store(run_id + "_progress", msgpack::Bin{key->ownership_marker()}, record, dht.now() + 60);
}

/// Where the DHT has the other trainer's report already, and its own is on its way.
TEST(TrainingRun, ATrainerLooksForAnotherOneThatReportsBeforeItself) {
  sim::Swarm net;
  Dht first(net.add_host()), second(net.add_host());
  ASSERT_TRUE(net.run(first.start({})));
  ASSERT_TRUE(net.run(second.start({net.host(0).visible_addresses().front()})));
  RunOptions options;
  options.run_id = "pair";
  options.target_batch_size = 16;
  options.matchmaking_time = 2s;
  options.averaging_timeout = 10s;
  net.run(report_nearly_an_epoch(second, options.run_id, 15));
  PlainReplica replica(net.runtime(), {{4}}, optim::SgdOptions{.lr = 1});
  train::Run run(first, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1)), replica, options);
  run.start();
  net.runtime().run_for(1s);
  const std::vector<float> gradient(4, 1.0f);
  replica.add_gradients({gradient}, 8);
  ASSERT_EQ(run.count(8), train::Run::Next::synchronise);
  const TimePoint begin = net.runtime().now();
  EXPECT_TRUE(net.run(run.synchronise()).epoch_changed);
  EXPECT_GE(net.runtime().now() - begin, options.matchmaking_time) << "it did not look for the other one";
}

/// Its next batch may take longer than the one before. Others would not wait; there are none.
TEST(TrainingRun, ATrainerAloneEndsAnEpochWhenAllItsSamplesAreThere) {
  sim::Swarm net;
  Dht dht(net.add_host());
  ASSERT_TRUE(net.run(dht.start({})));
  RunOptions options;
  options.run_id = "alone";
  options.target_batch_size = 32;
  PlainReplica replica(net.runtime(), {{4}}, optim::SgdOptions{.lr = 1});
  train::Run run(dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1)), replica, options);
  run.start();
  const std::vector<float> gradient(4, 1.0f);
  for (const Duration pause : {100ms, 100ms, 20'000ms}) {
    net.runtime().run_for(pause);
    replica.add_gradients({gradient}, 8);
    EXPECT_EQ(run.count(8), train::Run::Next::go_on);
  }
  net.runtime().run_for(100ms);
  replica.add_gradients({gradient}, 8);
  EXPECT_EQ(run.count(8), train::Run::Next::synchronise);
  EXPECT_TRUE(net.run(run.synchronise()).epoch_changed);
}

TEST(TrainingRun, ATrainerThatHearsOfTheNextEpochBeforeItsGroupIsThereIsNotLeftBehind) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    SCOPED_TRACE(seed);
    auto scenario = small_training();
    scenario.seed = seed;
    scenario.trainers = 2;
    scenario.batches_per_epoch = 8;
    scenario.shortest_batch = scenario.longest_batch = 1s;
    scenario.tune = [](RunOptions& options) {
      options.matchmaking_time = 5s;
      options.delay_optimizer_step = options.offload_optimizer = options.delay_grad_averaging = true;
    };
    const auto report = run_training(scenario);
    EXPECT_EQ(report.epochs_alone, 0u);
    EXPECT_EQ(report.downloads, 0u);
    EXPECT_GT(report.epochs, 8u);
  }
}

TEST(TrainingRun, LearnsWithGradientsOfRankOneWhileTrainersComeAndGo) {
  auto scenario = small_training();
  scenario.seed = 2;
  scenario.columns = 8;
  scenario.duration = 4min;
  scenario.replaced_per_minute = 0.2;
  scenario.tune = [](RunOptions& options) { options.grad_averager_factory = power_sgd_averager({.averager_rank = 1}); };
  const auto report = run_training(scenario);
  expect_learnt(report);
  EXPECT_GT(report.mean_group, 3.5);
  EXPECT_GT(report.newcomers, 0u);
}

TEST(TrainingRun, LearnsWithAveragesThatAreCheckedWhileTrainersComeAndGo) {
  for (const bool factors : {false, true}) {
    SCOPED_TRACE(factors ? "PowerSGD" : "plain gradients");
    auto scenario = small_training();
    scenario.columns = 8;
    scenario.duration = 4min;
    scenario.replaced_per_minute = 0.5;
    scenario.tune = [factors](RunOptions& options) {
      options.verified_share = 0.3;
      if (factors) options.grad_averager_factory = power_sgd_averager({.averager_rank = 1});
    };
    const auto report = run_training(scenario);
    expect_learnt(report);
    EXPECT_GT(report.mean_group, 3.0);  // which members are checked is drawn anew in each run
    EXPECT_GT(report.newcomers, 0u);
  }
}

TEST(TrainingRun, SynchronousTrainersHoldTheSameParameters) {
  auto scenario = small_training();
  scenario.tune = [](RunOptions& options) { options.delay_state_averaging = false; };
  const auto report = run_training(scenario);
  EXPECT_LT(report.spread, 1e-5);
}

TEST(TrainingRun, SpeedsAreThoseOfWholeBatches) {
  for (const bool delayed : {false, true}) {
    auto scenario = small_training();
    scenario.slowest_line = scenario.fastest_line = 1e6;
    scenario.ballast = 500'000;  // two seconds on these lines: what is delayed ends while a batch is computed
    scenario.tune = [delayed](RunOptions& options) { options.delay_state_averaging = delayed; };
    EXPECT_LT(run_training(scenario).speed_error, 0.01) << (delayed ? "delayed" : "not delayed");
  }
}

TEST(TrainingRun, WaitsLessTheMoreIsDelayed) {
  const auto waiting = [](bool delayed) {
    auto scenario = small_training();
    scenario.slowest_line = scenario.fastest_line = 1e6;
    scenario.ballast = 500'000;  // two seconds on these lines
    scenario.batches_per_epoch = 20;
    scenario.tune = [delayed](RunOptions& options) {
      options.delay_state_averaging = options.delay_optimizer_step = options.offload_optimizer =
          options.delay_grad_averaging = delayed;
    };
    const auto report = run_training(scenario);
    EXPECT_EQ(report.epochs_alone, 0u);
    return report.waiting;
  };
  const double synchronous = waiting(false), delayed = waiting(true);
  EXPECT_GT(synchronous, 0.1);
  EXPECT_LT(delayed, synchronous / 5);
}

TEST(TrainingRun, LocalUpdatesAreAveragedWithTheDeltaRule) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed ? "delayed" : "synchronous");
    auto scenario = small_training();
    scenario.learning_rate = 0.005;  // many steps an epoch
    scenario.tune = [delayed](RunOptions& options) {
      options.use_local_updates = true;
      options.delay_state_averaging = delayed;
    };
    const auto report = run_training(scenario);
    EXPECT_GE(report.epochs, 5u);
    EXPECT_GT(report.mean_group, 4.5);
    EXPECT_LT(report.last_loss, report.first_loss / 10);
    EXPECT_LT(report.spread, 0.5) << "they go on from what they have averaged";
  }
}

TEST(TrainingRun, HalvesThatWereApartMeetAgain) {
  auto scenario = small_training();
  scenario.trainers = 6;
  scenario.duration = 6min;
  scenario.each_second = [](TrainSwarm& swarm, double second) {
    if (second == 60) swarm.split(true);
    if (second == 120) swarm.split(false);
  };
  const auto report = run_training(scenario);
  expect_learnt(report);
  EXPECT_LT(report.spread, 0.05);
}

/// A peer that does not train stores `record` under the key of the run: signed, or as a plain value.
Task<void> lie(TrainSwarm& swarm, std::shared_ptr<dht::RsaSignatureValidator> key, msgpack::Value record) {
  Dht& dht = *co_await swarm.stranger();
  const double expiration = dht.now() + 3600;
  if (!key) {
    // Nodes of the run refuse it: their validators know what progress looks like.
    EXPECT_FALSE(co_await dht.store("simulated_progress", std::move(record), expiration));
    co_return;
  }
  dht.add_validator(key);
  EXPECT_TRUE(
      co_await dht.store("simulated_progress", msgpack::Bin{key->ownership_marker()}, std::move(record), expiration));
}

TEST(TrainingRun, OneRecordOfAFarEpochMakesNobodyDropBatches) {
  auto scenario = small_training();
  const auto honest = run_training(scenario);
  auto key = std::make_shared<dht::RsaSignatureValidator>();
  scenario.each_second = [key](TrainSwarm& swarm, double second) {
    if (second != 20) return;
    const std::string stranger(38, 'x');
    const double now = to_seconds(20s);
    swarm.spawn(
        lie(swarm, key, sim::progress_record(as_bytes(stranger), std::uint64_t{1} << 40, std::uint64_t{1}, 1.0, now)));
  };
  const auto report = run_training(scenario);
  expect_learnt(report);
  EXPECT_GE(report.epochs + 2, honest.epochs);
  EXPECT_EQ(report.downloads, 0u);
}

TEST(TrainingRun, APlainRecordUnderTheRunsKeyHidesNobody) {
  auto scenario = small_training();
  scenario.each_second = [](TrainSwarm& swarm, double second) {
    if (second == 20) swarm.spawn(lie(swarm, nullptr, "nothing to see here"));
  };
  const auto report = run_training(scenario);
  expect_learnt(report);
  EXPECT_EQ(report.epochs_alone, 0u);
}

}  // namespace
}  // namespace cohive::train
