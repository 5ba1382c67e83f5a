// Groups whose members make averages of their reducers again, honest and not.
#include <cmath>
#include <random>
#include <stdexcept>

#include "averaging/averaging_fixture.hpp"
#include "averaging/verification/part_ledger.hpp"
#include "averaging/wire.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/scheme.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "core/detail/proto_fields.hpp"

namespace cohive::averaging {
namespace {

class Verified : public Averaging {
 protected:
  AveragerOptions checking(double share, Aggregation how = Mean()) {
    AveragerOptions options = quick();
    options.verified_share = share;
    options.aggregation = how;
    options.group_finder = [this](FinderContext context) {
      honest_schema = context.schema_hash;
      return make_matchmaking(std::move(context));
    };
    return options;
  }
  /// Of a peer that passes for one that checks averages, whatever it does.
  AveragerOptions pretending(AveragerOptions options) {
    has_hostile_peers = true;
    options.group_finder = [this](FinderContext context) {
      context.schema_hash = honest_schema;
      return make_matchmaking(std::move(context));
    };
    return options;
  }
  void add_three_and_one_that_pretends(double share) {
    for (int i = 0; i < 3; ++i) add(checking(share));
    AveragerOptions options = quick();
    options.aggregation = Mean();
    add(pretending(options));
  }
  /// How many values of a peer's first tensor are still its own number.
  static std::size_t kept(const Peer& peer, float number) {
    return static_cast<std::size_t>(std::ranges::count(peer.a, number));
  }
  double metric(const std::string& line) {
    const std::string text = swarm.runtime().metrics().text();
    const auto at = text.find(line + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + line.size() + 1));
  }

  std::string honest_schema;
};

/// An average as it travels, and how it is made.
struct Way {
  codec::Codec codec;
  Aggregation how;
  const char* name;
};
class VerifiedAverages : public Verified, public ::testing::WithParamInterface<Way> {};

TEST_P(VerifiedAverages, AreThoseOfARoundWithoutChecks) {
  const auto averaged = [&](double share) {
    auto options = checking(share, GetParam().how);
    options.codec = GetParam().codec;
    std::mt19937_64 random(3);
    const std::size_t first = peers.size();
    for (int i = 0; i < 4; ++i)
      for (float& value : add(options, 3000).a) value = static_cast<float>(random() % 2001) / 1000 - 1;
    std::vector<Task<Result<RoundReport>>> rounds;
    for (std::size_t i = first; i < peers.size(); ++i) rounds.push_back(peers[i]->averager->step());
    for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
      EXPECT_TRUE(result) << result.error();
      EXPECT_EQ(result->group.size(), 4u);
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->liars.empty());
      EXPECT_EQ(result->parts_checked > 0, share > 0) << "every part of another member is made again";
    }
    return peers[first]->a;
  };
  const auto unchecked = averaged(0), checked = averaged(1);
  ASSERT_EQ(unchecked.size(), checked.size());
  // The members own other stretches, and own values go in without a loss.
  const float lost = GetParam().codec == codec::Codec::none ? 1e-5f : 0.1f;
  for (std::size_t i = 0; i < checked.size(); ++i) ASSERT_NEAR(checked[i], unchecked[i], lost);
}

INSTANTIATE_TEST_SUITE_P(OfEveryKind, VerifiedAverages,
                         ::testing::Values(Way{codec::Codec::none, Mean(), "none"},
                                           Way{codec::Codec::float16, Mean(), "float16"},
                                           Way{codec::Codec::meanstd16, Mean(), "meanstd16"},
                                           Way{codec::Codec::uniform8, Mean(), "uniform8"},
                                           Way{codec::Codec::quantile8, Mean(), "quantile8"},
                                           Way{codec::Codec::blockwise8, Mean(), "blockwise8"},
                                           Way{codec::Codec::none, TrimmedMean{0.2}, "trimmed"},
                                           Way{codec::Codec::float16, CenteredClip{5, 3}, "centered"},
                                           Way{codec::Codec::float16, ClippedMean{1.5}, "clipped"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(Verified, CodecsWithErrorFeedbackAreCheckedToo) {
  auto options = checking(1);
  options.agreed_codec = codec::Codec::block4;
  for (int i = 0; i < 3; ++i) add(options, 2000);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_GT(result->parts_checked, 0u);
  }
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 0.1f);
}

TEST_F(Verified, OneAverageForAllIsCheckedToo) {
  auto options = checking(1);
  options.agreed_codec = codec::Codec::block4;
  options.one_average = true;
  for (int i = 0; i < 3; ++i) add(options, 2000);
  options = checking(1e-12, CenteredClip{0.1, 1});  // about the median: 1.5 where the mean is 3.25
  options.agreed_codec = codec::Codec::block4;
  options.one_average = true;
  add(pretending(options), 2000).a.assign(2000, 10);
  const PeerId liar = id(3);
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_TRUE(results[i]->one_average);
    EXPECT_EQ(results[i]->liars, std::vector{liar});
    EXPECT_EQ(results[i]->failed_reducers, std::vector{liar}) << "the averages of the others are right";
    EXPECT_GT(results[i]->parts_checked, 0u);
    for (float value : peers[i]->a) ASSERT_TRUE(value == static_cast<float>(i) || std::abs(value - 3.25f) < 0.05f);
  }
}

TEST_F(Verified, ClientsAndAuxiliariesTakePart) {
  auto options = checking(1);
  for (int i = 0; i < 2; ++i) add(options);
  options.mode = PeerMode::client;
  add(options);
  options.mode = PeerMode::auxiliary;
  add(options);
  auto steps = same();
  steps[3].weight = 0;
  for (auto& result : step_all(steps)) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_TRUE(result->liars.empty());
  }
  for (auto& peer : peers) ASSERT_NEAR(peer->a[0], 1.0f, 1e-5f) << "of 0, 1 and 2";
}

/// A reducer that makes something else of its parts, found by one member alone: the others look when they hear of it.
TEST_F(Verified, AReducerThatLiesIsNamedByAllBeforeItsValuesAreUsed) {
  add(checking(1));
  for (int i = 0; i < 2; ++i) add(checking(1e-12));
  Peer& liar = add(pretending(checking(1e-12, CenteredClip{0.1, 1})));  // about the median: 1.5 where the mean is 3.25
  liar.a.assign(liar.a.size(), 10);
  const PeerId liar_id = id(3);
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_EQ(results[i]->group.size(), 4u);
    EXPECT_EQ(results[i]->liars, std::vector{liar_id});
    EXPECT_EQ(results[i]->failed_reducers, std::vector{liar_id});
    EXPECT_GT(results[i]->parts_failed, 0u);
    const std::size_t own = kept(*peers[i], static_cast<float>(i));
    EXPECT_GT(own, 0u) << "the liar's parts stay as they were";
    for (float value : peers[i]->a) ASSERT_TRUE(value == static_cast<float>(i) || std::abs(value - 3.25f) < 1e-4f);
  }
  EXPECT_GE(metric("cohive_averaging_checked_averages_total{averager=\"test\",outcome=\"wrong\"}"), 3);
}

/// Nobody draws it by chance, and nobody has to.
TEST_F(Verified, AnAverageMuchLargerThanWhatWasSentIsMadeAgainByAll) {
  for (int i = 0; i < 3; ++i) add(checking(1e-12, ClippedMean()));
  add(pretending(checking(1e-12, Mean()))).a.assign(1000, 1e6f);
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->liars, std::vector{id(3)});
    for (float value : peers[i]->a) ASSERT_LT(value, 10.0f);
  }
}

TEST_F(Verified, AReducerThatLiesIsInNoGroupOfTheNextRound) {
  for (int i = 0; i < 3; ++i) add(checking(1));
  add(pretending(checking(1, CenteredClip{0.1, 1}))).a.assign(1000, 10);
  (void)step_all(same());
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_FALSE(std::ranges::count(results[i]->group, id(3), &Member::peer));
  }
}

/// It signs nothing, so that nobody could be shown what it sent; and it is bound to nothing.
TEST_F(Verified, APeerThatOnlyPretendsToCheckIsLeftOutAndItsAveragesAreNotUsed) {
  add_three_and_one_that_pretends(0.5);
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_EQ(results[i]->group.size(), 4u);
    EXPECT_EQ(results[i]->lost_senders, std::vector{id(3)});
    EXPECT_EQ(results[i]->liars, std::vector{id(3)});
    EXPECT_GT(results[i]->parts_failed, 0u) << "an answer that is bound to nothing is no average";
    for (float value : peers[i]->a) ASSERT_TRUE(value == static_cast<float>(i) || std::abs(value - 1.0f) < 1e-5f);
  }
}

/// It says so by binding its answers to nothing.
TEST_F(Verified, AReducerThatSaysThereIsNoAverageHasToShowWhy) {
  add_three_and_one_that_pretends(1);
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_EQ(results[i]->group.size(), 4u);
    EXPECT_EQ(results[i]->failed_reducers, std::vector{id(3)});
    EXPECT_GT(results[i]->parts_failed, 0u);
  }
}

TEST_F(Verified, AnAverageThatIsNotFiniteIsShownToBeNone) {
  for (int i = 0; i < 4; ++i) add(checking(1));
  for (std::size_t i : {2u, 3u}) peers[i]->a.assign(1000, 3e38f);  // two of them are more than a float holds
  const auto results = step_all(same());
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    ASSERT_EQ(results[i]->group.size(), 4u);
    EXPECT_EQ(results[i]->parts_failed, 8u) << "those of the first tensor, of 128 values";
    EXPECT_GT(results[i]->parts_checked, 0u);
    EXPECT_TRUE(results[i]->failed_reducers.empty());
    EXPECT_TRUE(results[i]->liars.empty());
    EXPECT_EQ(kept(*peers[i], i < 2 ? static_cast<float>(i) : 3e38f), 1000u);
    EXPECT_NEAR(peers[i]->b[0], 15.0f, 1e-4f);
  }
}

/// It answers in time, and is then so slow to show what it has had that the round has no time for it.
TEST_F(Verified, AReducerThatShowsTooSlowlyCostsItsOwnPartsAlone) {
  auto options = checking(1);
  options.sender_timeout = 25s;
  options.reducer_timeout = 30s;  // longer than a round: it is the checks that have to end
  for (int i = 0; i < 4; ++i) add(options);
  auto rounds = begin_all({.allow_retries = false});
  swarm.pass(4s);
  for (auto& round : rounds) {
    ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
    round.trigger();
  }
  const auto parts = [this](const std::string& gauge) { return metric(gauge + "{averager=\"test\"}"); };
  for (int i = 0; i < 1000; ++i) {  // until all four have all answers
    swarm.pass(1ms);
    const double all = 4 * parts("cohive_averaging_round_parts");
    if (all > 0 && parts("cohive_averaging_round_parts_done") == all) break;
  }
  swarm.fabric().set_line(sim::Swarm::ip(4), {.upload = 120});
  for (std::size_t i = 0; i < 3; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 4u);
    EXPECT_EQ(result->failed_reducers, std::vector{id(3)});
    EXPECT_EQ(result->stragglers, std::vector{id(3)});
    EXPECT_TRUE(result->lost_senders.empty());
    EXPECT_TRUE(result->liars.empty());
    EXPECT_LT(result->allreduce, options.allreduce_timeout);
    EXPECT_LE(kept(*peers[i], static_cast<float>(i)), 128 * result->parts_failed);
    for (float value : peers[i]->a) ASSERT_TRUE(value == static_cast<float>(i) || std::abs(value - 1.5f) < 1e-5f);
  }
}

TEST_F(Verified, PeersThatDoNotCheckOrAverageInAnotherWayAreInOtherGroups) {
  for (int i = 0; i < 2; ++i) add(checking(0.1));
  for (int i = 0; i < 2; ++i) add(checking(0.7, TrimmedMean{0.2}));
  for (int i = 0; i < 2; ++i) add(quick());
  const auto results = step_all(same({.timeout = 40s}));
  for (std::size_t i = 0; i < peers.size(); ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 2u);
    EXPECT_TRUE(std::ranges::count(results[i]->group, id(i ^ 1), &Member::peer));
  }
}

// ---- What stays in memory

/// How many bytes a member adds to each of its parts, in a field that nobody reads.
class PaddedParts : public Verified, public ::testing::WithParamInterface<std::size_t> {
 protected:
  /// The scheme of the second peer: signs and sends zeros to the first one, which reduces everything.
  static Task<Result<>> send_parts(PaddedParts& test, RoundContext& round) {
    p2p::Host& host = test.peers[1]->dht->host();
    const Deadline end = round.runtime().after(10s);
    CO_TRY(auto call, co_await rpc::open_call(host, test.id(0), "test::DecentralizedAverager.rpc_aggregate_part", end));
    const std::string id = round.group().id + round.group().view;
    const std::vector<std::size_t> lengths{128, 128, 128, 128, 128, 128, 128, 104, 7};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::string bytes(lengths[i] * sizeof(float), '\0');
      Envelope part = envelope_part(i == 0 ? proto::PART_FOR_AVERAGING : proto::NO_CODE, i == 0 ? id : std::string(),
                                    bytes.size(), lengths[i], 0, 1);
      const Commitment commitment{id, test.id(0), i, 1, 0, crypto::sha256(as_bytes(bytes))};
      append_commitment(part, seal_commitment(host.identity(), commitment));
      wire_format::put_bytes(part.tail, 2000, std::string(GetParam(), 'x'));
      const ByteView pieces[] = {as_bytes(part.head), as_bytes(bytes), as_bytes(part.tail)};
      CO_TRY(co_await call->send_while_moving(pieces, 10s));
    }
    CO_TRY(co_await call->finish(end));
    for (;;) {
      CO_TRY(const auto answer, co_await call->receive(end));
      if (!answer) co_return ok();
    }
  }
};

TEST_P(PaddedParts, AreLeftOutOfTheRoundWhereTheyAreMuchLargerThanTheirValues) {
  const bool much = GetParam() > 1000;
  has_hostile_peers = much;
  add(checking(0.5));
  auto options = checking(0.5);
  options.mode = PeerMode::client;
  options.scheme = [this](RoundContext& round) { return send_parts(*this, round); };
  add(options);
  const auto results = step_all(same({.allow_retries = false}));
  ASSERT_TRUE(results[0]) << results[0].error();
  ASSERT_EQ(results[0]->group.size(), 2u);
  EXPECT_EQ(results[0]->lost_senders, much ? std::vector{id(1)} : std::vector<PeerId>());
}
INSTANTIATE_TEST_SUITE_P(OfManySizes, PaddedParts, ::testing::Values(0, 500, 1 << 20));

TEST_F(Verified, AMemberThatIsSlowToReadWhatItIsShownKeepsThatPartAloneAndNotForLong) {
  constexpr std::size_t kValues = 2 << 20;
  for (int i = 0; i < 2; ++i) join();
  auto group = std::make_shared<Group>();
  group->members = {{.peer = id(0)}, {.peer = id(1)}};
  auto log = std::make_shared<AuditLog>(swarm.runtime(), group, std::vector<std::size_t>(2, kValues), 1);
  std::vector<Slice> records;
  for (std::size_t part = 0; part < 2; ++part) {
    const Slice& record = records.emplace_back(Slice::copy_of(Bytes(kValues * sizeof(float))));
    log->add(part, 0, {1, {codec::Codec::none, codec::DType::float32, record, record.view()}, {}, {}});
    log->close(part, {0});
  }
  rpc::Server server(peers[0]->dht->host());
  server.add_streaming("test.show", [&log](rpc::ServerStream& stream) { return AuditLog::show(log, stream, 0); });
  TaskGroup reader(swarm.runtime(), "a member that reads nothing");
  reader.spawn([](p2p::Host& host, PeerId reducer) -> Task<void> {
    auto call = co_await rpc::open_call(host, reducer, "test.show", host.runtime().after(5s));
    if (!call) throw std::runtime_error(call.error().message());
    const auto asked = co_await (*call)->finish(host.runtime().after(5s));
    EXPECT_TRUE(asked) << asked.error();
    co_await host.runtime().sleep_for(1h);
  }(peers[1]->dht->host(), id(0)));
  swarm.pass(5s);
  const std::weak_ptr<AuditLog> kept = log;
  log->forget();
  log.reset();
  EXPECT_TRUE(kept.expired());
  EXPECT_TRUE(records[1].unique());
  EXPECT_FALSE(records[0].unique()) << "it is being shown";
  swarm.pass(150s);
  EXPECT_TRUE(records[0].unique());
}

/// A member that dies at the end of a round can show nothing any more; that is no lie.
TEST_F(Verified, AReducerThatDiesInTheRoundIsNoLiar) {
  for (int i = 0; i < 4; ++i) add(checking(1), 20000);
  std::vector<Round> rounds = begin_all();
  for (auto& round : rounds) round.trigger();
  for (std::size_t i = 0; i < 4; ++i)
    while (rounds[i].stage() != Round::Stage::running) swarm.pass(1ms);
  swarm.pass(20ms);
  swarm.fabric().kill(sim::Swarm::ip(4));
  for (std::size_t i = 0; i < 3; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_TRUE(result->liars.empty());
    for (float value : peers[i]->a) ASSERT_TRUE(value == static_cast<float>(i) || (value > 0.9f && value < 1.6f));
  }
}

}  // namespace
}  // namespace cohive::averaging
