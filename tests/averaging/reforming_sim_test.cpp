// A group that has averaged meets again: how long that takes, who gets in, and what absentees cost.
#include <algorithm>
#include <deque>

#include "averaging_fixture.hpp"
#include "cohive/proto/averaging.pb.h"

namespace cohive::averaging {
namespace {

constexpr Duration kLatency = 50ms;
constexpr Duration kTwoRoundTrips = kLatency * 4;

class Reforming : public Averaging {
 protected:
  struct Meeting {
    std::vector<Result<RoundReport>> results;
    Duration wait{};  ///< from the moment the last member came until the last one knew its group
    std::size_t largest() const {
      std::size_t size = 0;
      for (const auto& result : results)
        if (result) size = std::max(size, result->group.size());
      return size;
    }
  };
  struct Start {
    std::size_t peer;
    Duration delay = 0ms;
    RoundOptions options = {};
  };

  void SetUp() override { swarm.fabric().set_default_link({.latency = kLatency}); }

  static Task<Result<RoundReport>> step_later(Runtime& runtime, Averager& averager, Start start) {
    co_await runtime.sleep_for(start.delay);
    co_return co_await averager.step(start.options);
  }
  Meeting average(const std::vector<Start>& starts) {
    std::vector<Task<Result<RoundReport>>> tasks;
    Duration last{};
    for (const auto& start : starts) {
      tasks.push_back(step_later(swarm.runtime(), *peers[start.peer]->averager, start));
      last = std::max(last, start.delay);
    }
    Meeting round{swarm.run(when_all(swarm.runtime(), std::move(tasks)))};
    for (std::size_t i = 0; i < starts.size(); ++i)
      if (round.results[i]) round.wait = std::max(round.wait, starts[i].delay + round.results[i]->matchmaking - last);
    return round;
  }
  /// All at once, or one of them late.
  Meeting average_all(std::optional<std::size_t> late = std::nullopt, Duration by = 300ms) {
    std::vector<Start> starts;
    for (std::size_t i = 0; i < peers.size(); ++i) starts.push_back({i, late == i ? by : 0ms});
    return average(starts);
  }
  std::size_t index_of(const PeerId& id) const {
    return static_cast<std::size_t>(
        std::find_if(peers.begin(), peers.end(), [&](const auto& peer) { return peer->dht->host().id() == id; }) -
        peers.begin());
  }
  std::size_t leader_of(const Meeting& round) const { return index_of(round.results[0]->leader); }
  void remove(std::size_t index) {
    peers[index]->averager.reset();
    peers[index]->dht.reset();
    swarm.remove_host(index);
  }
};

void expect_group_of(const std::vector<Result<RoundReport>>& results, std::size_t size) {
  for (const auto& result : results) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), size);
  }
}

struct Size {
  std::size_t members;
  bool bounded;
};
class ReformingGroups : public Reforming, public ::testing::WithParamInterface<Size> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ReformingGroups,
                         ::testing::Values(Size{2, false}, Size{4, false}, Size{8, false}, Size{2, true}, Size{4, true},
                                           Size{8, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.members) + (info.param.bounded ? "Bounded" : "Unbounded");
                         });

TEST_P(ReformingGroups, AKnownGroupMeetsWithinTwoRoundTripsOfItsLastMember) {
  auto options = quick();
  if (GetParam().bounded) options.target_group_size = GetParam().members;
  for (std::size_t i = 0; i < GetParam().members; ++i) add(options);
  auto first = average_all();
  expect_group_of(first.results, peers.size());
  const std::size_t leader = leader_of(first), other = leader == 0 ? 1 : 0;
  const std::optional<std::size_t> last_ones[] = {std::nullopt, leader, other, leader};
  for (const auto& last : last_ones) {
    const auto round = average_all(last);
    expect_group_of(round.results, peers.size());
    EXPECT_LE(round.wait, kTwoRoundTrips) << (last ? std::to_string(*last) + " came last" : "all at once");
    EXPECT_EQ(leader_of(round), leader);
  }
}

TEST_F(Reforming, TheLeaderMayComeMuchLaterThanTheOthers) {
  auto options = quick();
  options.min_matchmaking_time = 10s;
  for (int i = 0; i < 3; ++i) add(options);
  const auto first = average_all();
  expect_group_of(first.results, 3);
  const auto round = average_all(leader_of(first), 6s);
  expect_group_of(round.results, 3);
  EXPECT_LE(round.wait, kTwoRoundTrips);
}

TEST_F(Reforming, ALeaderWithSomeMembersWaitsForTheRest) {
  for (int i = 0; i < 3; ++i) add(quick());
  const auto first = average_all();
  expect_group_of(first.results, 3);
  // One waits for the leader already, another one comes after it.
  const std::size_t leader = leader_of(first), early = (leader + 1) % 3, late = (leader + 2) % 3;
  for (int i = 0; i < 3; ++i) {
    const auto round = average({{leader, 300ms}, {early, 0ms}, {late, 800ms}});
    expect_group_of(round.results, 3);
    EXPECT_LE(round.wait, kTwoRoundTrips);
  }
}

TEST_F(Reforming, ClientsAndAuxiliariesMeetAgainAsFast) {
  add(quick());
  add(quick());
  auto client = quick();
  client.mode = PeerMode::client;
  add(client);
  auto auxiliary = quick();
  auxiliary.mode = PeerMode::auxiliary;
  add(auxiliary);
  expect_group_of(average_all().results, 4);
  for (std::size_t last = 0; last < 4; ++last) {
    const auto round = average_all(last);
    expect_group_of(round.results, 4);
    EXPECT_LE(round.wait, kTwoRoundTrips) << last << " came last";
  }
}

class Newcomers : public Reforming, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Pauses, Newcomers, ::testing::Values(0, 400, 1000, 3000, 10'000));

TEST_P(Newcomers, GetInWithinAFewRounds) {
  for (int i = 0; i < 3; ++i) add(quick());
  expect_group_of(average_all().results, 3);
  expect_group_of(average_all().results, 3);
  add(quick());
  // It looks by itself, in step with nobody, while the others go on.
  std::optional<Result<RoundReport>> joined;
  TaskGroup group(swarm.runtime());
  auto run = [](Averager& averager, std::optional<Result<RoundReport>>& out) -> Task<void> {
    out = co_await averager.step();
  };
  group.spawn(run(*peers[3]->averager, joined));
  int rounds = 0;
  for (; !joined && rounds < 4; ++rounds) {
    for (const auto& result : average({{0}, {1}, {2}}).results) ASSERT_TRUE(result) << result.error();
    swarm.pass(std::chrono::milliseconds(GetParam()));
  }
  swarm.pass(1s);
  ASSERT_TRUE(joined && *joined) << "not within " << rounds << " rounds";
  EXPECT_EQ((*joined)->group.size(), 4u);
  const auto next = average_all();
  expect_group_of(next.results, 4);
  EXPECT_LE(next.wait, kTwoRoundTrips) << "it belongs to them now";
}

struct Guided {
  PeerMode mode;
  bool by_leader;
};
class GuidedNewcomers : public Reforming, public ::testing::WithParamInterface<Guided> {
 protected:
  /// Three peers whose group meets again; returns their leader.
  std::size_t meet(Duration min_matchmaking_time = 2s) {
    auto options = quick();
    options.min_matchmaking_time = min_matchmaking_time;
    for (int i = 0; i < 3; ++i) add(options);
    (void)average_all();
    return leader_of(average_all());
  }
  std::size_t guide(std::size_t leader) const { return GetParam().by_leader ? leader : (leader + 1) % 3; }
  void add_newcomer(Duration min_matchmaking_time = 2s) {
    auto options = quick();
    options.min_matchmaking_time = min_matchmaking_time;
    options.mode = GetParam().mode;
    add(options);
  }
  /// Connects the newcomer with these; returns how it begins a round.
  RoundOptions guided_by(const std::vector<std::size_t>& others) {
    RoundOptions guided{.timeout = 30s};
    for (const std::size_t other : others) {
      guided.others.push_back(id(other));
      EXPECT_TRUE(swarm.run(newcomer().dht->host().connect(id(other), swarm.runtime().after(5s))));
    }
    swarm.pass(1s);
    return guided;
  }
  Peer& newcomer() { return *peers[newest]; }
  /// The newcomer asks for a group and does not wait for it.
  void ask_in_vain(const RoundOptions& guided) {
    auto gives_up = newcomer().averager->begin(guided);
    swarm.pass(300ms);
    gives_up.cancel();
    swarm.pass(200ms);
  }
  std::size_t newest = 3;
};
INSTANTIATE_TEST_SUITE_P(Peers, GuidedNewcomers,
                         ::testing::Values(Guided{PeerMode::node, true}, Guided{PeerMode::node, false},
                                           Guided{PeerMode::client, true}, Guided{PeerMode::client, false}),
                         [](const auto& info) {
                           return std::string(info.param.mode == PeerMode::client ? "Client" : "Node") +
                                  (info.param.by_leader ? "OfTheLeader" : "OfAMember");
                         });

/// Also where nobody looks when they ask, and the group meets for a moment only.
TEST_P(GuidedNewcomers, AreInTheNextGroup) {
  const std::size_t leader = meet();
  add_newcomer();
  const RoundOptions guided = guided_by({guide(leader)});
  if (!GetParam().by_leader) peers[3]->dht->host().disconnect(id(leader));
  const auto round = average({{3, 0ms, guided}, {0, 450ms}, {1, 450ms}, {2, 450ms}});
  expect_group_of(round.results, 4);
  EXPECT_LE(round.wait, kTwoRoundTrips);
  const auto next = average_all();
  expect_group_of(next.results, 4);
  EXPECT_LE(next.wait, kTwoRoundTrips) << "it belongs to them now";
}

/// Keeps all requests to join, and never leads.
class Keeper {
 public:
  explicit Keeper(Dht& dht) : dht_(dht), server_(dht.host()) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return keep(*this, stream); });
  }
  std::size_t kept = 0;

 private:
  static Task<Result<>> keep(Keeper& self, rpc::ServerStream& stream) {
    proto::MessageFromLeader later;
    later.set_code(proto::NO_CODE);
    (void)co_await stream.send(as_bytes(later.SerializeAsString()), self.dht_.runtime().after(1s));
    ++self.kept;
    co_await self.dht_.runtime().sleep_for(1h);
    co_return ok();
  }
  Dht& dht_;
  rpc::Server server_;
};

TEST_P(GuidedNewcomers, FindTheirGroupBesideOneThatKeepsThemInVain) {
  has_hostile_peers = true;
  const std::size_t leader = meet();
  add_newcomer();
  std::deque<Keeper> keepers;
  for (int i = 0; i < 3; ++i) keepers.emplace_back(*join().dht);
  const RoundOptions guided = guided_by({4, 5, 6, guide(leader)});
  std::optional<Result<RoundReport>> joined;
  TaskGroup group(swarm.runtime());
  group.spawn(keep_result(*newcomer().averager, guided, joined));
  const TimePoint began = swarm.runtime().now();
  while (!joined && swarm.runtime().now() < began + 30s) {
    EXPECT_LE(average({{0}, {1}, {2}}).wait, 1s) << "nobody waits for one that is kept elsewhere";
    swarm.pass(500ms);
  }
  EXPECT_GT(keepers[0].kept, 0u);
  ASSERT_TRUE(joined && *joined);
  EXPECT_EQ((*joined)->group.size(), 4u);
  EXPECT_LE(swarm.runtime().now() - began, 10s);
}

TEST_P(GuidedNewcomers, AreChargedForTheRequestThatIsKept) {
  const std::size_t leader = meet();
  add_newcomer();
  constexpr std::size_t kGathered = 50'000;
  RoundOptions guided = guided_by({guide(leader)});
  guided.gather = msgpack::Value(std::string(kGathered, 'x'));
  const MemoryBudget& memory = peers[leader]->dht->host().memory();
  EXPECT_LT(memory.held(), kGathered);
  auto asks = newcomer().averager->begin(guided);
  swarm.pass(300ms);
  EXPECT_GE(memory.held(), kGathered);
  asks.cancel();
  swarm.pass(300ms);
  EXPECT_LT(memory.held(), kGathered);
}

/// A free key must not slow a run down, round after round.
TEST_P(GuidedNewcomers, AreNotWaitedForAgainAndAgainWhenTheyAskAndDoNotCome) {
  const std::size_t leader = meet();
  add_newcomer();
  const RoundOptions guided = guided_by({guide(leader)});
  std::size_t slow = 0;
  for (int i = 0; i < 10; ++i) {
    ask_in_vain(guided);
    const auto round = average({{0}, {1}, {2}});
    for (const auto& result : round.results) ASSERT_TRUE(result) << result.error();
    slow += round.wait > kTwoRoundTrips;
  }
  EXPECT_GE(slow, 1u) << "a newcomer that asks is waited for";
  EXPECT_LE(slow, 3u);
}

TEST_P(GuidedNewcomers, AreNotWaitedForRoundAfterRoundUnderNewKeys) {
  const std::size_t leader = meet();
  std::vector<RoundOptions> guided;
  for (newest = 3; newest < 13; ++newest) {
    add_newcomer();
    guided.push_back(guided_by({guide(leader)}));
  }
  Duration waited{};
  const TimePoint began = swarm.runtime().now();
  for (newest = 3; newest < 13; ++newest) {
    ask_in_vain(guided[newest - 3]);
    const auto round = average({{0}, {1}, {2}});
    for (const auto& result : round.results) ASSERT_TRUE(result) << result.error();
    if (round.wait > kTwoRoundTrips) waited += round.wait;
  }
  EXPECT_GT(waited, 0s) << "a newcomer that asks is waited for";
  EXPECT_LE(waited, (swarm.runtime().now() - began) / 4);
}

TEST_P(GuidedNewcomers, AreNotWaitedForAgainAndAgainWhenTheyAskAndSayGoodbye) {
  has_hostile_peers = true;
  const auto say_goodbye = [](p2p::Host& host, PeerId to) -> Task<void> {
    co_await host.runtime().sleep_for(400ms);  // newcomers are waited for until 500 ms
    const Deadline deadline = host.runtime().after(1s);
    auto call = co_await rpc::open_call(host, to, "test::DecentralizedAverager.rpc_leave", deadline);
    if (call && co_await (*call)->finish(deadline)) (void)co_await (*call)->receive(deadline);
  };
  const std::size_t leader = meet();
  add_newcomer();
  const RoundOptions guided = guided_by({guide(leader)});
  std::size_t slow = 0;
  for (int i = 0; i < 10; ++i) {
    ask_in_vain(guided);
    TaskGroup group(swarm.runtime());
    group.spawn(say_goodbye(newcomer().dht->host(), id(leader)));
    const auto round = average({{0}, {1}, {2}});
    for (const auto& result : round.results) ASSERT_TRUE(result) << result.error();
    slow += round.wait > kTwoRoundTrips;
    swarm.pass(500ms);
  }
  EXPECT_GE(slow, 1u);
  EXPECT_LE(slow, 3u);
}

TEST_P(GuidedNewcomers, AreNotWaitedForAgainAndAgainWhenTheyJoinAndLeave) {
  const std::size_t leader = meet(8s), last = (leader + 1) % 3;
  add_newcomer(8s);
  const RoundOptions guided = guided_by({guide(leader)});
  const auto leave_soon = [](Runtime& runtime, Round round) -> Task<void> {
    co_await runtime.sleep_for(500ms);
    round.cancel();
  };
  std::size_t slow = 0;
  for (int i = 0; i < 10; ++i) {
    TaskGroup group(swarm.runtime());
    group.spawn(leave_soon(swarm.runtime(), peers[3]->averager->begin(guided)));
    swarm.pass(200ms);
    std::vector<Start> starts;
    for (std::size_t k = 0; k < 3; ++k) starts.push_back({k, k == last ? 350ms : 0ms});
    const auto round = average(starts);
    for (const auto& result : round.results) ASSERT_TRUE(result) << result.error();
    slow += round.wait > kTwoRoundTrips;
    swarm.pass(200ms);
  }
  EXPECT_LE(slow, 3u);
}

TEST_F(Reforming, TwoGroupsThatMetSeparatelyBecomeOne) {
  for (int i = 0; i < 4; ++i) add(quick());
  // Two and two, by times apart.
  expect_group_of(average({{0}, {1}}).results, 2);
  expect_group_of(average({{2}, {3}}).results, 2);
  std::size_t largest = 0;
  for (int round = 0; round < 4 && largest < 4; ++round) largest = average_all().largest();
  EXPECT_EQ(largest, 4u);
}

/// As members of another averager's round do, however they met here before.
TEST_F(Reforming, PeersThatKnowWhomTheyMeetDoSoWithinTwoRoundTrips) {
  for (int i = 0; i < 4; ++i) add(quick());
  (void)average({{0}, {1}});
  (void)average({{2}, {3}});
  RoundOptions options{.expected_members = 4};
  options.meets.push_back({.peer = id(2), .mode = PeerMode::client});
  for (const std::size_t one : {1u, 3u, 0u}) options.meets.push_back({.peer = id(one)});
  const auto round = average({{0, 0ms, options}, {1, 50ms, options}, {2, 100ms, options}, {3, 20ms, options}});
  expect_group_of(round.results, 4);
  EXPECT_LE(round.wait, kTwoRoundTrips);
  EXPECT_EQ(leader_of(round), 1u) << "the first of them that is no client";
  const auto again = average_all();
  expect_group_of(again.results, 4);
  EXPECT_LE(again.wait, kTwoRoundTrips);
}

TEST_F(Reforming, FullGroupsGoOnMixing) {
  auto options = quick();
  options.target_group_size = 2;
  for (int i = 0; i < 4; ++i) add(options);
  std::set<PeerId> partners;
  for (int i = 0; i < 12; ++i) {
    std::vector<Start> starts;
    for (std::size_t k = 0; k < 4; ++k)
      starts.push_back({k, std::chrono::milliseconds(swarm.runtime().random()() % 300)});
    const auto round = average(starts);
    expect_group_of(round.results, 2);
    for (const auto& member : round.results[0]->group) partners.insert(member.peer);
  }
  EXPECT_GT(partners.size(), 2u) << "the first peer always met the same one";
}

TEST_F(Reforming, AnAbsentMemberIsWaitedForNoLongerThanDeclared) {
  for (int i = 0; i < 4; ++i) add(quick());
  const auto first = average_all();
  expect_group_of(first.results, 4);
  const std::size_t lost = leader_of(first) == 3 ? 2 : 3;
  std::vector<Start> rest;
  for (std::size_t i = 0; i < 4; ++i)
    if (i != lost) rest.push_back({i});
  const auto without = average(rest);
  expect_group_of(without.results, 3);
  EXPECT_LE(without.wait, 2s + kTwoRoundTrips) << "min_matchmaking_time";
  const auto again = average(rest);
  expect_group_of(again.results, 3);
  EXPECT_LE(again.wait, kTwoRoundTrips) << "the rest is a known group now";
}

TEST_F(Reforming, WhoeverDiesDuringARoundIsNotWaitedForAtTheNext) {
  for (int i = 0; i < 4; ++i) add(quick());
  const auto first = average_all();
  expect_group_of(first.results, 4);
  const std::size_t dying = leader_of(first) == 3 ? 2 : 3;
  std::vector<std::optional<Round>> rounds;
  for (auto& peer : peers) rounds.emplace_back(peer->averager->begin());
  for (std::size_t i = 0; i < 4; ++i)
    if (i != dying) rounds[i]->trigger();
  swarm.pass(1s);
  rounds[dying].reset();
  remove(dying);
  swarm.pass(15s);
  std::vector<Start> survivors;
  for (std::size_t i = 0; i < 4; ++i) {
    if (i == dying) continue;
    ASSERT_TRUE(swarm.run(rounds[i]->result())) << i;
    survivors.push_back({i});
  }
  const auto next = average(survivors);
  expect_group_of(next.results, 3);
  EXPECT_LE(next.wait, kTwoRoundTrips);
}

class LostLeaders : public Reforming, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, LostLeaders, ::testing::Values("gone", "silent", "absent"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LostLeaders, CostTheOthersNoMoreThanTheirDeclaredTime) {
  for (int i = 0; i < 4; ++i) add(quick());
  const auto first = average_all();
  expect_group_of(first.results, 4);
  const std::size_t leader = leader_of(first);
  const std::string how = GetParam();
  ASSERT_NE(leader, 0u) << "another seed is needed: all DHT nodes began with this one";
  if (how == "gone") remove(leader);
  if (how == "silent") swarm.fabric().crash(sim::Swarm::ip(leader + 1));
  std::vector<Start> rest;
  for (std::size_t i = 0; i < 4; ++i)
    if (i != leader) rest.push_back({i});
  const auto without = average(rest);
  expect_group_of(without.results, 3);
  // The DHT needs its time-out to notice that a node is silent, be there a known group or not.
  const Duration dht = how == "silent" ? 3s : 0s;
  EXPECT_LE(without.wait, 2s + dht + kTwoRoundTrips) << "min_matchmaking_time";
  const auto again = average(rest);
  expect_group_of(again.results, 3);
  EXPECT_LE(again.wait, kTwoRoundTrips);
}

/// As another averager of the same program has noticed.
TEST_F(Reforming, APeerThatDoesNotAnswerIsAskedToLeadWhenNobodyElseIsThere) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto sleeper = swarm.runtime().submit([&] { return peers[2]->averager->step({.timeout = 60s}); });
  swarm.pass(300ms);  // it has declared itself
  swarm.fabric().partition({sim::Swarm::ip(3)}, {sim::Swarm::ip(1), sim::Swarm::ip(2)});
  for (std::size_t i = 0; i < 2; ++i) peers[i]->dht->doubt(id(2));
  const auto without = average({{0}, {1}});
  expect_group_of(without.results, 2);
  EXPECT_LE(without.wait, 2s + kTwoRoundTrips) << "min_matchmaking_time";
}

TEST_F(Reforming, APlainValueUnderTheirKeyKeepsNobodyFromMeeting) {
  Peer& liar = join();
  for (int i = 0; i < 3; ++i) add(quick());
  const double later = liar.dht->now() + 6 * 86400;
  for (const std::string key : {"test.0b", "test.last.0b"}) (void)swarm.run(liar.dht->store(key, 1, later));
  expect_group_of(average({{1}, {2}, {3}}).results, 3);
}

TEST_F(Reforming, PeersThatDoubtEachOtherMeet) {
  for (int i = 0; i < 2; ++i) add(quick());
  const auto doubt = [](Runtime& runtime, Dht& dht, PeerId other) -> Task<void> {
    for (;; co_await runtime.sleep_for(1ms)) dht.doubt(other);
  };
  TaskGroup doubting(swarm.runtime(), "doubts");
  for (const std::size_t one : {0u, 1u})
    doubting.spawn(doubt(swarm.runtime(), *peers[one]->dht, id(1 - one)), "doubts");
  const auto meeting = average_all();
  expect_group_of(meeting.results, 2);
  EXPECT_LE(meeting.wait, 4s + kTwoRoundTrips) << "twice min_matchmaking_time";
}

TEST_F(Reforming, MembersThatAreExpectedAreWaitedFor) {
  for (int i = 0; i < 3; ++i) add(quick());
  expect_group_of(average({{0}, {1}}).results, 2);
  // The callers know that there are three: the newcomer gets in at once, even if it comes last.
  std::vector<Start> starts;
  for (std::size_t i = 0; i < 3; ++i) {
    RoundOptions options;
    options.expected_members = 3;
    starts.push_back({i, i == 2 ? 700ms : 0ms, options});
  }
  const auto round = average(starts);
  expect_group_of(round.results, 3);
}

/// Whoever averages no more afterwards may lead the known group, or be led there.
class LastRounds : public Reforming, public ::testing::WithParamInterface<std::vector<std::size_t>> {
 protected:
  using Results = std::vector<Result<RoundReport>>;
  Task<Results> average_as(std::vector<Start> starts) {
    std::vector<Task<Result<RoundReport>>> tasks;
    for (const Start& start : starts) tasks.push_back(step_later(swarm.runtime(), *peers[start.peer]->averager, start));
    co_return co_await when_all(swarm.runtime(), std::move(tasks));
  }
  Task<Results> once_more(std::vector<Start> starts) {
    expect_group_of(co_await average_as(starts), starts.size());
    for (Start& start : starts) start.options = {.expected_members = 4, .last = true};
    co_return co_await average_as(starts);
  }
};
INSTANTIATE_TEST_SUITE_P(Members, LastRounds,
                         ::testing::Values(std::vector<std::size_t>{0, 1}, std::vector<std::size_t>{0, 2},
                                           std::vector<std::size_t>{0, 3}, std::vector<std::size_t>{1, 2},
                                           std::vector<std::size_t>{1, 3}, std::vector<std::size_t>{2, 3}));

TEST_P(LastRounds, AreApartFromThoseThatGoOnWhichDoNotWait) {
  for (int i = 0; i < 4; ++i) add(quick());
  expect_group_of(average_all().results, 4);
  std::vector<Start> starts;
  for (std::size_t i = 0; i < 4; ++i) starts.push_back({i, 0ms, {.last = std::ranges::count(GetParam(), i) > 0}});
  const Meeting apart = average(starts);
  expect_group_of(apart.results, 2);
  for (std::size_t i = 0; i < 4; ++i)
    for (const Member& member : apart.results[i]->group)
      EXPECT_EQ(starts[index_of(member.peer)].options.last, starts[i].options.last);
  EXPECT_LE(apart.wait, 2s + kTwoRoundTrips) << "as of a group that has not met";
  std::erase_if(starts, [](const Start& start) { return start.options.last; });
  const Meeting again = average(starts);
  expect_group_of(again.results, 2);
  EXPECT_LE(again.wait, kTwoRoundTrips);
}

TEST_P(LastRounds, WaitForThoseThatHaveAnotherRoundBefore) {
  for (int i = 0; i < 4; ++i) add(quick());
  expect_group_of(average_all().results, 4);
  const double latest = swarm.runtime().wall_time() + 5;  // the others may take the usual 2 s to find each other
  std::vector<Start> usual, last;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool first = std::ranges::count(GetParam(), i) > 0;
    if (!first) usual.push_back({i});
    if (first) last.push_back({i, 0ms, {.scheduled_time = latest, .expected_members = 4, .last = true}});
  }
  std::vector<Task<Results>> both;
  both.push_back(average_as(last));
  both.push_back(once_more(usual));
  for (const Results& results : swarm.run(when_all(swarm.runtime(), std::move(both)))) expect_group_of(results, 4);
}

}  // namespace
}  // namespace cohive::averaging
