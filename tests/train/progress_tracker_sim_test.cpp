#include "progress_trackers.hpp"

#include "cohive/testing/cheap_keys.hpp"
#include "scenarios/progress_record.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

TEST(PerformanceEma, TellsASteadySpeedFromTheSecondBatchOn) {
  PerformanceEma ema;
  ema.reset_timer(100);
  for (double now = 102; now < 120; now += 2) {
    ema.update(64, now);
    EXPECT_NEAR(ema.samples_per_second(), 32, 1e-9);
  }
}

TEST(PerformanceEma, FollowsAChangeOfSpeedSlowly) {
  PerformanceEma ema;
  ema.reset_timer(0);
  for (int now = 1; now <= 50; ++now) ema.update(10, now);
  ema.update(10, 60);
  EXPECT_LT(ema.samples_per_second(), 10);
  EXPECT_GT(ema.samples_per_second(), 4);
}

TEST_F(Progress, AddsUpWhatAllTrainersDid) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (int i = 0; i < 20; ++i) {
    train(first, 0, 10, 1);
    train(second, 0, 20, 1);
  }
  swarm.pass(2s);
  for (auto* tracker : {&first, &second}) {
    const auto seen = tracker->snapshot();
    EXPECT_EQ(seen.peers, 2u);
    EXPECT_EQ(seen.clients, 0u);
    EXPECT_NEAR(seen.samples, 20 * 10 + 20 * 20, 60);
    EXPECT_NEAR(seen.samples_per_second, 15, 3) << "each reports every other second";
  }
}

TEST_F(Progress, OfAVeryLargeRunIsReckonedFromSomeOfItsRecords) {
  constexpr int kOthers = 150;
  auto& tracker = add_trainer();
  for (int i = 0; i < kOthers; ++i) {
    Dht& node = add();
    const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(static_cast<std::size_t>(i)));
    node.add_validator(key);
    const msgpack::Map record = sim::progress_record(node.host().id().bytes(), 0, i % 5, .5, node.now());
    ASSERT_TRUE(
        swarm.run(node.store("run_progress", msgpack::Bin{key->ownership_marker()}, record, node.now() + 3600)));
  }
  tracker.report(0, 10);
  swarm.pass(10s);
  ASSERT_EQ(tracker.snapshot().peers, kOthers + 1u) << "all of them";
  for (int look = 0; look < 5; ++look) {
    swarm.run(tracker.refresh());
    const auto seen = tracker.snapshot();
    EXPECT_EQ(seen.peers, kOthers + 1u);
    EXPECT_EQ(seen.expected, kOthers + 1u);
    EXPECT_EQ(seen.own_samples, 10);
    EXPECT_NEAR(seen.samples, 10 + kOthers * 2, 100);
    EXPECT_NEAR(seen.samples_per_second, kOthers * .5, 3);
  }
}

class LargeRun : public Progress {
 protected:
  /// As a trainer that reports once.
  void report_as(std::size_t number, int samples, double rate) {
    Dht& node = add();
    const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(number));
    node.add_validator(key);
    const msgpack::Map record = sim::progress_record(node.host().id().bytes(), 0, samples, rate, node.now());
    const msgpack::Bin marker{key->ownership_marker()};
    ASSERT_TRUE(swarm.run(node.store("run_progress", marker, record, node.now() + 3600)));
  }
};

TEST_F(LargeRun, IsReckonedFromTrainersOfEarlierDrawsToo) {
  constexpr std::size_t kOthers = 150;
  auto& tracker = add_trainer();
  double rate = 0;
  for (std::size_t i = 0; i < kOthers; ++i) {
    const double own = i % 3 == 0 ? .4 : .04;
    report_as(i, 0, own);
    rate += own;
  }
  tracker.report(0, 1);
  swarm.pass(60s);
  for (int look = 0; look < 10; ++look) {
    swarm.run(tracker.refresh());
    ASSERT_EQ(tracker.snapshot().peers, kOthers + 1u);
    EXPECT_NEAR(tracker.snapshot().samples_per_second, rate, rate / 20) << "a draw of 48 alone is off by more";
  }
}

TEST_F(LargeRun, IsNotEndedByOneThatClaimsToBeFarFasterThanTheOthers) {
  auto& tracker = add_trainer();
  for (std::size_t i = 0; i < 150; ++i) report_as(i, 0, i == 0 ? 1e12 : .01);
  tracker.report(0, 1);
  for (int look = 0; look < 20; ++look) {
    swarm.pass(1s);
    swarm.run(tracker.refresh());
    EXPECT_LT(tracker.snapshot().samples_per_second, 2 * 1.5);
    EXPECT_GT(tracker.snapshot().eta, swarm.runtime().wall_time() + 100);
  }
}

TEST_F(Progress, WhoMissedARoundIsNotExpectedUntilItReportsAgain) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  auto& third = add_trainer();
  for (int i = 0; i < 10; ++i)
    for (auto* tracker : {&first, &second, &third}) train(*tracker, 0, 1, 1);
  swarm.pass(2s);
  ASSERT_EQ(first.snapshot().expected, 3u);
  first.met({swarm.host(0).id(), swarm.host(1).id()});
  first.took_part({swarm.host(0).id(), swarm.host(1).id()});
  EXPECT_EQ(first.snapshot().expected, 2u);
  for (int i = 0; i < 10; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 1);
  EXPECT_EQ(first.snapshot().peers, 3u) << "its record lives on";
  EXPECT_EQ(first.snapshot().expected, 2u);
  train(third, 0, 1, 5);
  train(first, 0, 1, 15);
  EXPECT_EQ(first.snapshot().expected, 3u);
}

TEST_F(Progress, TrainersThatBeginTogetherSeeEachOtherAtOnce) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  first.report(0, 10);
  second.report(0, 10);
  swarm.pass(2s);
  EXPECT_EQ(first.snapshot().peers, 2u);
  EXPECT_EQ(second.snapshot().peers, 2u);
}

TEST_F(Progress, ForeseesWhenTheTargetIsReached) {
  auto& tracker = add_trainer();
  train(tracker, 0, 20, 10);
  swarm.run(tracker.refresh());
  const auto seen = tracker.snapshot();
  EXPECT_NEAR(seen.eta - nodes[0]->now(), (kTarget - 200) / 20, 2);
}

TEST_F(Progress, AClientFollowsTheEpochAndDoesNotSetIt) {
  auto& node = add_trainer();
  auto& client = add_trainer(true);
  node.report(3, 10);
  client.report(7, 10);
  swarm.pass(5s);
  EXPECT_EQ(node.snapshot().epoch, 3u);
  EXPECT_EQ(node.snapshot().clients, 1u);
}

TEST_F(Progress, AnAuxiliaryPeerTakesTheEpochOfTheRunAlsoFromClientsAlone) {
  add();  // a node that belongs to nobody
  auto& client = add_trainer(true);
  auto& helper = add_trainer(false, true);
  train(client, 7, 10, 10);
  swarm.run(helper.refresh());
  const auto seen = helper.snapshot();
  EXPECT_EQ(seen.epoch, 7u);
  EXPECT_EQ(seen.expected, 2u);
  EXPECT_NEAR(seen.samples, 100, 30);
  EXPECT_LT(seen.eta - swarm.runtime().wall_time(), 2 * kTarget / 10) << "it knows when to come";
}

TEST_F(Progress, TellsThoseWhoWaitThatTheRunHasMovedOn) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  first.report(4, 10);
  second.report(4, 10);
  swarm.pass(5s);
  TaskGroup waiting(swarm.runtime(), "test");
  bool passed = false;
  waiting.spawn(
      [](ProgressTracker& tracker, bool& flag) -> Task<void> {
        co_await tracker.epoch_passed(4);
        flag = true;
      }(second, passed),
      "wait");
  swarm.pass(20s);
  EXPECT_FALSE(passed);
  first.update_epoch(5);
  first.report(5, 1);
  swarm.pass(20s);
  EXPECT_TRUE(passed);
}

TEST_F(Progress, TheEndOfAnEpochIsToldAtOnceWhereSomebodyIsAboutToLook) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  train(second, 0, 10, 2);
  train(first, 0, 10, 2);  // others may come, which are told together with this one
  swarm.pass(50ms);
  first.update_epoch(1);
  first.report_at_once();
  swarm.pass(100ms);
  swarm.run(second.refresh());
  EXPECT_EQ(second.snapshot().claimed, 1u);
}

TEST_F(Progress, WhoLeavesIsNotCountedAnyMore) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  first.report(0, 10);
  second.report(0, 10);
  swarm.pass(5s);
  ASSERT_EQ(first.snapshot().peers, 2u);
  swarm.run(second.close(Deadline::never()));
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().peers, 1u);
}

TEST_F(Progress, WhoVanishesIsForgottenAfterAMinute) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  second.report(0, 10);
  for (int i = 0; i < 5; ++i) train(first, 0, 1, 1);
  ASSERT_EQ(first.snapshot().peers, 2u);
  trackers.pop_back();  // as when the process is killed: no goodbye
  for (int i = 0; i < 90; ++i) train(first, 0, 1, 1);
  EXPECT_EQ(first.snapshot().peers, 1u);
}

/// The record has its last report for a minute; its samples would come to no round.
TEST_F(Progress, WhoIsKilledIsNotReckonedToTrainOn) {
  for (int i = 0; i < 3; ++i) add_trainer();
  const auto train_all = [this](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      swarm.pass(1s);
      for (auto& tracker : trackers) tracker->report(0, samples[tracker.get()] += 2);
    }
  };
  train_all(30);
  ASSERT_NEAR(trackers[0]->snapshot().samples_per_second, 6, 0.5);
  swarm.fabric().kill(sim::Swarm::ip(3));
  trackers.pop_back();
  train_all(15);
  for (auto& tracker : trackers) {
    const GlobalProgress seen = tracker->snapshot();
    EXPECT_NEAR(seen.samples_per_second, 4, 0.4);
    EXPECT_NEAR(seen.samples, 2 * 2 * 45, 25);
  }
}

TEST_F(Progress, WhoStopsTrainingIsNotCountedForLong) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (auto* tracker : {&first, &second}) {
    train(*tracker, 0, 10, 3);
    tracker->update_epoch(1);
  }
  train(first, 1, 10, 20);
  EXPECT_EQ(first.snapshot().peers, 2u) << "it may be slow";
  meet();
  first.update_epoch(2);
  train(first, 2, 10, 20);
  first.update_epoch(3);
  train(first, 3, 10, 90);  // its last report expires
  EXPECT_EQ(first.snapshot().peers, 1u);
  second.update_epoch(3);
  train(second, 3, 10, 20);
  EXPECT_EQ(first.snapshot().peers, 2u) << "it is back";
}

TEST_F(Progress, AveragingDoesNotCountAsSlowTraining) {
  auto& first = add_trainer();
  train(first, 0, 10, 20);
  for (std::uint64_t epoch = 1; epoch < 10; ++epoch) {
    first.update_epoch(epoch);
    swarm.pass(20s);  // the parameters are averaged
    first.training_resumes();
    samples[&first] = 0;
    train(first, epoch, 10, 2);
  }
  swarm.run(first.refresh());
  EXPECT_NEAR(first.snapshot().samples_per_second, 10, 1);
}

TEST_F(Progress, MembersOfARoundAreNotTakenToHaveTrainedMeanwhile) {
  auto &first = add_trainer(), &second = add_trainer();
  for (int i = 0; i < 20; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 20, 1);  // 10 a second
  for (auto* tracker : {&first, &second}) tracker->update_epoch(1);
  swarm.pass(20s);  // the parameters are averaged
  for (auto* tracker : {&first, &second}) tracker->training_resumes();
  const double now = first.runtime().wall_time();
  EXPECT_NEAR(first.snapshot().eta - now, kTarget / 20, 5);
  swarm.run(first.refresh());
  EXPECT_NEAR(first.snapshot().eta - now, kTarget / 20, 5) << "nor by the next look";
}

TEST_F(Progress, OthersReckonFromTheMiddleOfTheNextBatch) {
  auto& first = add_trainer();
  const auto told = [&] {
    const auto record = swarm.run(nodes.front()->get("run_progress", true));
    const auto entry =
        record ? read_entry(record->entries().front().first, record->entries().front().second.value, kTarget)
               : std::nullopt;
    return entry ? entry->time : 0;
  };
  for (int batch = 1; batch <= 20; ++batch) {
    swarm.pass(100ms);
    first.report(0, 10 * batch);
  }
  const double end = nodes.front()->now();
  swarm.pass(1s);  // by when it is stored, together with those before it
  EXPECT_NEAR(told(), end + 0.05, 0.01);
  swarm.pass(5min);
  EXPECT_GT(told(), end + 200) << "a long batch is no old report";
}

TEST_F(Progress, AClockThatIsSetBackMakesNobodyInfinitelyFast) {
  auto& first = add_trainer();
  swarm.pass(5s);
  swarm.runtime().shift_wall_clock(-1h);
  train(first, 0, 10, 20);
  swarm.run(first.refresh());
  EXPECT_NEAR(first.snapshot().samples_per_second, 10, 1);
}

TEST_F(Progress, AClockThatIsSetBackDoesNotStopTheLookAtTheRun) {
  auto& first = add_trainer();
  first.report(0, 10);
  swarm.pass(5s);
  ASSERT_EQ(first.snapshot().peers, 1u);
  swarm.runtime().shift_wall_clock(-1h);
  auto& second = add_trainer();
  second.report(0, 10);
  swarm.pass(20s);
  EXPECT_EQ(first.snapshot().peers, 2u);
}

TEST_F(Progress, RecordsThatMakeNoSenseAreLeftOut) {
  using namespace msgpack;
  auto& tracker = add_trainer();
  tracker.report(2, 10);
  Dht& liar = add();
  const auto record = [&](Value epoch, Value samples, Value rate) {
    return sim::progress_record(liar.host().id().bytes(), std::move(epoch), std::move(samples), std::move(rate),
                                liar.now());
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  int number = 0;
  for (auto& value : {record("9", 1, 1.0), record(9, -1, 1.0), record(9, 1, nan), record(9, 1, infinity),
                      record(9, 1, -5.0), record(9, 1, 1), record(9, 1.5, 1.0), Map{}})
    store(liar, "run_progress", number++, value, in(60));
  store(liar, "run_progress", number++, "nonsense", in(60));
  swarm.pass(5s);
  swarm.run(tracker.refresh());
  EXPECT_EQ(tracker.snapshot().peers, 1u);
  EXPECT_EQ(tracker.snapshot().epoch, 2u);
}

TEST_F(Progress, AClockThatWasADayAheadHidesNobodyForADay) {
  auto &first = add_trainer(), &second = add_trainer();
  for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 3);
  ASSERT_EQ(second.snapshot().peers, 2u);
  swarm.runtime().shift_wall_clock(24h);
  train(first, 0, 1, 30);  // stores reports of tomorrow
  swarm.runtime().shift_wall_clock(-24h);
  for (int i = 0; i < 5; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 1);
  EXPECT_EQ(second.snapshot().peers, 2u);
  EXPECT_EQ(first.snapshot().peers, 2u);
  swarm.run(first.close(Deadline::never()));
  swarm.run(second.refresh());
  EXPECT_EQ(second.snapshot().peers, 1u) << "nor does its last one stay";
}

TEST_F(Progress, MostOfThoseThatItHasAveragedWithDecide) {
  for (int i = 0; i < 5; ++i) add_trainer();
  for (auto& tracker : trackers) train(*tracker, 1, 10, 1);
  swarm.pass(3s);
  meet();
  const auto epoch_of_first = [&] {
    swarm.pass(3s);
    swarm.run(trackers[0]->refresh());
    return trackers[0]->snapshot().epoch;
  };
  for (std::size_t i : {1u, 2u}) trackers[i]->report(30, 1);
  EXPECT_EQ(epoch_of_first(), 1u);
  EXPECT_EQ(trackers[0]->snapshot().claimed, 30u) << "worth a proof";
  trackers[3]->report(30, 1);
  EXPECT_EQ(epoch_of_first(), 30u);
  trackers[0]->doubt_claims_above(1);
  EXPECT_EQ(epoch_of_first(), 1u) << "no state has shown it";
  trackers[0]->met({swarm.host(1).id(), swarm.host(2).id(), swarm.host(3).id(), swarm.host(4).id()});
  trackers[0]->took_part({swarm.host(1).id(), swarm.host(2).id(), swarm.host(3).id(), swarm.host(4).id()});
  EXPECT_EQ(epoch_of_first(), 30u);
}

/// A report outlives the connection to its trainer, as of one that sleeps.
TEST_F(Progress, WhatIsLeftOfTrainersOutOfReachDoesNotBoundTheRun) {
  for (int i = 0; i < 3; ++i) add_trainer();
  for (int i = 0; i < 3; ++i)
    for (auto& tracker : trackers) train(*tracker, 1, 1, 1);
  auto& first = *trackers[0];
  const PeerId companion = swarm.host(1).id();
  first.met({companion});
  trackers[2]->report(30, 1);
  swarm.pass(3s);
  swarm.run(first.refresh());
  ASSERT_TRUE(first.snapshot().in_touch);
  EXPECT_EQ(first.snapshot().claimed, 1u);
  swarm.fabric().crash(sim::Swarm::ip(2));
  while (swarm.host(0).connected(companion)) {
    swarm.pass(1s);
    trackers[2]->report(30, 1);
  }
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().met, 1u) << "its report is still there";
  EXPECT_FALSE(first.snapshot().in_touch);
  EXPECT_EQ(first.snapshot().epoch, 1u);
  EXPECT_EQ(first.snapshot().claimed, 30u) << "worth a proof, as to a newcomer";
}

}  // namespace
}  // namespace cohive::train
