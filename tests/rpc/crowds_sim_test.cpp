// Many connections of one owner, each with a call that is begun and never asked for whole.
#include <gtest/gtest.h>

#include "cohive/core/sync.hpp"
#include "cohive/rpc/rpc.hpp"
#include "p2p/strangers.hpp"

namespace cohive::rpc {
namespace {

using p2p::Host;
using sim::Swarm;

Task<Result<std::string>> say_again(PeerId, std::string request) {
  co_return request;
}

struct Crowds : testing::Test {
  Swarm swarm;
  Host& hub = swarm.add_host_at("26.0.0.1", {.max_connections = 64}, "2600::1");
  Server server{hub};
  std::vector<std::unique_ptr<transport::Network>> machines;
  std::vector<transport::ConnectionPtr> held;
  std::vector<transport::StreamPtr> streams;
  int guests = 0;

  Crowds() { server.add_unary("test::echo", say_again); }

  Multiaddr hub_at(const std::string& ip) {
    return p2p::parsed((ip.find(':') == ip.npos ? "/ip4/26.0.0.1" : "/ip6/2600::1") + std::string("/tcp/4001"));
  }
  /// A connection from a machine with that address, as often as the hub takes it.
  bool connect_from(const std::string& ip, std::uint32_t number) {
    machines.push_back(swarm.fabric().add_machine(ip));
    auto connection = swarm.run(p2p::knock(*machines.back(), p2p::nobody(number), hub_at(ip)));
    if (!connection) return false;
    held.push_back(std::move(*connection));
    swarm.pass(100ms);
    return !held.back()->closed();
  }
  /// Half of a call on each connection that is still there.
  void begin_calls() {
    streams.clear();
    for (auto& connection : held) {
      auto stream = connection->open_stream();
      if (!stream) continue;
      if (!swarm.run(transport::select_one_of(**stream, {"test::echo"}, swarm.after(1s)))) continue;
      (void)swarm.run((*stream)->write(Bytes{0x20, 1}, swarm.after(1s)));
      streams.push_back(std::move(*stream));
    }
  }
  /// Newcomers from networks of their own that were served.
  int served(bool ip6) {
    int count = 0;
    for (int i = 0; i < 10; ++i) {
      const std::string number = std::to_string(++guests);
      auto& guest = swarm.add_host_at(ip6 ? "2b00:" + number + "::1" : "27." + number + ".0.1");
      const auto address = hub_at(ip6 ? "::" : "").with_peer(hub.id());
      if (!swarm.run(guest.connect(address, swarm.after(5s)))) continue;
      const auto reply = swarm.run(call_unary(guest, hub.id(), "test::echo", "hello", swarm.after(5s)));
      count += reply && *reply == "hello";
    }
    return count;
  }
};

TEST_F(Crowds, OfTheSubnetsOfOneBlockKeepNobodyOut) {
  for (std::uint32_t i = 0; i < 80; ++i) connect_from("2001:db8:1:" + std::to_string(i + 1) + "::1", i);
  begin_calls();
  ASSERT_GE(streams.size(), 50u);
  EXPECT_EQ(served(true), 10);
  EXPECT_EQ(served(false), 10);
}

TEST_F(Crowds, OfTheAddressesOfOneBlockKeepNobodyOut) {
  for (std::uint32_t i = 0; i < 80; ++i) connect_from("8.8.8." + std::to_string(i + 1), i);
  begin_calls();
  EXPECT_EQ(served(true), 10);
  EXPECT_EQ(served(false), 10);
}

TEST_F(Crowds, OfManyBlocksWithAFewEachKeepNobodyOutByCallsThatAreMerelyBegun) {
  for (std::uint32_t i = 0; i < 80; ++i)
    connect_from("8." + std::to_string(i / 4) + ".8." + std::to_string(i % 4 + 1), i);
  begin_calls();
  swarm.pass(2s);  // a call that has begun a moment ago has its time
  EXPECT_EQ(served(true), 10);
}

TEST_F(Crowds, InTheBlockOfANewcomerKeepItOutNoMore) {
  for (std::uint32_t i = 0; i < 80; ++i) connect_from("2001:db8:1:5::" + std::to_string(i + 1), i);
  begin_calls();
  EXPECT_TRUE(connect_from("2001:db8:1:77::1", 1000)) << "a subnet of its own";
}

TEST_F(Crowds, GiveWayBeforeAnIdlePeerOfAnotherNetworkDoes) {
  ASSERT_TRUE(connect_from("9.9.9.9", 1000));
  for (std::uint32_t i = 0; i < 80; ++i) connect_from("2001:db8:1:" + std::to_string(i + 1) + "::1", i);
  for (int i = 0; i < 4; ++i) {  // until the crowd is none any more
    begin_calls();
    swarm.pass(2s);
    EXPECT_EQ(served(false), 10);
    EXPECT_FALSE(held.front()->closed()) << i;
  }
}

TEST_F(Crowds, ACallThatIsAskedForWholeIsInUse) {
  Event never(swarm.runtime(), "never");
  server.add_unary("test::slow", [&never](PeerId, std::string request) -> Task<Result<std::string>> {
    co_await never.wait();
    co_return request;
  });
  auto& worker = swarm.add_host_at("28.0.0.1");
  ASSERT_TRUE(swarm.run(worker.connect(hub_at("").with_peer(hub.id()), swarm.after(5s))));
  TaskGroup calls(swarm.runtime(), "calls");
  calls.spawn(
      [](Host& from, PeerId to, Deadline deadline) -> Task<void> {
        (void)co_await call_unary(from, to, "test::slow", "please", deadline);
      }(worker, hub.id(), swarm.after(1h)),
      "a call");
  swarm.pass(5s);
  for (std::uint32_t i = 0; i < 120; ++i) connect_from("8." + std::to_string(i) + ".8.1", i);
  EXPECT_TRUE(hub.connected(worker.id()));
  calls.cancel();
  never.set();
}

}  // namespace
}  // namespace cohive::rpc
