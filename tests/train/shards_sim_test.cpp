#include "train/shards/shards.hpp"

#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/train/sharded_run.hpp"
#include "dht/dht_swarm.hpp"
#include "scenarios/progress_record.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

constexpr double kSamplesOfEpoch = 100'000;
constexpr double kSpeedOfTrainer = 4;  // samples per second of a trainer

/// Trainers that finish a batch every second.
class Sharded : public dht::DhtSwarm {
 protected:
  struct Trainer {
    std::unique_ptr<ProgressTracker> tracker;
    double samples = 0;
    std::uint64_t epoch = 0;
    std::size_t node = 0;
  };
  ProgressTracker& add_trainer(std::size_t sharded_above = 16) {
    const std::size_t number = nodes.size();
    Dht& node = add();
    auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(number));
    node.add_validator(key);
    TrackerOptions options;
    options.run_id = "run";
    options.target_batch_size = kSamplesOfEpoch;
    options.sharded_above = sharded_above;
    trainers.push_back({std::make_unique<ProgressTracker>(node, key, options), 0, 0, number});
    trainers.back().tracker->start();
    return *trainers.back().tracker;
  }
  void add_trainers(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) add_trainer();
  }
  void train(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      swarm.pass(1s);
      for (Trainer& trainer : trainers)
        if (trainer.tracker) trainer.tracker->report(trainer.epoch, trainer.samples += kSpeedOfTrainer);
    }
  }
  /// The first ones say goodbye.
  void leave(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      swarm.run(trainers[i].tracker->close(swarm.after(5s)));
      trainers[i].tracker.reset();
    }
  }
  /// All have met in a round, and all but one, or none, enter the next epoch.
  void enter_epoch(std::uint64_t epoch, std::optional<std::size_t> but = std::nullopt) {
    std::vector<PeerId> all;
    for (const Trainer& trainer : trainers) all.push_back(swarm.host(trainer.node).id());
    for (Trainer& trainer : trainers) {
      trainer.tracker->met(all);
      if (trainer.node == but) continue;
      trainer.epoch = epoch;
      trainer.samples = 0;
      trainer.tracker->update_epoch(epoch);
    }
  }
  /// A stranger's request to the trainer that is nearest to its key.
  Result<std::string> call(Dht& stranger, const proto::ProgressRequest& request) {
    const ShardName shard{static_cast<int>(request.bits()), request.shard()};
    const auto key = dht::DhtId::of(request.root() ? root_key_of("run") : key_of("run", shard));
    const auto leader = std::ranges::min_element(
        trainers, {}, [&](const Trainer& trainer) { return nodes[trainer.node]->node_id().distance(key); });
    return call(stranger, leader->node, request);
  }
  Result<std::string> call(Dht& stranger, std::size_t node, const proto::ProgressRequest& request) {
    return swarm.run(rpc::call_unary(stranger.host(), swarm.host(node).id(), ShardCalls::method_of("run"),
                                     request.SerializeAsString(), swarm.after(5s)));
  }
  double samples() const {
    double sum = 0;
    for (const Trainer& trainer : trainers) sum += trainer.tracker ? trainer.samples : 0;
    return sum;
  }
  /// What a trainer takes the samples for by now.
  double reckoned(const ProgressTracker& tracker) const {
    const GlobalProgress seen = tracker.snapshot();
    return kSamplesOfEpoch - (seen.eta - nodes[0]->now()) * seen.samples_per_second;
  }
  /// Reports for trainers that do not exist.
  void claim_trainers(std::uint32_t count) {
    Dht& stranger = add();
    for (std::uint32_t number = 0; number < count; ++number) {
      const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(100 + number));
      auto report = sim::progress_record(sim::invented_peer(number).bytes(), 0, 4096, 31.25, stranger.now());
      swarm.run(sim::store_under_key(stranger, key, "run_progress", std::move(report), stranger.now() + 60));
    }
  }
  bool in_shards(const ProgressTracker& tracker) const { return tracker.snapshot().shard_bytes > 0; }
  /// How many entries the run's record has.
  std::size_t entries() {
    const auto found = swarm.run(nodes[0]->get("run_progress", true));
    return found ? static_cast<std::size_t>(std::ranges::count_if(
                       found->entries(),
                       [](const auto& entry) { return entry.second.value.template get_if<msgpack::Map>(); }))
                 : 0;
  }
  void expect_all_reckon(double margin) {
    for (const Trainer& trainer : trainers) {
      if (!trainer.tracker) continue;
      EXPECT_NEAR(reckoned(*trainer.tracker), samples(), samples() * margin) << trainer.node;
      EXPECT_NEAR(static_cast<double>(trainer.tracker->snapshot().peers), static_cast<double>(trainers.size()), 1);
    }
  }
  void TearDown() override { trainers.clear(); }

  std::vector<Trainer> trainers;
};

TEST_F(Sharded, RunsBelowTheLimitReportInTheRecordAlone) {
  add_trainers(16);
  train(60);
  EXPECT_EQ(entries(), 16u);
  for (const auto& trainer : trainers) EXPECT_FALSE(in_shards(*trainer.tracker));
}

TEST_F(Sharded, AllTrainersKnowTheSamplesOfLargeRuns) {
  add_trainers(24);
  train(60);
  for (int look = 0; look < 10; ++look) {
    train(5);
    expect_all_reckon(0.03);
  }
  EXPECT_EQ(entries(), 1u) << "the sum of the shards";
}

TEST_F(Sharded, APeerThatKnowsNoShardsReadsTheSamplesInTheRecord) {
  add_trainers(24);
  ProgressTracker& old_way = add_trainer(0);
  train(90);
  for (int look = 0; look < 10; ++look) {
    train(5);
    const GlobalProgress seen = old_way.snapshot();
    EXPECT_FALSE(in_shards(old_way));
    EXPECT_EQ(seen.peers, 2u) << "itself, and the sum";
    EXPECT_NEAR(reckoned(old_way), samples(), samples() * 0.05);
    EXPECT_NEAR(seen.samples_per_second, 25 * kSpeedOfTrainer, 25 * kSpeedOfTrainer * 0.05);
    EXPECT_NEAR(reckoned(*trainers[3].tracker), samples(), samples() * 0.05) << "with those of that peer";
  }
}

TEST_F(Sharded, WhoGoesToShardsIsNotTakenForGone) {
  add_trainers(12);
  train(30);
  for (int second = 0; second < 60; ++second) {
    if (second < 24) add_trainer();
    train(1);
    for (std::size_t i = 0; i < 12; ++i)
      EXPECT_GE(trainers[i].tracker->snapshot().peers, 8u) << "trainer " << i << " in second " << second;
  }
  for (const Trainer& trainer : trainers) EXPECT_TRUE(in_shards(*trainer.tracker));
}

/// Newcomers that are nearer take the place of leaders meanwhile, and the one shard is divided.
TEST_F(Sharded, ARunThatGrowsIsCountedAsItGrows) {
  while (trainers.size() < 160) {
    for (int i = 0; i < 8; ++i) add_trainer();
    train(1);
  }
  double worst = 1;
  for (int second = 0; second < 40; ++second) {
    train(1);
    double mean = 0;
    for (const Trainer& trainer : trainers) mean += static_cast<double>(trainer.tracker->snapshot().peers) / 160 / 160;
    if (second >= 10) worst = std::min(worst, mean);
  }
  EXPECT_GE(worst, 0.95);
}

TEST_F(Sharded, SumsOfTwoLeadersInTheRecordCountOnce) {
  add_many(2);
  for (const double samples : {30'000.0, 30'500.0}) {
    const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(nodes.size()));
    Dht& leader = add();
    leader.add_validator(key);
    const auto stored = swarm.run(leader.store(
        "run_progress", msgpack::Bin{std::string(kSumOfShards) + key->ownership_marker()},
        entry_value(leader.host().id(), 0, samples, 100, leader.now(), false), leader.now() + 60, swarm.after(5s)));
    ASSERT_TRUE(stored);
  }
  const ProgressTracker& old_way = add_trainer(0);
  train(10);
  EXPECT_NEAR(reckoned(old_way), 30'000 + 10 * 100 + samples(), 1000);
}

TEST_F(Sharded, ANewcomerFindsTheWayFromTheRecord) {
  add_trainers(24);
  train(60);
  ProgressTracker& newcomer = add_trainer();
  train(15);
  EXPECT_TRUE(newcomer.others_began());
  EXPECT_FALSE(newcomer.trainers().empty());
  EXPECT_TRUE(in_shards(newcomer));
  EXPECT_EQ(entries(), 1u);
}

/// The sum of the shards may not be among the entries that a newcomer draws.
TEST_F(Sharded, ANewcomerAsksLeadersWhereTheRecordHasManyEntries) {
  add_trainers(24);
  for (int i = 0; i < 40; ++i) add_trainer(0);
  train(60);
  ASSERT_EQ(entries(), 41u);
  ProgressTracker& newcomer = add_trainer();
  while (!newcomer.looked()) swarm.pass(50ms);
  EXPECT_TRUE(newcomer.others_began());
  EXPECT_NEAR(static_cast<double>(newcomer.snapshot().peers), 64, 3);
  for (int second = 0; second < 10; ++second) {
    train(1);
    EXPECT_EQ(entries(), 41u) << "it reports elsewhere";
  }
  EXPECT_TRUE(in_shards(newcomer));
}

/// Trainers that wait, as for a slow round, make no samples. What others reckon of them is not what they would have
/// made.
TEST_F(Sharded, TrainersThatWaitAreNotTakenToTrainOn) {
  add_trainers(24);
  train(60);
  swarm.pass(60s);
  const double made = 24 * kSpeedOfTrainer;  // in a second
  for (const Trainer& trainer : trainers) EXPECT_NEAR(reckoned(*trainer.tracker), samples(), 25 * made);
  train(6);
  for (const Trainer& trainer : trainers) EXPECT_NEAR(reckoned(*trainer.tracker), samples(), 8 * made);
}

TEST_F(Sharded, WhoDoesNotTrainIsToldOfAllAndOfSome) {
  add_trainers(24);
  train(60);
  Dht& monitor = add({.client_mode = true});
  const auto run = swarm.run(read_sharded_run(monitor, "run", swarm.after(10s)));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->epoch, 0u);
  EXPECT_NEAR(run->trainers, 24, 0.5);
  EXPECT_EQ(run->clients, 0);
  EXPECT_NEAR(run->samples, samples(), samples() * 0.05);
  EXPECT_NEAR(run->samples_per_second, 24 * kSpeedOfTrainer, 24 * kSpeedOfTrainer * 0.05);
  EXPECT_EQ(run->some.size(), 16u) << "as many as a leader draws";
  for (const auto& [trainer, told] : run->some) {
    EXPECT_NEAR(told.samples_per_second, kSpeedOfTrainer, 0.5);
    EXPECT_FALSE(told.client);
  }
  EXPECT_FALSE(swarm.run(read_sharded_run(monitor, "another run", swarm.after(10s))));
}

TEST_F(Sharded, WhoLeavesIsNotCountedAnyMore) {
  add_trainers(24);
  train(60);
  leave(4);
  train(30);
  EXPECT_EQ(trainers[9].tracker->snapshot().peers, 20u);
  EXPECT_NEAR(reckoned(*trainers[9].tracker), samples(), samples() * 0.05);
}

TEST_F(Sharded, ASmallRunGoesBackToTheRecordAndStaysThere) {
  add_trainers(24);
  train(60);
  ASSERT_EQ(entries(), 1u);
  leave(14);
  train(90);
  EXPECT_EQ(entries(), 10u);
  EXPECT_EQ(trainers[20].tracker->snapshot().peers, 10u);
  const auto bytes = trainers[20].tracker->snapshot().shard_bytes;
  train(90);
  EXPECT_EQ(trainers[20].tracker->snapshot().shard_bytes, bytes);
  EXPECT_EQ(entries(), 10u);
}

TEST_F(Sharded, ThirteenTrainersStayInShardsAndDoNotBeginThem) {
  add_trainers(18);
  train(60);
  ASSERT_EQ(entries(), 1u);
  leave(5);
  train(90);
  EXPECT_EQ(entries(), 1u) << "above three quarters of the limit";
  EXPECT_EQ(trainers[17].tracker->snapshot().peers, 13u);
}

TEST_F(Sharded, TrainersThatAreKilledAreForgottenAndLeadersReplaced) {
  add_trainers(30);
  train(60);
  for (std::size_t i = 2; i < 8; ++i) {
    swarm.fabric().kill(ip_of(trainers[i].node));
    trainers[i].tracker.reset();
  }
  train(60);
  for (std::size_t i = 10; i < 30; ++i) {
    EXPECT_EQ(trainers[i].tracker->snapshot().peers, 24u) << i;
    EXPECT_NEAR(reckoned(*trainers[i].tracker), samples(), samples() * 0.05) << i;
  }
}

/// Hosts with many connections close those that are not in use.
TEST_F(Sharded, TrainersWhoseConnectionsWereClosedAreCountedOn) {
  add_trainers(24);
  train(60);
  for (int time = 0; time < 12; ++time) {
    for (const Trainer& one : trainers)
      for (const Trainer& other : trainers) swarm.host(one.node).disconnect(swarm.host(other.node).id());
    train(5);
    if (time >= 4) expect_all_reckon(0.05);
  }
}

TEST_F(Sharded, TheNextEpochIsKnownWithinSeconds) {
  add_trainers(24);
  train(60);
  enter_epoch(1);
  train(12);
  for (const Trainer& trainer : trainers) {
    EXPECT_EQ(trainer.tracker->snapshot().epoch, 1u);
    EXPECT_NEAR(reckoned(*trainer.tracker), samples(), 24 * kSpeedOfTrainer * 2);
  }
}

TEST_F(Sharded, WhoMissedAnEpochLearnsOfIt) {
  add_trainers(24);
  train(60);
  enter_epoch(1, 5);
  train(20);
  EXPECT_EQ(trainers[5].tracker->snapshot().epoch, 1u);
  for (Trainer& trainer : trainers) trainer.epoch = trainer.node == 7 ? std::uint64_t{1} << 40 : 1;
  train(30);
  for (const Trainer& trainer : trainers)
    if (trainer.node != 7) EXPECT_EQ(trainer.tracker->snapshot().epoch, 1u) << "one that claims more moves nobody";
}

/// A trainer that knows few of many may be told of none of these. Its group ends the epoch with it all the same.
TEST_F(Sharded, StrangersThatEndTheEpochFirstClaimNothingThatIsNew) {
  add_trainers(24);
  train(60);
  ProgressTracker& tracker = *trainers[5].tracker;
  tracker.met({swarm.host(trainers[0].node).id()});
  leave(1);
  for (const std::uint64_t epoch : {1, 2}) {
    for (std::size_t i = 10; i < 18; ++i) {
      trainers[i].epoch = epoch;
      trainers[i].samples = 0;
      trainers[i].tracker->update_epoch(epoch);
    }
    train(12);
    EXPECT_FALSE(tracker.snapshot().in_touch);
    EXPECT_EQ(tracker.snapshot().claimed, epoch == 1 ? 0u : epoch);
  }
}

TEST(ShardCall, TakesLessThanAKilobyteOnTheWire) {
  sim::Swarm swarm({.plaintext = false});
  p2p::Host &trainer = swarm.add_host(), &leader = swarm.add_host();
  swarm.run(trainer.connect(leader.visible_addresses().front(), swarm.after(5s))).value();
  const std::string method = ShardCalls::method_of("run");
  proto::ProgressRequest request;
  request.set_report(seal_report(trainer.identity(), "run", {1000, 4096, 31.25, swarm.runtime().wall_time(), false}));
  proto::ProgressReply reply;
  encode_sum({1000, 1e6, 1e4, swarm.runtime().wall_time(), 1000, 10, 4}, *reply.mutable_run());
  rpc::Server server(leader);
  auto answer = [](std::string text) -> Task<Result<std::string>> { co_return text; };
  server.add_unary(method, [answer, &reply](PeerId, std::string) { return answer(reply.SerializeAsString()); });
  const auto call = [&] {
    swarm.run(rpc::call_unary(trainer, leader.id(), method, request.SerializeAsString(), swarm.after(5s))).value();
  };
  call();
  swarm.pass(1s);
  const auto before = swarm.fabric().bytes_carried();
  for (int i = 0; i < 100; ++i) call();
  const auto bytes = (swarm.fabric().bytes_carried() - before) / 100;
  EXPECT_LE(bytes, 1000u) << "request and reply";
  RecordProperty("bytes", static_cast<int>(bytes));
}

// ---- Peers that lie

TEST_F(Sharded, OneLeaderOfThreeThatLiesChangesNothing) {
  add_trainers(24);
  // Nodes that do not train lead as well, by their place alone.
  std::vector<std::unique_ptr<rpc::Server>> liars;
  for (int i = 0; i < 3; ++i) {
    liars.push_back(std::make_unique<rpc::Server>(add().host()));
    auto lie = [](double now) -> Task<Result<std::string>> {
      proto::ProgressReply reply;
      encode_sum({1 << 20, 1e12, 1e9, now, 1e6, 0, 5}, *reply.mutable_run());
      reply.add_reports("no report");
      reply.set_writes(true);
      co_return reply.SerializeAsString();
    };
    liars.back()->add_unary(ShardCalls::method_of("run"),
                            [lie, this](PeerId, std::string) { return lie(nodes[0]->now()); });
  }
  train(90);
  expect_all_reckon(0.05);
}

TEST_F(Sharded, NobodyReportsForAnotherOrInAnothersShard) {
  add_trainers(24);
  train(60);
  Dht& stranger = add();
  const ShardReport report{0, 1, 1, stranger.now()};
  proto::ProgressRequest request;
  request.set_report(seal_report(swarm.host(5).identity(), "run", report));
  EXPECT_FALSE(call(stranger, request)) << "of another";
  request.set_report(seal_report(stranger.host().identity(), "another run", report));
  EXPECT_FALSE(call(stranger, request)) << "of another run";
  request.set_report("no envelope");
  EXPECT_FALSE(call(stranger, request));
  request.set_report(seal_report(stranger.host().identity(), "run", report));
  EXPECT_TRUE(call(stranger, request));
  const ShardName own = shard_of("run", stranger.host().id(), 3);
  request.set_bits(3);
  request.set_shard(own.number ^ 1);
  EXPECT_FALSE(call(stranger, request)) << "another's shard";
  request.set_bits(40);
  EXPECT_FALSE(call(stranger, request)) << "a shard that there cannot be";
}

TEST_F(Sharded, WhoCallsAgainAndAgainIsRefused) {
  add_trainers(24);
  train(60);
  Dht& stranger = add();
  int answered = 0;
  for (int i = 0; i < 200; ++i) {
    proto::ProgressRequest request;
    request.set_root(true);
    answered += call(stranger, request).has_value();
  }
  EXPECT_GE(answered, 40);
  EXPECT_LT(answered, 100);
}

TEST_F(Sharded, LeadersKeepNoMoreThanSoMuch) {
  add_trainers(4);  // each is near to every key
  train(10);
  Dht& stranger = add();
  int taken = 0;
  for (int bits = 1; bits <= kMostBits; ++bits)
    taken += call(stranger, 1, about(shard_of("run", stranger.host().id(), bits))).has_value();
  EXPECT_EQ(taken, 8);
}

/// Nobody honest leads them, so that nobody contradicts.
TEST_F(Sharded, ClaimsOfShardsThatNoTrainerWasToldOfCountForNothing) {
  for (int i = 0; i < 6; ++i) add_trainer(4);
  train(60);
  for (const Trainer& trainer : trainers) ASSERT_TRUE(in_shards(*trainer.tracker));
  Dht& stranger = add();
  for (int i = 0; i < 4; ++i) {
    for (std::uint32_t shard = 0; shard < 2; ++shard)
      for (const Trainer& trainer : trainers) {
        proto::ProgressRequest claim = about({.bits = 1, .number = shard});
        claim.set_root(true);
        encode_sum({.epoch = 3, .samples_per_second = 1e-3, .time = stranger.now(), .trainers = 1e7},
                   *claim.mutable_sum());
        (void)call(stranger, trainer.node, claim);
      }
    train(10);
  }
  expect_all_reckon(0.1);
}

TEST_F(Sharded, WhatLooksLikeTheirSumDrivesNoRunIntoShardsWhoseTrainersReportInTheRecord) {
  add_trainers(4);
  enter_epoch(0);
  train(20);
  const auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(nodes.size()));
  Dht& stranger = add();
  stranger.add_validator(key);
  ASSERT_TRUE(swarm.run(stranger.store(
      "run_progress", msgpack::Bin{std::string(kSumOfShards) + key->ownership_marker()},
      entry_value(stranger.host().id(), 0, 1, 1, stranger.now(), false), stranger.now() + 60, swarm.after(5s))));
  train(20);
  for (const Trainer& trainer : trainers) EXPECT_FALSE(in_shards(*trainer.tracker));
}

TEST_F(Sharded, WhatIsClaimedInTheRecordCountsForNoMoreThanIsInShards) {
  add_trainers(24);
  train(30);
  claim_trainers(90);
  train(20);
  for (const Trainer& trainer : trainers) EXPECT_LE(trainer.tracker->snapshot().peers, 2 * 24u + 1) << trainer.node;
}

TEST_F(Sharded, OfTrainersThatAreNotThereARecordMakesNoLargeRun) {
  add_trainers(4);
  enter_epoch(0);
  train(20);
  claim_trainers(40);
  train(20);
  for (const Trainer& trainer : trainers) EXPECT_FALSE(in_shards(*trainer.tracker));
}

TEST_F(Sharded, ANodeThatIsNotNearLeadsNothing) {
  add_trainers(24);
  train(60);
  Dht& stranger = add();
  proto::ProgressRequest request;
  request.set_root(true);
  int leading = 0;
  for (const Trainer& trainer : trainers) leading += call(stranger, trainer.node, request).has_value();
  EXPECT_GE(leading, 3);
  EXPECT_LE(leading, 8);
}

TEST_F(Sharded, AShardThatNobodyReportsInIsForgotten) {
  add_trainers(4);  // none of them leads
  train(10);
  Dht& stranger = add();
  const auto ask = [&](int bits) { return call(stranger, 1, about(shard_of("run", stranger.host().id(), bits))); };
  for (int bits = 1; bits <= 8; ++bits) EXPECT_TRUE(ask(bits)) << bits;
  EXPECT_FALSE(ask(9)) << "more than one node leads";
  train(90);
  EXPECT_TRUE(ask(9));
}

TEST_F(Sharded, NodesThatLeadNothingArePassedOver) {
  add_many(24);
  add_trainers(24);
  train(120);
  expect_all_reckon(0.05);
}

TEST_F(Sharded, ManyTrainersAreInSeveralShards) {
  for (int i = 0; i < 140; ++i) add_trainer(64);
  train(60);
  for (int look = 0; look < 3; ++look) {
    train(5);
    expect_all_reckon(0.04);
  }
  EXPECT_EQ(entries(), 1u);
}

}  // namespace
}  // namespace cohive::train
