// The beam search by itself, on a swarm that exists only in a table.
#include "dht/traversal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cohive/core/errors.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "dht/batcher.hpp"
#include "dht/blacklist.hpp"
#include "dht/crowding.hpp"
#include "dht/numbered_peers.hpp"

namespace cohive::dht {
namespace {

/// Nodes that each know some others.
struct World final : Traversal::Guide {
  explicit World(int size, int known = 30) : runtime(3) {
    for (int i = 0; i < size; ++i) nodes.push_back({DhtId::random(runtime), peer_of(i)});
    for (const auto& node : nodes) {
      // Near nodes and some anywhere, as routing tables have them.
      auto others = nodes;
      sort(others, node.id);
      for (int i = 1; i <= known / 2 && i < size; ++i)
        neighbours[node.id].push_back(others[static_cast<std::size_t>(i)]);
      for (int i = 0; i < known / 2; ++i) neighbours[node.id].push_back(nodes[runtime.random()() % nodes.size()]);
    }
  }
  static void sort(std::vector<NodeEntry>& list, const DhtId& query) {
    std::sort(list.begin(), list.end(),
              [&](const auto& a, const auto& b) { return a.id.distance(query) < b.id.distance(query); });
  }
  std::vector<NodeEntry> nearest(const DhtId& query, std::size_t count) const {
    auto list = nodes;
    std::erase_if(list, [&](const auto& node) { return dead.contains(node.id); });
    sort(list, query);
    list.resize(count);
    return list;
  }
  Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) override {
    const NodeEntry& node = contact.node;
    ++calls;
    largest_batch = std::max(largest_batch, queries.size());
    for (const auto& query : queries) EXPECT_TRUE(asked.insert({query, node.id}).second) << "asked twice";
    if (dead.contains(node.id)) {
      co_await runtime.sleep_for(3s);
      co_return std::nullopt;
    }
    co_await runtime.sleep_for(10ms);
    std::vector<TraversalStep> steps;
    for (const auto& query : queries) {
      auto list = neighbours.at(node.id);
      sort(list, query);
      list.resize(std::min<std::size_t>(list.size(), 20));
      steps.push_back({std::move(list), stop_at && *stop_at == node.id});
    }
    co_return steps;
  }
  void found(const DhtId& query, std::vector<NodeEntry> list, SearchCost cost) override {
    costs[query] = cost;
    EXPECT_FALSE(results.contains(query));
    results[query] = std::move(list);
  }
  auto block_of() const {
    return [this](const PeerId& peer) {
      const auto at = blocks.find(peer);
      return at == blocks.end() ? std::nullopt : std::optional(at->second);
    };
  }
  bool agree(const DhtId&, const std::vector<DhtId>& quorum) override {
    quorums.push_back(quorum);
    return agreeing;
  }

  SimRuntime runtime;
  std::vector<NodeEntry> nodes;
  std::map<DhtId, std::vector<NodeEntry>> neighbours;
  std::set<DhtId> dead;
  std::map<PeerId, std::uint64_t> blocks;
  std::optional<DhtId> stop_at;
  std::map<DhtId, std::vector<NodeEntry>> results;
  std::map<DhtId, SearchCost> costs;
  std::set<std::pair<DhtId, DhtId>> asked;
  std::vector<std::vector<DhtId>> quorums;
  bool agreeing = false;
  std::size_t calls = 0, largest_batch = 0;
};
std::vector<DhtId> ids_of(const std::vector<NodeEntry>& nodes) {
  std::vector<DhtId> ids;
  for (const auto& node : nodes) ids.push_back(node.id);
  return ids;
}

/// A node id whose first bytes are those of `query`.
DhtId beside(const DhtId& query, std::uint8_t number) {
  std::string bytes = query.binary();
  bytes.back() = static_cast<char>(bytes.back() ^ number);
  return *DhtId::from_bytes(as_bytes(bytes));
}

TEST(Traversal, AMachineWithManyIdsDoesNotSurroundAKey) {
  World world(200);
  const DhtId query = DhtId::random(world.runtime);
  std::vector<NodeEntry> sybils;
  for (std::uint8_t i = 1; i <= 20; ++i) {
    sybils.push_back({beside(query, i), peer_of(1000 + i)});
    world.blocks[sybils.back().peer] = 7;
  }
  for (const auto& sybil : sybils) world.neighbours[sybil.id] = sybils;
  for (auto& [id, known] : world.neighbours)
    if (world.nearest(query, 30).back().id.distance(query) > id.distance(query))
      known.insert(known.end(), sybils.begin(), sybils.begin() + 10);  // as many as a bucket takes of one block
  Traversal traversal(world.runtime, DhtId{},
                      {.beam_size = 10, .result_size = 20, .quorum = 5, .block_of = world.block_of()}, world);
  traversal.add_query(query, {world.nodes[0], world.nodes[1]});
  ASSERT_TRUE(world.runtime.run(traversal.run()));
  const auto& found = world.results.at(query);
  ASSERT_GE(found.size(), 5u);
  std::size_t honest = 0;
  for (std::size_t i = 0; i < 5; ++i) honest += !world.blocks.contains(found[i].peer);
  EXPECT_EQ(honest, 3u);
  EXPECT_EQ(found[2], world.nearest(query, 1)[0]);
}

/// Forty ids beside a key, of many networks, whose nodes name no other nodes and are known to all within 60 of the key.
std::set<DhtId> crowd(World& world, const DhtId& query) {
  std::vector<NodeEntry> sybils;
  for (std::uint8_t i = 2; i < 42; ++i) sybils.push_back({beside(query, i), peer_of(1000 + i)});
  const DhtId limit = world.nearest(query, 60).back().id.distance(query);
  for (auto& [id, known] : world.neighbours)
    if (id.distance(query) <= limit) known.insert(known.end(), sybils.begin(), sybils.end());
  std::set<DhtId> ids;
  for (const auto& sybil : sybils) {
    world.neighbours[sybil.id] = sybils;
    ids.insert(sybil.id);
  }
  return ids;
}

TEST(Traversal, ACrowdOfManyNetworksCapturesNoSearchThatTakesDisjointPaths) {
  for (const bool on_paths : {false, true}) {
    World world(400);
    const DhtId query = DhtId::random(world.runtime);
    const auto honest = world.nearest(query, 10);
    const auto sybils = crowd(world, query);
    const double size = on_paths ? static_cast<double>(world.nodes.size()) : 0;
    Traversal traversal(world.runtime, DhtId{}, {.beam_size = 10, .quorum = 5, .swarm_size = size}, world);
    world.agreeing = true;
    traversal.add_query(query, {world.nodes.begin(), world.nodes.begin() + 30});
    ASSERT_TRUE(world.runtime.run(traversal.run()));
    const auto& found = world.results.at(query);
    EXPECT_EQ(world.costs[query].crowded, on_paths);
    const auto asked =
        std::ranges::count_if(honest, [&](const auto& one) { return world.asked.contains({query, one.id}); });
    const auto named = std::ranges::count_if(found, [&](const auto& one) { return !sybils.contains(one.id); });
    EXPECT_EQ(found.size(), 10u);
    if (on_paths) {
      EXPECT_EQ(asked, 10) << "whoever holds the record that honest nodes stored";
      EXPECT_GE(named, 3) << "who is to hold what is stored";
      EXPECT_LE(world.calls, 120u);
    } else {
      EXPECT_LE(asked, 1) << "else the crowd is not one that captures searches";
      EXPECT_EQ(named, 0);
    }
  }
}

TEST(Traversal, WhereIdsAreDrawnAtRandomHardlyAKeyLooksCrowded) {
  World world(400);
  std::size_t crowded = 0, calls = 0;
  for (int i = 0; i < 200; ++i) {
    const DhtId query = DhtId::random(world.runtime);
    const NodeEntry& self = world.nodes[static_cast<std::size_t>(i)];
    const double size = estimate_swarm_size(self.id, world.nearest(self.id, kNodesToJudgeBy));
    Traversal traversal(world.runtime, self.id, {.beam_size = 10, .swarm_size = size}, world);
    traversal.add_query(query, {world.nodes.begin(), world.nodes.begin() + 30});
    ASSERT_TRUE(world.runtime.run(traversal.run()));
    crowded += world.costs[query].crowded;
    calls += world.costs[query].calls;
  }
  EXPECT_LE(crowded, 2u);
  EXPECT_LE(calls, 200u * 20);
}

TEST(Traversal, ASwarmOfOneBlockIsFoundAsAnyOther) {
  World world(100);
  for (const auto& node : world.nodes) world.blocks[node.peer] = 7;
  const DhtId query = DhtId::random(world.runtime);
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 10, .block_of = world.block_of()}, world);
  traversal.add_query(query, {world.nodes[0]});
  ASSERT_TRUE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.results.at(query).size(), 10u);
  EXPECT_EQ(world.results.at(query)[0], world.nearest(query, 1)[0]);
  EXPECT_LE(world.costs[query].calls, 45u);
}

TEST(Traversal, ANodeThatInventsNeighboursIsNotFollowed) {
  World world(100);
  const DhtId query = DhtId::random(world.runtime);
  NodeEntry liar{beside(query, 1), peer_of(1000)};
  for (std::uint8_t i = 2; i < 200; ++i) {
    const NodeEntry invented{beside(query, i), peer_of(1000 + i)};
    world.dead.insert(invented.id);
    world.neighbours[liar.id].push_back(invented);
  }
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 20}, world);
  traversal.add_query(query, {liar, world.nodes[0], world.nodes[1]});
  ASSERT_TRUE(world.runtime.run(traversal.run()));
  std::size_t dialled = 0;
  for (const auto& [key, node] : world.asked) dialled += world.dead.contains(node);
  EXPECT_LE(dialled, 12u) << "eight, and what was under way";
  EXPECT_EQ(world.results.at(query)[1], world.nearest(query, 1)[0]) << "the liar itself is nearer";
}

TEST(Traversal, FindsTheNearestNodesFromAnywhere) {
  World world(500);
  int right = 0;
  for (int i = 0; i < 30; ++i) {
    const DhtId query = DhtId::random(world.runtime);
    Traversal traversal(world.runtime, DhtId{}, {.beam_size = 20}, world);
    traversal.add_query(query, {world.nodes[static_cast<std::size_t>(i)]});
    EXPECT_TRUE(world.runtime.run(traversal.run()));
    const auto& found = world.results.at(query);
    EXPECT_EQ(found.size(), 20u);
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(), [&](const auto& a, const auto& b) {
      return a.id.distance(query) < b.id.distance(query);
    }));
    right += found[0] == world.nearest(query, 1)[0];
    EXPECT_GE(world.costs[query].hops, 1u);
    EXPECT_LE(world.costs[query].hops, 8u);
    EXPECT_GE(world.costs[query].calls, 20u) << "the whole beam is asked";
  }
  EXPECT_GE(right, 28);
}

TEST(Traversal, AsksAboutManyKeysInFewCalls) {
  World world(300);
  std::vector<DhtId> queries;
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 10, .num_workers = 4, .queries_per_call = 16}, world);
  for (int i = 0; i < 256; ++i) {
    queries.push_back(DhtId::random(world.runtime));
    traversal.add_query(queries.back(), {world.nodes[0]});
  }
  EXPECT_TRUE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.results.size(), 256u);
  EXPECT_EQ(world.largest_batch, 16u);
  EXPECT_LT(world.calls, world.asked.size() / 4);
}

TEST(Traversal, DeadNodesLeaveTheBeam) {
  World world(200);
  const DhtId query = DhtId::random(world.runtime);
  for (const auto& node : world.nearest(query, 12)) world.dead.insert(node.id);
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 10}, world);
  traversal.add_query(query, {world.nodes[0], world.nodes[1]});
  EXPECT_TRUE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.results.at(query), world.nearest(query, 10));
}

TEST(Traversal, EndsWhenTheNearestHaveAnsweredAndAgree) {
  for (const bool agreeing : {true, false}) {
    World world(200);
    world.agreeing = agreeing;
    const DhtId query = DhtId::random(world.runtime);
    for (const auto& node : world.nearest(query, 2)) world.dead.insert(node.id);
    const auto quorum = ids_of(world.nearest(query, 5));
    Traversal traversal(world.runtime, DhtId{}, {.beam_size = 20, .quorum = 5}, world);
    traversal.add_query(query, world.nearest(query, 20));
    EXPECT_TRUE(world.runtime.run(traversal.run()));
    ASSERT_EQ(world.quorums.size(), 1u) << "asked once, when all had answered; those that are gone do not count";
    EXPECT_EQ(world.quorums[0], quorum);
    EXPECT_EQ(world.calls, (agreeing ? 5u : 20u) + world.dead.size());
  }
}

TEST(Traversal, CountsItselfAmongTheNearest) {
  World world(200);
  world.agreeing = true;
  const DhtId query = DhtId::random(world.runtime);
  const auto nearest = world.nearest(query, 6);
  for (const std::size_t rank : {2u, 5u}) {
    world.asked.clear();
    Traversal traversal(world.runtime, nearest[rank].id, {.quorum = 5, .in_quorum = true}, world);
    traversal.add_query(query, world.nearest(query, 20));
    EXPECT_TRUE(world.runtime.run(traversal.run()));
    world.results.clear();
    EXPECT_EQ(world.asked.size(), rank == 2 ? 4u : 5u);
    EXPECT_EQ(world.quorums.back().size(), 5u);
    EXPECT_EQ(world.quorums.back().back() == nearest[rank].id, rank == 2);
  }
}

TEST(Traversal, APeerWithManyNodeIdsHasOnePlace) {
  World world(100);
  world.agreeing = true;
  const DhtId query = DhtId::random(world.runtime);
  auto nearest = world.nearest(query, 5);
  for (auto& node : nearest) node.peer = nearest[0].peer;
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 20, .quorum = 5}, world);
  traversal.add_query(query, nearest);
  EXPECT_TRUE(world.runtime.run(traversal.run()));
  ASSERT_EQ(world.quorums.size(), 1u);
  EXPECT_EQ(world.quorums[0].size(), 5u);
  std::set<PeerId> peers;
  for (const auto& node : world.results.at(query)) EXPECT_TRUE(peers.insert(node.peer).second);
  EXPECT_GE(peers.size(), 20u);
}

TEST(Traversal, StopsAtOnceWhenTheGuideHasWhatItWants) {
  World world(100);
  const DhtId query = DhtId::random(world.runtime);
  for (const auto& node : world.nodes) world.dead.insert(node.id);
  world.dead.erase(world.nodes[7].id);
  world.stop_at = world.nodes[7].id;
  Traversal traversal(world.runtime, DhtId{}, {.beam_size = 20, .num_workers = 4}, world);
  traversal.add_query(query, {world.nodes[5], world.nodes[6], world.nodes[7]});
  const TimePoint start = world.runtime.now();
  EXPECT_TRUE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.runtime.now() - start, 10ms) << "silent nodes are not waited for";
  EXPECT_EQ(world.runtime.task_count(), 0u);
}

TEST(Traversal, EndsAtItsDeadlineWithWhatItKnows) {
  World world(100);
  const DhtId query = DhtId::random(world.runtime);
  for (const auto& node : world.nodes) world.dead.insert(node.id);
  Traversal traversal(world.runtime, DhtId{}, {.deadline = world.runtime.after(5s)}, world);
  traversal.add_query(query, world.nodes);
  const TimePoint start = world.runtime.now();
  EXPECT_FALSE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.runtime.now() - start, 5s);
  EXPECT_FALSE(world.results.at(query).empty());
}

TEST(Traversal, WithoutAnybodyToAskItEndsAtOnce) {
  World world(1);
  Traversal traversal(world.runtime, world.nodes[0].id, {}, world);
  traversal.add_query(DhtId::of("a"), {});
  traversal.add_query(DhtId::of("b"), {world.nodes[0]});
  EXPECT_TRUE(world.runtime.run(traversal.run()));
  EXPECT_EQ(world.results.size(), 2u);
  EXPECT_EQ(world.calls, 0u) << "never itself";
  Traversal nothing(world.runtime, DhtId{}, {}, world);
  EXPECT_TRUE(world.runtime.run(nothing.run()));
}

TEST(Blacklist, DoubtsForAWhileAfterABan) {
  Blacklist blacklist(5s, 2.0);
  const PeerId peer = peer_of(1);
  TimePoint now{};
  blacklist.doubt(peer, now);
  EXPECT_FALSE(blacklist.contains(peer, now));
  EXPECT_TRUE(blacklist.doubts(peer, now));
  EXPECT_FALSE(blacklist.doubts(peer, now + 2min));
  blacklist.failed(peer, now);
  blacklist.doubt(peer, now);
  EXPECT_TRUE(blacklist.contains(peer, now + 4s)) << "not shortened by a doubt";
  EXPECT_TRUE(blacklist.doubts(peer, now + 30s));
  blacklist.succeeded(peer);
  EXPECT_FALSE(blacklist.doubts(peer, now));
}

TEST(Blacklist, WhoShowsItselfSitsOutHalfOfABan) {
  Blacklist blacklist(10s, 2.0);
  const PeerId peer = peer_of(1);
  TimePoint now{};
  blacklist.failed(peer, now);
  blacklist.answered(peer, now + 1s);
  EXPECT_TRUE(blacklist.contains(peer, now + 9s)) << "it may answer pings alone";
  EXPECT_FALSE(blacklist.doubts(peer, now + 11s)) << "it has the usual time then";
  blacklist.failed(peer, now += 10s);
  EXPECT_TRUE(blacklist.doubts(peer, now));
  blacklist.answered(peer, now += 10s);
  EXPECT_FALSE(blacklist.contains(peer, now)) << "half of 20 s";
  blacklist.failed(peer, now);
  EXPECT_TRUE(blacklist.contains(peer, now + 39s)) << "longer each time all the same";
  blacklist.succeeded(peer);
  blacklist.doubt(peer, now);
  blacklist.answered(peer, now);
  EXPECT_FALSE(blacklist.holds(peer, now));
  blacklist.failed(peer, now, false);
  blacklist.failed(peer, now += 10s, false);
  EXPECT_FALSE(blacklist.contains(peer, now + 10s)) << "no longer than before";
}

TEST(Blacklist, BansLongerEachTimeUntilASuccess) {
  Blacklist blacklist(5s, 2.0);
  const PeerId peer = peer_of(1);
  TimePoint now{};
  for (const auto& [wait, next] : {std::pair{5s, 10s}, {10s, 20s}, {20s, 40s}}) {
    blacklist.failed(peer, now);
    blacklist.failed(peer, now);  // calls that were under way add nothing
    EXPECT_TRUE(blacklist.contains(peer, now + wait - 1ms));
    EXPECT_FALSE(blacklist.contains(peer, now + wait));
    now += next;
  }
  blacklist.succeeded(peer);
  blacklist.failed(peer, now);
  EXPECT_FALSE(blacklist.contains(peer, now + 5s));
  for (int i = 0; i < 100; ++i) blacklist.failed(peer, now += 2h);
  EXPECT_FALSE(blacklist.contains(peer, now + 2h)) << "never for long";
  Blacklist none(0s, 2.0);
  none.failed(peer, now);
  none.doubt(peer, now);
  EXPECT_FALSE(none.contains(peer, now));
  EXPECT_FALSE(none.doubts(peer, now));
}

struct Sender {
  explicit Sender(BatchLimits limits = {.items = 8, .bytes = 1000, .in_flight = 2})
      : batcher(
            runtime, limits, [this](PeerId peer, std::vector<int> items) { return send(peer, std::move(items)); },
            [](const int& item) { return item == 0 ? std::size_t{900} : std::size_t{1}; }) {}
  Task<Result<std::vector<int>>> send(PeerId peer, std::vector<int> items) {
    requests.push_back(items);
    most_at_once = std::max(most_at_once, ++at_once);
    co_await runtime.sleep_for(1s);
    --at_once;
    if (failing) co_return Error(cohive::Errc::timeout, peer);
    for (int& item : items) item *= 10;
    co_return items;
  }
  static Task<void> call(Sender& self, std::vector<int> items) {
    auto expected = items;
    for (int& item : expected) item *= 10;
    auto answers = co_await self.batcher.call(peer_of(1), items);
    self.answered += answers && *answers == expected;
    self.failed += !answers;
  }
  SimRuntime runtime;
  std::vector<std::vector<int>> requests;
  int at_once = 0, most_at_once = 0, answered = 0, failed = 0;
  bool failing = false;
  Batcher<int, int> batcher;
};

TEST(Batcher, JoinsWhatIsAskedAtTheSameTime) {
  Sender sender;
  TaskGroup callers(sender.runtime, "callers");
  for (int i = 1; i <= 100; ++i) callers.spawn(Sender::call(sender, {i, i + 1}), "call");
  sender.runtime.run(callers.join());
  EXPECT_EQ(sender.answered, 100);
  EXPECT_EQ(sender.requests.size(), 25u);
  for (const auto& request : sender.requests) EXPECT_EQ(request.size(), 8u);
  EXPECT_EQ(sender.most_at_once, 2);
}

TEST(Batcher, MindsTheBytesAndLetsASingleLargeItemThrough) {
  Sender sender;
  TaskGroup callers(sender.runtime, "callers");
  for (int i = 0; i < 3; ++i) callers.spawn(Sender::call(sender, {0}), "call");
  callers.spawn(Sender::call(sender, std::vector<int>(20, 0)), "call");
  sender.runtime.run(callers.join());
  EXPECT_EQ(sender.answered, 4);
  EXPECT_EQ(sender.requests.size(), 4u);
}

TEST(Batcher, AFailureReachesEveryoneWhoWaitsForThatPeer) {
  Sender sender;
  sender.failing = true;
  TaskGroup callers(sender.runtime, "callers");
  for (int i = 1; i <= 100; ++i) callers.spawn(Sender::call(sender, {i}), "call");
  const TimePoint start = sender.runtime.now();
  sender.runtime.run(callers.join());
  EXPECT_EQ(sender.failed, 100);
  EXPECT_EQ(sender.runtime.now() - start, 1s) << "not one time-out after the other";
}

TEST(Batcher, CallersThatAreGoneAreNotSentAndClosingTellsTheRest) {
  Sender sender({.items = 1, .bytes = 1000, .in_flight = 1});
  TaskGroup stays(sender.runtime, "stays");
  stays.spawn(Sender::call(sender, {1}), "call");
  {
    TaskGroup leaves(sender.runtime, "leaves");
    leaves.spawn(Sender::call(sender, {2}), "call");
    sender.runtime.run_for(100ms);
  }
  stays.spawn(Sender::call(sender, {3}), "call");
  stays.spawn(Sender::call(sender, {4}), "call");
  sender.runtime.run_for(1500ms);
  EXPECT_EQ(sender.requests, (std::vector<std::vector<int>>{{1}, {3}}));
  sender.batcher.close();
  sender.runtime.run(stays.join());
  EXPECT_EQ(sender.answered, 1);
  EXPECT_EQ(sender.failed, 2);
  EXPECT_EQ(sender.runtime.run(sender.batcher.call(peer_of(1), {5})).error().code(), make_error_code(Errc::closed));
}

}  // namespace
}  // namespace cohive::dht
