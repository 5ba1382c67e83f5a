#include "cohive/train/progress_tracker.hpp"

#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "dht/dht_swarm.hpp"
#include "scenarios/progress_record.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

constexpr double kTarget = 1000;

class Progress : public dht::DhtSwarm {
 protected:
  ProgressTracker& add_trainer(bool client_mode = false) {
    Dht& node = add({.client_mode = client_mode});
    auto key = std::make_shared<dht::RsaSignatureValidator>();
    node.add_validator(key);
    TrackerOptions options;
    options.run_id = "run";
    options.target_batch_size = kTarget;
    options.client_mode = client_mode;
    options.sharded_above = 0;  // all in one record; shards_sim_test.cpp has the others
    trackers.push_back(std::make_unique<ProgressTracker>(node, key, options));
    trackers.back()->start();
    return *trackers.back();
  }
  /// Reports `batch` more samples every second for `seconds`.
  void train(ProgressTracker& tracker, std::uint64_t epoch, double batch, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      swarm.pass(1s);
      tracker.report(epoch, samples[&tracker] += batch);
    }
  }
  void TearDown() override { trackers.clear(); }
  /// As after a round of all trainers.
  void meet() {
    std::vector<PeerId> all;
    for (std::size_t i = 0; i < trackers.size(); ++i) all.push_back(swarm.host(i).id());
    for (auto& tracker : trackers) tracker->took_part(all);
  }

  std::vector<std::unique_ptr<ProgressTracker>> trackers;
  std::map<ProgressTracker*, double> samples;
};

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

class ProgressLiars : public Progress {
 protected:
  /// A node that signs what it stores, and whose key no trainer knows.
  Dht& add_liar() {
    key = std::make_shared<dht::RsaSignatureValidator>();
    Dht& liar = add();
    liar.add_validator(key);
    return liar;
  }
  void claim(Dht& liar, std::uint64_t epoch, std::uint64_t samples, double time, double expiration) {
    using namespace msgpack;
    const Map report = sim::progress_record(liar.host().id().bytes(), epoch, samples, 1.0, time);
    EXPECT_TRUE(store(liar, "run_progress", Bin{key->ownership_marker()}, report, expiration));
    swarm.pass(5s);
  }
  std::shared_ptr<dht::RsaSignatureValidator> key;
};

TEST_F(ProgressLiars, APlainValueInPlaceOfTheRunsRecordHidesNobody) {
  add();  // a bootstrap node, which knows no run
  for (int i = 0; i < 3; ++i) train(add_trainer(), 0, 10, 2);
  Dht& liar = add();
  proto::StoreRequest request;
  request.add_keys(dht::DhtId::of("run_progress").binary());
  request.add_subkeys("\xc0");
  request.add_values("\x01");
  request.add_expiration_time(in(6 * 86400.0));
  request.add_in_cache(false);
  for (auto& node : nodes)
    (void)swarm.run(rpc::call_unary(liar.host(), node->host().id(), "DHTProtocol.rpc_store",
                                    request.SerializeAsString(), swarm.after(3s)));
  for (int i = 0; i < 60; ++i)
    for (auto& tracker : trackers) train(*tracker, 0, 1, 1);
  for (auto& tracker : trackers) EXPECT_EQ(tracker->snapshot().peers, 3u);
}

TEST_F(ProgressLiars, OneClaimOfAFarEpochMovesNobody) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  train(first, 2, 10, 2);
  train(second, 2, 10, 2);
  Dht& liar = add_liar();
  double later = 60;
  for (const std::uint64_t epoch : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    claim(liar, epoch, 1, liar.now(), in(++later));
    swarm.run(first.refresh());
    EXPECT_EQ(first.snapshot().epoch, 2u);
    EXPECT_LE(first.snapshot().claimed, std::uint64_t{1} << 48) << "one more epoch must not wrap around";
  }
}

TEST_F(ProgressLiars, OneClaimOfTheNextEpochMovesNobodyWhereThereAreSeveral) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (auto* tracker : {&first, &second}) train(*tracker, 2, 10, 2);
  meet();
  Dht& liar = add_liar();
  claim(liar, 3, 1, liar.now(), in(60));
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().epoch, 2u);
  EXPECT_EQ(first.snapshot().claimed, 2u) << "it has averaged with somebody else";
  second.update_epoch(3);
  train(second, 3, 10, 5);
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().epoch, 3u) << "one that it has averaged with has reached it";
}

TEST_F(ProgressLiars, NobodyReportsForAnotherPeer) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (int i = 0; i < 5; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 1);
  const PeerId member = swarm.host(1).id();
  swarm.run(first.refresh());  // it knows the member before the liar comes
  Dht& liar = add_liar();
  using namespace msgpack;
  const auto report_for = [&](const PeerId& peer, double expiration) {
    const Map report = sim::progress_record(peer.bytes(), 0, 1, 1.0, liar.now() + 60);
    EXPECT_TRUE(store(liar, "run_progress", Bin{key->ownership_marker()}, report, in(expiration)));
  };
  report_for(member, 60);
  swarm.pass(3s);
  swarm.run(first.refresh());
  first.took_part({swarm.host(0).id()});
  EXPECT_EQ(first.snapshot().expected, 1u);
  swarm.pass(1s);
  report_for(member, 61);
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().expected, 1u) << "the member missed the round, whatever is reported in its name";
}

/// A leader may tell each trainer of a group of its own, all of whose other members it has made up.
TEST_F(ProgressLiars, AGroupOfNobodyElseSaysNothingOfTheOtherTrainers) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (int i = 0; i < 5; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 1);
  swarm.run(first.refresh());
  const PeerId self = swarm.host(0).id(), other = swarm.host(1).id();
  first.met({other});
  ASSERT_EQ(first.snapshot().expected, 2u);
  first.took_part({self}, {PeerId::of_public_key(as_bytes("made up"))});
  EXPECT_EQ(first.snapshot().expected, 2u);
  first.took_part({self}, {other});
  EXPECT_EQ(first.snapshot().expected, 1u) << "it was in the group, and did not come";
}

/// Keys cost nothing, and one peer can have any number of them.
class ProgressCrowds : public ProgressLiars {
 protected:
  /// Reports under a new key.
  void report_as(ByteView peer, std::uint64_t epoch, double ahead = 0) {
    if (!stranger) stranger = &add();
    const auto fresh = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(next_key++));
    auto report = sim::progress_record(peer, epoch, 1, 1.0, stranger->now() + ahead);
    swarm.run(sim::store_under_key(*stranger, fresh, "run_progress", std::move(report), in(60 + ahead)));
  }
  Dht* stranger = nullptr;
  std::size_t next_key = 100;
};

TEST_F(ProgressCrowds, OfStrangersThatClaimAFarEpochMoveNobody) {
  auto &first = add_trainer(), &second = add_trainer();
  for (auto* tracker : {&first, &second}) train(*tracker, 2, 10, 2);
  for (std::size_t i = 0; i < 6; ++i) report_as(swarm.host(0).id().bytes(), 1 << 20);
  for (int i = 0; i < 4; ++i) report_as(add().host().id().bytes(), 1 << 20);
  swarm.pass(2s);
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().epoch, 2u);
  EXPECT_GT(first.snapshot().claimed, 2u) << "of strangers alone one may be right";
  meet();
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().epoch, 2u);
  EXPECT_EQ(first.snapshot().claimed, 2u) << "what the peer says that it has averaged with counts for more";
}

TEST_F(ProgressCrowds, AreNotWaitedFor) {
  auto &first = add_trainer(), &second = add_trainer();
  for (auto* tracker : {&first, &second}) train(*tracker, 0, 10, 2);
  meet();
  swarm.run(first.refresh());
  ASSERT_EQ(first.snapshot().expected, 2u);
  report_as(as_bytes("no peer id"), 0);
  report_as(swarm.host(1).id().bytes(), 0);  // that of the other trainer, which has it
  for (std::size_t i = 0; i < 8; ++i)        // of peers that are not there
    report_as(KeyPair::ed25519_from_seed(Bytes(32, static_cast<std::uint8_t>(i + 100))).peer_id().bytes(), 0);
  swarm.run(first.refresh());
  swarm.pass(30s);
  EXPECT_EQ(first.snapshot().expected, 2u);
}

TEST_F(ProgressCrowds, APeerThatNeverComesHoldsTwoRoundsUp) {
  auto &first = add_trainer(), &second = add_trainer();
  for (auto* tracker : {&first, &second}) train(*tracker, 0, 10, 2);
  meet();
  Dht& liar = add_liar();
  for (int round = 0; round < 4; ++round) {
    claim(liar, 0, 1, liar.now(), in(61 + round));  // its node is connected with the trainers
    swarm.run(first.refresh());
    EXPECT_EQ(first.snapshot().expected, round < 2 ? 3u : 2u) << round;
    meet();
    swarm.pass(1s);
  }
}

TEST_F(ProgressCrowds, WhatIsNoReportChangesNoReading) {
  auto &first = add_trainer(), &second = add_trainer();
  Dht& flooder = add();
  std::vector<dht::StoreItem> flood;
  for (int i = 0; i < 1500; ++i)
    flood.push_back({"run_progress", msgpack::Value(std::to_string(i)), std::string(100, 'x'), in(3600)});
  swarm.run(flooder.store_many(std::move(flood)));
  for (auto* tracker : {&first, &second}) train(*tracker, 0, 10, 2);
  auto& newcomer = add_trainer();  // does not know how large the run is, and asks for some of the entries
  for (int look = 0; look < 10; ++look) {
    swarm.pass(1s);
    swarm.run(newcomer.refresh());
    EXPECT_EQ(newcomer.snapshot().peers, 2u) << look;
    EXPECT_LE(newcomer.snapshot().samples, 40) << look;
  }
}

TEST_F(ProgressCrowds, ReportsOfATimeThatIsToComeAreRefused) {
  auto& first = add_trainer();
  first.report(0, 10);
  report_as(as_bytes("stranger"), 0, 600);
  report_as(as_bytes("one whose clock is a little ahead"), 0, 60);
  swarm.pass(3s);
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().peers, 2u);
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
  trackers[0]->took_part({swarm.host(1).id(), swarm.host(2).id(), swarm.host(3).id(), swarm.host(4).id()});
  EXPECT_EQ(epoch_of_first(), 30u);
}

TEST_F(ProgressLiars, OneClaimIsWorthABatchAtMostAndLastsNoWeek) {
  auto& tracker = add_trainer();
  train(tracker, 0, 10, 2);
  Dht& liar = add_liar();
  claim(liar, 0, std::uint64_t{1} << 62, liar.now(), in(100));
  swarm.run(tracker.refresh());
  EXPECT_LE(tracker.snapshot().samples, kTarget + 20);
  claim(liar, 0, 1, 1e300, in(6 * 86400.0));
  swarm.run(tracker.refresh());
  EXPECT_EQ(tracker.snapshot().peers, 1u) << "a report from the end of time";
  claim(liar, 0, 1, liar.now(), in(6 * 86400.0 + 100));
  swarm.run(tracker.refresh());
  EXPECT_EQ(tracker.snapshot().peers, 2u);
  for (int i = 0; i < 3 * 60; ++i) train(tracker, 0, 0.01, 60);
  EXPECT_EQ(tracker.snapshot().peers, 1u) << "a report of hours ago";
}

}  // namespace
}  // namespace cohive::train
