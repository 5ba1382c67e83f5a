// What peers that lie in their reports come to.
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "progress_trackers.hpp"
#include "scenarios/progress_record.hpp"

namespace cohive::train {
namespace {

class ProgressLiars : public Progress {
 protected:
  /// A node that signs what it stores, and whose key no trainer knows.
  Dht& add_liar() {
    key = std::make_shared<dht::RsaSignatureValidator>();
    Dht& liar = add();
    liar.add_validator(key);
    return liar;
  }
  void claim(Dht& liar, std::uint64_t epoch, std::uint64_t samples, double time, double expiration, double speed = 1) {
    using namespace msgpack;
    const Map report = sim::progress_record(liar.host().id().bytes(), epoch, samples, speed, time);
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
    claim(liar, epoch, 1, liar.now(), in(++later), 1000);
    swarm.run(first.refresh());
    EXPECT_EQ(first.snapshot().epoch, 2u);
    EXPECT_LE(first.snapshot().claimed, std::uint64_t{1} << 48) << "one more epoch must not wrap around";
    EXPECT_LT(first.snapshot().samples_per_second, 50) << "it would end the epoch early";
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

/// A member that claims batch after batch would end its epochs.
TEST_F(ProgressLiars, NobodyGoesOnAloneAtOnceWhereAllOthersMissARound) {
  auto& first = add_trainer();
  auto& second = add_trainer();
  for (int i = 0; i < 5; ++i)
    for (auto* tracker : {&first, &second}) train(*tracker, 0, 1, 1);
  meet();
  swarm.pass(1s);
  swarm.run(first.refresh());
  const auto miss_a_round = [&] { first.took_part({swarm.host(0).id()}, {swarm.host(1).id()}); };
  miss_a_round();
  EXPECT_EQ(first.snapshot().expected, 2u) << "it has reported just now, and has a connection";
  swarm.pass(4s);
  miss_a_round();
  EXPECT_EQ(first.snapshot().expected, 1u);
}

/// Whoever keeps most members out of a round would have the others step with their own samples.
TEST_F(ProgressLiars, MostMembersAreWaitedForOnceMoreThatHaveMissedARound) {
  auto& first = add_trainer();
  for (int i = 0; i < 4; ++i) add_trainer();
  for (int i = 0; i < 5; ++i) {
    for (auto& tracker : trackers) tracker->report(2, i + 1);
    swarm.pass(1s);
  }
  meet();
  swarm.run(first.refresh());
  ASSERT_EQ(first.snapshot().expected, 5u);
  const auto meet_first = [&](std::size_t members) {
    std::vector<PeerId> group;
    for (std::size_t i = 0; i < members; ++i) group.push_back(swarm.host(i).id());
    first.took_part(group);
  };
  meet_first(3);
  EXPECT_EQ(first.snapshot().expected, 3u) << "most were there";
  meet_first(2);
  EXPECT_EQ(first.snapshot().expected, 5u) << "the others have reported just now, and have connections";
  swarm.pass(4s);
  meet_first(2);
  EXPECT_EQ(first.snapshot().expected, 2u);
}

/// All others may have been late for one round.
TEST_F(ProgressLiars, OneMemberIsNotBelievedBecauseTheOthersMissedARound) {
  auto& first = add_trainer();
  for (int i = 0; i < 3; ++i) add_trainer();
  for (int i = 0; i < 5; ++i)
    for (auto& tracker : trackers) train(*tracker, 2, 1, 1);
  meet();
  swarm.run(first.refresh());
  ProgressTracker& liar = *trackers[3];
  liar.update_epoch(7);
  train(liar, 7, 10, 1);
  first.took_part({swarm.host(0).id(), swarm.host(3).id()});
  swarm.pass(2s);
  swarm.run(first.refresh());
  EXPECT_EQ(first.snapshot().epoch, 2u);
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
  swarm.pass(4s);
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

/// It has no state to lose.
TEST_F(ProgressCrowds, LeadAnAuxiliaryPeerAstrayUntilItHasAveragedWithOthers) {
  auto &first = add_trainer(), &second = add_trainer(), &helper = add_trainer(false, true);
  for (auto* tracker : {&first, &second}) train(*tracker, 2, 10, 2);
  swarm.pass(2s);
  swarm.run(helper.refresh());
  EXPECT_EQ(helper.snapshot().epoch, 2u);
  for (int i = 0; i < 4; ++i) report_as(add().host().id().bytes(), 1 << 20);
  swarm.pass(2s);
  swarm.run(helper.refresh());
  EXPECT_EQ(helper.snapshot().epoch, 1u << 20) << "most that it knows of";
  helper.update_epoch(1 << 20);
  const std::vector<PeerId> honest{swarm.host(0).id(), swarm.host(1).id()};
  for (const PeerId& peer : honest) swarm.host(2).reputation().record_success(peer);
  helper.met(honest);
  swarm.run(helper.refresh());
  EXPECT_EQ(helper.snapshot().epoch, 2u);
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

/// Of a large run's record each of many readers looks less often.
TEST_F(ProgressCrowds, ThatAreNotThereMakeNobodyLookLessOften) {
  auto &first = add_trainer(), &second = add_trainer();
  int looks = 0;
  TaskGroup tasks(swarm.runtime(), "looks");
  tasks.spawn(
      [](ProgressTracker& tracker, int& count) -> Task<void> {
        for (;; ++count) co_await tracker.news();
      }(first, looks),
      "count");
  const auto looks_in_20_seconds = [&] {
    looks = 0;
    for (int i = 0; i < 20; ++i)
      for (auto* tracker : {&first, &second}) train(*tracker, 0, kTarget, 1);  // the epoch may end at any moment
    return looks;
  };
  meet();
  looks_in_20_seconds();
  const int before = looks_in_20_seconds();
  for (std::size_t i = 0; i < 60; ++i) {
    const auto made_up = KeyPair::ed25519_from_seed(Bytes(32, static_cast<std::uint8_t>(i + 100))).peer_id();
    report_as(i % 2 == 0 ? made_up.bytes() : as_bytes("no peer id"), 0);
  }
  EXPECT_GE(looks_in_20_seconds(), before - 2);
  tasks.cancel();
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
