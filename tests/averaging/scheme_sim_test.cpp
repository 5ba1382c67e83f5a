// Schemes: rounds of several all-reduces, on tensors that are not those of the schema.
#include <gmock/gmock.h>

#include <numeric>

#include "averaging/averaging_fixture.hpp"
#include "averaging/rounds/rounds.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/metrics.hpp"

namespace cohive::averaging {
namespace {

/// What two members of a round share of a factor.
constexpr std::size_t kRows = 50, kColumns = 20;

/// Averages a matrix of rank one by its factors, as PowerSGD does: first the products with a common vector, then the
/// products with the average of those; the second tensor goes along with the second all-reduce as it is.
class RankOne {
 public:
  explicit RankOne(Duration pause) : pause_(pause) {}

  Task<Result<>> operator()(RoundContext& round) const { return run(round, pause_); }

 private:
  static Task<Result<>> run(RoundContext& round, Duration pause) {
    TensorParts& tensors = round.tensors();
    auto matrix = co_await read_values(tensors, {0, 0, kRows * kColumns});
    if (!matrix) co_return matrix.error();
    std::vector<float> p(kRows), q(kColumns);
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t k = 0; k < kColumns; ++k) p[i] += (*matrix)[i * kColumns + k];
    HostParts p_parts(round.runtime(), {{{kRows, 1}}}, {TensorSpan(p)});
    if (auto averaged = co_await round.all_reduce(p_parts, "PHASE_P"); !averaged) co_return averaged;
    co_await p_parts.finish();
    const float norm = std::sqrt(std::inner_product(p.begin(), p.end(), p.begin(), 0.0f));
    for (float& value : p) value /= norm;
    co_await round.runtime().sleep_for(pause);  // this member computes longer than the others
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t k = 0; k < kColumns; ++k) q[k] += (*matrix)[i * kColumns + k] * p[i];
    HostParts q_parts(round.runtime(), {{{kColumns, 1}}}, {TensorSpan(q)});
    JoinedParts second({{&q_parts, 0}, {&tensors, 1}});
    if (auto averaged = co_await round.all_reduce(second, "PHASE_Q"); !averaged) co_return averaged;
    co_await q_parts.finish();
    std::vector<float> result(kRows * kColumns);
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t k = 0; k < kColumns; ++k) result[i * kColumns + k] = p[i] * q[k];
    const Stretch whole{0, 0, result.size()};
    co_return co_await apply_average(tensors, whole, std::move(result), round.terms());
  }

  Duration pause_;
};

class Schemes : public Averaging {
 protected:
  Peer& add_matrix(Scheme scheme, AveragerOptions options) {
    options.scheme = std::move(scheme);
    Peer& peer = add(options, kRows * kColumns);
    const auto number = static_cast<float>(peers.size());
    for (std::size_t i = 0; i < kRows; ++i)  // the members' matrices have one factor in common
      for (std::size_t k = 0; k < kColumns; ++k)
        peer.a[i * kColumns + k] = number * static_cast<float>(i + 1) * (k % 2 ? 1.0f : 0.5f);
    return peer;
  }
  void expect_averaged(float mean_number) {
    for (auto& peer : peers) {
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t k = 0; k < kColumns; ++k)
          ASSERT_NEAR(peer->a[i * kColumns + k], mean_number * static_cast<float>(i + 1) * (k % 2 ? 1.0f : 0.5f), 1e-2);
      for (float value : peer->b) ASSERT_NEAR(value, 10 * (mean_number - 1), 1e-4);
    }
  }
};

TEST_F(Schemes, RunSeveralAllReducesWithTheSharesOfTheWholeSchema) {
  for (int i = 0; i < 3; ++i) add_matrix(RankOne(0ms), quick());
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_EQ(result->parts_total, 3u) << "one of P, one of Q, and the second tensor";
    EXPECT_LT(result->bytes_sent, 2'000u) << "of 4,000 of one matrix";
  }
  expect_averaged(2);
}

TEST_F(Schemes, StreamsOfALaterPhaseWaitForAMemberThatComputesLonger) {
  auto options = quick();
  options.sender_timeout = 10s;
  options.reducer_timeout = 20s;
  for (int i = 0; i < 4; ++i) add_matrix(RankOne(i == 1 ? 3s : 0ms), options);
  options.mode = PeerMode::client;
  add_matrix(RankOne(0ms), options);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_TRUE(result->lost_senders.empty());
    EXPECT_GE(result->allreduce, 3s);
  }
  expect_averaged(3);
}

TEST_F(Schemes, WeightsCountInEveryPhase) {
  for (int i = 0; i < 2; ++i) add_matrix(RankOne(0ms), quick());
  auto steps = same();
  steps[1].weight = 3;
  for (auto& result : step_all(steps)) ASSERT_TRUE(result) << result.error();
  expect_averaged(1.75f);
}

TEST_F(Schemes, AMemberThatIsLostBetweenThePhasesCostsTheRestLittle) {
  for (int i = 0; i < 3; ++i) add_matrix(RankOne(i == 2 ? 60s : 500ms), quick());
  std::vector<std::optional<Result<RoundReport>>> results(3);
  TaskGroup group(swarm.runtime());
  for (std::size_t i = 0; i < 3; ++i) group.spawn(keep_result(*peers[i]->averager, {}, results[i]));
  swarm.pass(2500ms);
  swarm.fabric().crash(sim::Swarm::ip(3));
  swarm.pass(12s);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i] && *results[i]) << i;
    for (const auto& lost : (*results[i])->lost_senders) EXPECT_EQ(lost, id(2));
    for (float value : peers[i]->a) ASSERT_TRUE(std::isfinite(value));
  }
  group.cancel();
}

TEST_F(Schemes, AnErrorFailsTheRoundAndOtherMembersHearOfIt) {
  const auto failing = [](RoundContext&) -> Task<Result<>> { co_return Error(cohive::Errc::internal, "no memory"); };
  add_matrix(RankOne(0ms), quick());
  add_matrix(failing, quick());
  RoundOptions once;
  once.allow_retries = false;
  const auto start = swarm.runtime().now();
  const auto results = step_all(same(once));
  EXPECT_EQ(results[1].error(), cohive::Errc::internal);
  ASSERT_TRUE(results[0]) << results[0].error();
  EXPECT_EQ(results[0]->failed_reducers, std::vector{id(1)});
  EXPECT_LT(swarm.runtime().now() - start, 5s);
}

TEST_F(Schemes, APhaseIsHadOnce) {
  const auto twice = [](RoundContext& round) -> Task<Result<>> {
    if (auto first = co_await round.all_reduce(round.tensors(), "again"); !first) co_return first;
    auto second = co_await round.all_reduce(round.tensors(), "again");
    EXPECT_EQ(second.error(), Errc::bad_partition);
    co_return ok();
  };
  for (int i = 0; i < 2; ++i) add_matrix(twice, quick());
  for (auto& result : step_all(same())) EXPECT_TRUE(result) << result.error();
}

// ---- Streams that come early

/// A first part, as a member sends it: what is answered, and after what time.
struct Answered {
  int code = 0;
  Duration after{};
};
Task<Answered> send_first_part(p2p::Host& host, PeerId to, std::string id, std::size_t values = 0) {
  Runtime& runtime = host.runtime();
  const Deadline end = runtime.after(300s);
  const TimePoint begin = runtime.now();
  auto call = co_await rpc::open_call(host, to, "test::DecentralizedAverager.rpc_aggregate_part", end);
  const std::string bytes(values * 4, '\0');
  const Envelope part = envelope_part(4, id, bytes.size(), values, 0, 1);
  (co_await (*call)->send(as_bytes(part.head + bytes + part.tail), end)).value();
  auto reply = co_await (*call)->receive(end);
  Answered answered{-1, runtime.now() - begin};
  if (reply && *reply) answered.code = parse_part(**reply).value().code;
  co_return answered;
}

class EarlyStreams : public Averaging {
 protected:
  std::optional<Answered>& send(std::size_t from, std::size_t to, std::string id, std::size_t values = 0) {
    auto& answer = *answers.emplace_back(std::make_unique<std::optional<Answered>>());
    senders.spawn([](p2p::Host& host, PeerId peer, std::string group, std::size_t count,
                     std::optional<Answered>& out) -> Task<void> {
      out = co_await send_first_part(host, peer, group, count);
    }(peers[from]->dht->host(), id_of(to), std::move(id), values, answer));
    return answer;
  }
  PeerId id_of(std::size_t peer) const { return Averaging::id(peer); }

  std::vector<std::unique_ptr<std::optional<Answered>>> answers;
  TaskGroup senders{swarm.runtime()};
};

TEST_F(EarlyStreams, OfStrangersToAGroupAreRefusedAtOnceAndThoseOfMembersWait) {
  for (int i = 0; i < 3; ++i) add(quick());
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < 2; ++i) rounds.push_back(peers[i]->averager->begin());
  swarm.pass(4s);
  ASSERT_EQ(rounds[0].stage(), Round::Stage::awaiting_trigger);
  // Its members know the id of a group; here the test learns it from the finished round.
  bool waiting = false;
  senders.spawn([](Averager& averager, bool& flag) -> Task<void> {
    co_await averager.member_waiting();
    flag = true;
  }(*peers[0]->averager, waiting));
  auto& stranger = send(2, 0, "another group");
  swarm.pass(1s);
  ASSERT_TRUE(stranger);
  EXPECT_EQ(stranger->code, 10) << "BAD_GROUP_ID: no search is going on";
  EXPECT_FALSE(waiting) << "that was no member";
  rounds[1].trigger();
  swarm.pass(1s);
  EXPECT_TRUE(waiting);
  rounds[0].trigger();
  const auto result = swarm.run(rounds[0].result());
  ASSERT_TRUE(result) << result.error();
  ASSERT_TRUE(swarm.run(rounds[1].result()));

  auto& late = send(1, 0, result->group_id);
  auto& late_phase = send(1, 0, result->group_id + "PHASE_Q");
  swarm.pass(1s);
  EXPECT_EQ(late->code, 16) << "CANCELLED: the round is over";
  EXPECT_EQ(late_phase->code, 16);
}

TEST_F(EarlyStreams, AreHeldWhileAGroupMayBeOnItsWay) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto round = peers[0]->averager->begin({.timeout = 8s});
  auto& early = send(1, 0, "a group that is not known yet");
  swarm.pass(6s);
  EXPECT_FALSE(early) << "it waits";
  EXPECT_FALSE(swarm.run(round.result()));
  swarm.pass(1s);
  ASSERT_TRUE(early);
  EXPECT_EQ(early->code, 10);
}

TEST_F(EarlyStreams, AreFewOfOnePeer) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto round = peers[0]->averager->begin({.timeout = 60s});
  for (int i = 0; i < 12; ++i) send(1, 0, "group " + std::to_string(i));
  swarm.pass(5s);
  const auto refused = std::ranges::count_if(answers, [](const auto& one) { return one->has_value(); });
  EXPECT_EQ(refused, 12 - static_cast<int>(Rounds::Limits().streams_of_a_peer));
}

TEST_F(EarlyStreams, OfTheGreediestPeerMakeRoomForTheOthers) {
  for (int i = 0; i < 3; ++i) add(quick());
  Rounds rounds(peers[0]->dht->host(), {.bytes = 110'000});
  rpc::Server server(peers[0]->dht->host());
  peers[0]->averager.reset();
  server.add_streaming("test::DecentralizedAverager.rpc_aggregate_part",
                       [&rounds](rpc::ServerStream& stream) { return rounds.serve(stream); });
  const Rounds::Search search(rounds);
  auto& modest = send(1, 0, "group", 5'000);
  auto& greedy = send(2, 0, "group", 20'000);
  swarm.pass(1s);
  EXPECT_FALSE(greedy || modest) << "there is room for both";
  auto& more = send(2, 0, "group", 4'000);
  swarm.pass(1s);
  EXPECT_TRUE(greedy && more) << "all that it sent";
  EXPECT_FALSE(modest);
  auto& after = send(2, 0, "group", 4'000);
  swarm.pass(1s);
  EXPECT_FALSE(after) << "it may try again";
  senders.cancel();
  swarm.pass(1s);
}

/// An attacker has any number of identities, but few networks.
TEST_F(EarlyStreams, OfStrangersThatFillAllPlacesMakeRoomForThoseOfOthers) {
  for (int i = 0; i < 4; ++i) add(quick());
  Rounds rounds(peers[0]->dht->host(), {.streams_of_a_peer = 8, .streams = 6});
  rpc::Server server(peers[0]->dht->host());
  peers[0]->averager.reset();
  server.add_streaming("test::DecentralizedAverager.rpc_aggregate_part",
                       [&rounds](rpc::ServerStream& stream) { return rounds.serve(stream); });
  const Rounds::Search search(rounds);
  const std::string id(20, 'g');
  const auto refused = [this] {
    return std::ranges::count_if(answers, [](const auto& one) { return one->has_value(); });
  };
  const auto flood = [&] {
    for (int i = 0; i < 6; ++i) send(2 + static_cast<std::size_t>(i) % 2, 0, "no group " + std::to_string(i));
    swarm.pass(1s);
  };
  flood();
  EXPECT_EQ(refused(), 0);
  auto& member = send(1, 0, id);
  swarm.pass(1s);
  EXPECT_FALSE(member);
  EXPECT_EQ(refused(), 1) << "of the strangers";
  flood();
  EXPECT_FALSE(member);
  EXPECT_EQ(refused(), 7);
  auto group = std::make_shared<Group>();
  group->id = id;
  group->members = {{.peer = id_of(0)}, {.peer = id_of(1)}};
  bool waiting = false;
  senders.spawn([](Rounds& early, bool& flag) -> Task<void> {
    co_await early.member_waiting(0);
    flag = true;
  }(rounds, waiting));
  swarm.pass(1s);
  EXPECT_FALSE(waiting);
  {
    Rounds::Entry entry(rounds, group);
    flood();
    EXPECT_FALSE(member);
    EXPECT_TRUE(waiting) << "for the trigger of its round";
  }
  swarm.pass(1s);
  EXPECT_EQ(member->code, 16) << "CANCELLED: the round is over";
  senders.cancel();
  swarm.pass(1s);
}

TEST_F(EarlyStreams, CountAgainstTheMemoryBudgetOfTheHost) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto round = peers[0]->averager->begin({.timeout = 8s});
  swarm.pass(1s);
  const MemoryBudget& memory = peers[0]->dht->host().memory();
  const std::size_t before = memory.held();
  send(1, 0, "a group that is not known yet", 20'000);
  swarm.pass(1s);
  EXPECT_GE(memory.held(), before + 20'000 * sizeof(float));
  EXPECT_FALSE(swarm.run(round.result()));
  swarm.pass(10s);
  EXPECT_LE(memory.held(), before);
}

TEST_F(EarlyStreams, AreNotHeldForEver) {
  for (int i = 0; i < 2; ++i) add(quick());
  auto round = peers[0]->averager->begin({.timeout = 600s});
  auto& early = send(1, 0, "a group that never comes");
  swarm.pass(115s);
  EXPECT_FALSE(early);
  swarm.pass(10s);
  ASSERT_TRUE(early);
  EXPECT_EQ(early->code, 10);
}

}  // namespace
}  // namespace cohive::averaging
