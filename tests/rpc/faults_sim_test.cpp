// Calls across a network that breaks: every one of them ends, and nothing of it stays behind.
#include "rpc/fixture.hpp"

namespace cohive::rpc {
namespace {

using testing::receive_all;
using testing::shout;

class Faults : public testing::TwoHosts {
 protected:
  std::string bobs_ip = sim::Swarm::ip(2);
  std::string alices_ip = sim::Swarm::ip(1);

  /// Starts a call that bob answers in an hour.
  void start_call(Duration limit) {
    serve_late();
    group.spawn(
        [](p2p::Host& host, PeerId peer, Deadline deadline, std::optional<Result<std::string>>& out) -> Task<void> {
          out = co_await call_unary(host, peer, "Test.rpc_late", "x", deadline);
        }(alice, bob.id(), swarm.after(limit), result));
    swarm.pass(1s);
    ASSERT_EQ(running, 1);
  }
  std::optional<Result<std::string>> result;
  TaskGroup group{swarm.runtime()};
};

TEST_F(Faults, AKilledCalleeFailsTheCallAtOnce) {
  start_call(1h);
  swarm.fabric().kill(bobs_ip);
  swarm.pass(10ms);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error(), cohive::Errc::closed);
  EXPECT_EQ(running, 0);
}

TEST_F(Faults, ACrashedCalleeIsNoticedByKeepaliveLongBeforeTheDeadline) {
  start_call(24h);
  swarm.fabric().crash(bobs_ip);
  swarm.pass(2min);
  ASSERT_TRUE(result);
  EXPECT_FALSE(*result);
  EXPECT_EQ(running, 0);  // bob, who lost alice in the same way, dropped the handler
}

TEST_F(Faults, APartitionEndsTheCallAtItsDeadlineAndHealingBringsNoStrayReply) {
  start_call(5s);
  swarm.fabric().partition({alices_ip}, {bobs_ip});
  swarm.pass(5s);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error(), cohive::Errc::timeout);
  EXPECT_EQ(running, 1);  // bob cannot know yet
  swarm.fabric().heal();
  swarm.pass(1s);
  EXPECT_EQ(running, 0);
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_EQ(call("Test.rpc_shout", "back").value(), "BACK");
}

TEST_F(Faults, ACallDuringAPartitionTimesOut) {
  server.add_unary("Test.rpc_shout", shout);
  swarm.fabric().partition({alices_ip}, {bobs_ip});
  const auto start = swarm.runtime().now();
  EXPECT_EQ(call("Test.rpc_shout", "x", 3s).error(), cohive::Errc::timeout);
  EXPECT_EQ(swarm.runtime().now() - start, 3s);
}

TEST_F(Faults, AVanishedCallerTakesItsHandlersAlong) {
  start_call(1h);
  swarm.fabric().kill(alices_ip);
  swarm.pass(10ms);
  EXPECT_EQ(running, 0);
}

Task<Result<>> tick(Runtime& runtime, ServerStream& stream, int& running) {
  testing::Running counted(running);
  for (int i = 0;; ++i) {
    auto sent = co_await stream.send(as_bytes(std::to_string(i)), runtime.after(10s));
    if (!sent) co_return sent;
    co_await runtime.sleep_for(1s);
  }
}

TEST_F(Faults, AStreamCutInTheMiddleIsAnErrorAndNotAnEnd) {
  server.add_streaming("Test.rpc_tick", [this](ServerStream& s) { return tick(swarm.runtime(), s, running); });
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_tick", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(to_string(**swarm.run(stream->receive(swarm.after(5s)))), std::to_string(i));
  bob.disconnect(alice.id());
  auto rest = swarm.run(receive_all(*stream, swarm.after(5s)));
  EXPECT_FALSE(rest);
  EXPECT_EQ(running, 0);
}

TEST_F(Faults, BytesCutByTheNetworkFailTheCallWithinItsDeadline) {
  server.add_unary("Test.rpc_shout", shout);
  std::size_t carried = 0;
  swarm.fabric().set_tap([&](const std::string&, const std::string&, ByteView bytes) {
    carried += bytes.size();
    return carried < 1'000'000;
  });
  auto answer = call("Test.rpc_shout", std::string(3'000'000, 'a'));
  ASSERT_FALSE(answer);
  EXPECT_EQ(*answer.error().peer(), bob.id());
  swarm.fabric().set_tap({});
  EXPECT_TRUE(call("Test.rpc_shout", "again"));  // over a new connection
}

// Many peers call each other over links that fail; every call ends by its deadline.
TEST(FaultySwarm, EveryCallEnds) {
  sim::Swarm swarm(
      {.seed = 5,
       .link = transport::SimLink{
           .latency = 20ms, .jitter = 20ms, .bandwidth = 1e6, .connect_failure = 0.2, .mean_lifetime = 3s}});
  constexpr int kHosts = 10;
  std::vector<std::unique_ptr<Server>> servers;
  for (int i = 0; i < kHosts; ++i) {
    servers.push_back(std::make_unique<Server>(swarm.add_host()));
    servers.back()->add_unary("Test.rpc_shout", shout);
  }
  for (int i = 0; i < kHosts; ++i)
    for (int k = 0; k < kHosts; ++k)
      if (i != k) swarm.host(i).learn_addresses(swarm.host(k).id(), swarm.host(k).addresses());
  int ended = 0, good = 0;
  TaskGroup group(swarm.runtime());
  auto caller = [](sim::Swarm& s, int self, int& ended_count, int& good_count) -> Task<void> {
    for (int i = 0; i < 30; ++i) {
      const int other = (self + 1 + static_cast<int>(s.runtime().random()() % (kHosts - 1))) % kHosts;
      const auto start = s.runtime().now();
      std::string request(s.runtime().random()() % 300'000, 'a');
      const std::size_t size = request.size();
      auto reply =
          co_await call_unary(s.host(self), s.host(other).id(), "Test.rpc_shout", std::move(request), s.after(4s));
      EXPECT_LE(s.runtime().now() - start, 4s);
      if (reply) EXPECT_EQ(*reply, std::string(size, 'A'));
      ++ended_count;
      good_count += reply.has_value();
    }
  };
  for (int i = 0; i < kHosts; ++i) group.spawn(caller(swarm, i, ended, good));
  swarm.pass(5min);
  EXPECT_TRUE(group.empty());
  EXPECT_EQ(ended, 30 * kHosts);
  EXPECT_GT(good, ended / 3);
  servers.clear();
  EXPECT_EQ(swarm.left_behind(), "");
}

}  // namespace
}  // namespace cohive::rpc
