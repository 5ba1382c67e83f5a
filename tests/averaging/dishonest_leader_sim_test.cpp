// Leaders and owners of parts that take more than is theirs.
#include <functional>
#include <numeric>

#include "averaging/averaging_fixture.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "dht/numbered_peers.hpp"

namespace cohive::averaging {
namespace {

/// What a peer has said that joins, and the begin of a group whose first member is its leader.
struct Joiner {
  proto::JoinRequest request;
  proto::MessageFromLeader begin;
};

Task<Result<Joiner>> accept_joiner(Dht& dht, rpc::ServerStream& stream, std::string group_id) {
  Runtime& runtime = dht.runtime();
  CO_TRY(auto bytes, co_await stream.receive(runtime.after(5s)));
  Joiner joiner;
  if (!bytes || !joiner.request.ParseFromString(to_string(bytes->view()))) co_return Error(cohive::Errc::malformed);
  proto::MessageFromLeader accepted;
  accepted.set_code(proto::ACCEPTED);
  CO_TRY(co_await stream.send(as_bytes(accepted.SerializeAsString()), runtime.after(5s)));
  joiner.begin.set_code(proto::BEGIN_ALLREDUCE);
  joiner.begin.set_group_id(std::move(group_id));
  joiner.begin.add_ordered_peer_ids(dht.host().id().binary());
  co_return joiner;
}

/// The links of a group's members as a leader says that they are: its own is the fastest.
void forge_links(proto::MessageFromLeader& begin) {
  *begin.mutable_gathered(0) = encode_gathered({.peer = {}, .bandwidth = 1e12});
  *begin.mutable_gathered(1) = encode_gathered({.peer = {}, .bandwidth = 0.0});
}

/// Declares itself before anybody else, accepts everybody, and announces groups of two as `forge` leaves them.
class ForgingLeader {
 public:
  using Forge = std::function<void(proto::MessageFromLeader& begin)>;
  explicit ForgingLeader(Dht& dht, Forge forge = forge_links)
      : dht_(dht), forge_(std::move(forge)), server_(dht.host()) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return lead(*this, stream); });
  }
  Task<void> declare() {
    (void)co_await dht_.store("test.0b", msgpack::Value::bin(dht_.host().id().bytes()), true, dht_.now() + 1.5);
  }
  static Task<void> keep_declaring(ForgingLeader& self) {
    for (;;) {
      co_await self.declare();
      co_await self.dht_.runtime().sleep_for(500ms);
    }
  }
  int forged = 0;
  proto::JoinRequest request;  ///< the last one

 private:
  static Task<Result<>> lead(ForgingLeader& self, rpc::ServerStream& stream) {
    CO_TRY(auto joiner, co_await accept_joiner(self.dht_, stream, std::string(20, 'f')));
    proto::MessageFromLeader& begin = joiner.begin;
    begin.add_gathered(encode_gathered({}));
    begin.add_ordered_peer_ids(stream.peer().binary());
    begin.add_gathered(joiner.request.gather());
    self.request = std::move(joiner.request);
    self.forge_(begin);
    ++self.forged;
    co_return co_await stream.send(as_bytes(begin.SerializeAsString()), self.dht_.runtime().after(5s));
  }
  Dht& dht_;
  Forge forge_;
  rpc::Server server_;
};

TEST_F(Averaging, ALeaderThatChangesWhatAMemberSaidHasNoGroup) {
  has_hostile_peers = true;
  for (int i = 0; i < 3; ++i) add(quick());
  ForgingLeader liar(*join().dht);
  swarm.run(liar.declare());
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 3; ++i) rounds.push_back(peers[i]->averager->step({.timeout = 30s}));
  const auto results = swarm.run(when_all(swarm.runtime(), std::move(rounds)));
  EXPECT_GT(liar.forged, 0);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_NE(results[i]->leader, id(3));
    for (const Member& member : results[i]->group) EXPECT_NE(member.peer, id(3));
  }
}

/// Answers would mean something else to each member.
TEST_F(Averaging, ALeaderThatAnnouncesWhatAMemberDidNotAskForHasNoGroup) {
  has_hostile_peers = true;
  Peer& peer = add(quick());
  ForgingLeader liar(*join().dht, [](proto::MessageFromLeader& begin) { begin.set_one_average(true); });
  swarm.run(liar.declare());
  EXPECT_FALSE(swarm.run(peer.averager->step({.timeout = 5s})));
  EXPECT_EQ(liar.forged, 1);
  EXPECT_FALSE(liar.request.one_average());
}

/// Ids of groups tell the streams of their members apart: by a short one, streams of any group are taken for its own.
TEST_F(Averaging, ALeaderWhoseGroupHasAShortIdHasNoGroup) {
  has_hostile_peers = true;
  Peer& peer = add(quick());
  ForgingLeader liar(*join().dht, [](proto::MessageFromLeader& begin) { begin.set_group_id("s"); });
  swarm.run(liar.declare());
  Round round = peer.averager->begin({.timeout = 10s});
  while (liar.forged == 0) swarm.pass(100ms);
  swarm.pass(1s);
  EXPECT_EQ(round.stage(), Round::Stage::looking_for_group);
}

TEST_F(Averaging, ALeaderThatForgesIsAskedOnceByEachMemberForAWhile) {
  has_hostile_peers = true;
  for (int i = 0; i < 3; ++i) add(quick());
  ForgingLeader liar(*join().dht);
  TaskGroup lying(swarm.runtime(), "liar");
  lying.spawn(ForgingLeader::keep_declaring(liar), "liar");
  swarm.pass(1s);
  for (int round = 0; round < 3; ++round) {
    std::vector<Task<Result<RoundReport>>> rounds;
    for (std::size_t i = 0; i < 3; ++i) rounds.push_back(peers[i]->averager->step({.timeout = 30s}));
    for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds))))
      EXPECT_TRUE(result) << result.error();
  }
  EXPECT_GT(liar.forged, 0);
  EXPECT_LE(liar.forged, 3);
}

/// Declares itself before anybody else, accepts everybody, and never begins.
class StallingLeader {
 public:
  explicit StallingLeader(Dht& dht) : dht_(dht), server_(dht.host()) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return lead(*this, stream); });
  }
  static Task<void> declare(StallingLeader& self) {
    for (;;) {
      (void)co_await self.dht_.store("test.0b", msgpack::Value::bin(self.dht_.host().id().bytes()), true,
                                     self.dht_.now() + 1.5);
      co_await self.dht_.runtime().sleep_for(500ms);
    }
  }
  int accepted = 0;

 private:
  static Task<Result<>> lead(StallingLeader& self, rpc::ServerStream& stream) {
    ++self.accepted;
    CO_TRY(auto joiner, co_await accept_joiner(self.dht_, stream, std::string(20, 's')));
    co_await self.dht_.runtime().sleep_for(1h);
    co_return ok();
  }
  Dht& dht_;
  rpc::Server server_;
};

TEST_F(Averaging, ALeaderThatNeverBeginsCostsEachMemberOneSearchAndNothingIsHeldAgainstIt) {
  for (int i = 0; i < 3; ++i) add(quick());
  StallingLeader stalling(*join().dht);
  TaskGroup leading(swarm.runtime(), "staller");
  leading.spawn(StallingLeader::declare(stalling), "staller");
  swarm.pass(1s);
  for (int round = 0; round < 4; ++round) {
    const TimePoint start = swarm.runtime().now();
    std::vector<Task<Result<RoundReport>>> rounds;
    for (std::size_t i = 0; i < 3; ++i) rounds.push_back(peers[i]->averager->step({.timeout = 60s}));
    for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds))))
      EXPECT_TRUE(result) << result.error();
    if (round > 0) EXPECT_LT(swarm.runtime().now() - start, 3s);
  }
  EXPECT_GT(stalling.accepted, 0);
  EXPECT_LE(stalling.accepted, 3);
}

/// Tells each of two members that it is the first of both.
class TwoFacedLeader {
 public:
  explicit TwoFacedLeader(Dht& dht) : dht_(dht), server_(dht.host()) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return lead(*this, stream); });
  }
  Task<void> declare() {
    (void)co_await dht_.store("test.0b", msgpack::Value::bin(dht_.host().id().bytes()), true, dht_.now() + 1.5);
  }
  int announced = 0;

 private:
  static Task<Result<>> lead(TwoFacedLeader& self, rpc::ServerStream& stream) {
    if (self.members_.size() == 2) co_return ok();
    CO_TRY(auto joiner, co_await accept_joiner(self.dht_, stream, std::string(20, 't')));
    self.members_.emplace_back(stream.peer().binary(), joiner.request.gather());
    while (self.members_.size() < 2) co_await self.dht_.runtime().sleep_for(10ms);
    joiner.begin.set_reforms(joiner.request.reforms());
    joiner.begin.add_gathered(encode_gathered({.peer = {}, .mode = PeerMode::client}));
    auto members = self.members_;
    if (members[0].first != stream.peer().binary()) std::swap(members[0], members[1]);
    for (const auto& [peer, gathered] : members) {
      joiner.begin.add_ordered_peer_ids(peer);
      joiner.begin.add_gathered(gathered);
    }
    ++self.announced;
    co_return co_await stream.send(as_bytes(joiner.begin.SerializeAsString()), self.dht_.runtime().after(5s));
  }
  Dht& dht_;
  rpc::Server server_;
  std::vector<std::pair<std::string, std::string>> members_;
};

/// The parts of both have the same sizes in either order, so that nothing else would tell them apart.
TEST_F(Averaging, MembersThatWereToldOfDifferentOrdersMixNoPartsAndBlameNobody) {
  for (int i = 0; i < 2; ++i) {
    Peer& peer = add(quick(), 1001);
    std::iota(peer.a.begin(), peer.a.end(), 0.0f);
    std::ranges::fill(peer.b, 0.0f);
  }
  const std::vector<float> before = peers[0]->a;
  TwoFacedLeader liar(*join().dht);
  swarm.run(liar.declare());
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 2; ++i) rounds.push_back(peers[i]->averager->step({.timeout = 30s}));
  (void)swarm.run(when_all(swarm.runtime(), std::move(rounds)));
  EXPECT_EQ(liar.announced, 2);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(peers[i]->a, before);
}

/// Declares itself before anybody else, and fills its groups with members that do not exist.
class InventingLeader {
 public:
  InventingLeader(Dht& dht, std::size_t invented) : dht_(dht), server_(dht.host()), invented_(invented) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return lead(*this, stream); });
  }
  static Task<void> declare(InventingLeader& self) {
    for (;;) {
      for (const char* key : {"test.0b", "test.0b0", "test.0b1"})
        (void)co_await self.dht_.store(key, msgpack::Value::bin(self.dht_.host().id().bytes()), true,
                                       self.dht_.now() + 1.5);
      co_await self.dht_.runtime().sleep_for(500ms);
    }
  }
  int groups = 0;

 private:
  static Task<Result<>> lead(InventingLeader& self, rpc::ServerStream& stream) {
    CO_TRY(auto joiner,
           co_await accept_joiner(self.dht_, stream, std::string(19, 'i') + static_cast<char>(++self.groups)));
    proto::MessageFromLeader& begin = joiner.begin;
    begin.add_gathered(encode_gathered({.peer = {}}));
    begin.add_ordered_peer_ids(stream.peer().binary());
    begin.add_gathered(joiner.request.gather());
    for (std::size_t i = 0; i < self.invented_; ++i) {
      begin.add_ordered_peer_ids(dht::peer_of(static_cast<int>(1000 * self.groups + i)).binary());
      begin.add_gathered(encode_gathered({.peer = {}, .mode = i % 2 ? PeerMode::node : PeerMode::client}));
    }
    co_return co_await stream.send(as_bytes(begin.SerializeAsString()), self.dht_.runtime().after(5s));
  }
  Dht& dht_;
  rpc::Server server_;
  const std::size_t invented_;
};

class InventedMembers : public Averaging {
 protected:
  /// A round of the first four peers.
  std::vector<Result<RoundReport>> round(Duration limit) {
    std::vector<Task<Result<RoundReport>>> rounds;
    for (std::size_t i = 0; i < 4; ++i) rounds.push_back(peers[i]->averager->step({.timeout = limit}));
    return swarm.run(when_all(swarm.runtime(), std::move(rounds)));
  }
  void lead(InventingLeader& leader) {
    lying.spawn(InventingLeader::declare(leader), "liar");
    swarm.pass(1s);
  }
  TaskGroup lying{swarm.runtime(), "liars"};
};

TEST_F(InventedMembers, AreNotBelievedToBeManyTimesTheRun) {
  for (int i = 0; i < 4; ++i) add(quick());
  InventingLeader liar(*join().dht, 300);
  lead(liar);
  std::vector<Task<Result<RoundReport>>> rounds;
  for (std::size_t i = 0; i < 4; ++i)
    rounds.push_back(peers[i]->averager->step({.timeout = 60s, .expected_members = 4}));
  for (const auto& result : swarm.run(when_all(swarm.runtime(), std::move(rounds)))) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
    EXPECT_TRUE(result->lost_senders.empty());
  }
  EXPECT_GT(liar.groups, 0) << "else it announced no group";
  lying.cancel();
}

TEST_F(InventedMembers, CostOneRoundAndTheirLeaderIsNotFollowedAgain) {
  for (int i = 0; i < 4; ++i) add(quick());
  InventingLeader liar(*join().dht, 20);
  lead(liar);
  const TimePoint start = swarm.runtime().now();
  for (const auto& result : round(60s)) ASSERT_TRUE(result) << result.error();
  EXPECT_LE(swarm.runtime().now() - start, 10s);
  const int followed = liar.groups;
  EXPECT_GT(followed, 0) << "else nobody was deceived";
  for (const auto& result : round(60s)) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  EXPECT_EQ(liar.groups, followed);
  lying.cancel();
}

TEST_F(InventedMembers, AreNotBroughtByOtherIdentitiesOfTheirLeaderEither) {
  auto options = quick();
  options.initial_group_bits = "0";  // such groups do not re-form: each begins with a look at who is declared
  for (int i = 0; i < 4; ++i) add(options);
  for (const auto& result : round(60s)) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 4u);
  }
  InventingLeader first(*join().dht, 20), second(*join().dht, 20);
  lead(first);
  round(30s);
  EXPECT_EQ(first.groups, 4) << "else somebody was not deceived";
  lead(second);
  round(30s);
  EXPECT_EQ(first.groups, 4);
  EXPECT_EQ(second.groups, 0);
  lying.cancel();
}

TEST_F(Averaging, AMemberThatClaimsAFastLinkDoesNotReduceEverythingWhereLiarsAreBorne) {
  auto options = quick();
  options.aggregation = TrimmedMean{0.3};
  options.bandwidth = 1.0;
  for (int i = 0; i < 5; ++i) add(options);
  options.bandwidth = 1e18;
  add(options);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 6u);
    EXPECT_EQ(result->parts_failed, 0u);
    std::size_t fast = 0;
    while (result->group[fast].peer != id(5)) ++fast;
    if (result->exchanged[fast].bytes_sent > 0)
      EXPECT_LE(result->exchanged[fast].bytes_sent, result->bytes_sent / 2)
          << "a third of the values, of five reducers";
  }
  for (auto& peer : peers)
    for (float value : peer->a) ASSERT_NEAR(value, 2.5, 1e-5);
}

TEST_F(Averaging, AWeightThatOverflowsASumVoidsNoRound) {
  has_hostile_peers = true;
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  steps[2].weight = 1e308;
  const auto results = step_all(steps);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->lost_senders, std::vector{id(2)});
    EXPECT_EQ(results[i]->parts_failed, 0u) << "the liar still reduces";
  }
}

}  // namespace
}  // namespace cohive::averaging
