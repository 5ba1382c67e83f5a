// Nodes that lost each other without leaving: machines that slept, networks that were away or fell apart.
#include <set>

#include "cohive/transport/stream_transport.hpp"
#include "dht_swarm.hpp"
#include "p2p/strangers.hpp"

namespace cohive::dht {
namespace {

class Rejoining : public DhtSwarm {
 protected:
  static std::set<std::string> ips(std::size_t first, std::size_t last) {
    std::set<std::string> result;
    for (std::size_t i = first; i < last; ++i) result.insert(ip_of(i));
    return result;
  }
  /// Everyone stores and reads now and then, as trainers do; who does not answer is forgotten.
  void be_busy(Duration time) {
    for (Duration passed = 0s; passed < time; passed += 30s) {
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const Key key = "of " + std::to_string(i);
        auto storing = swarm.runtime().submit([&] { return nodes[i]->store(key, 1, in(60)); });
        auto getting = swarm.runtime().submit([&] { return nodes[i]->get("of " + std::to_string(i / 2), true); });
        swarm.pass(1s);
      }
      swarm.pass(30s);
    }
  }
  void expect_that_all_read_what_all_store() {
    for (std::size_t i = 0; i < nodes.size(); ++i)
      EXPECT_TRUE(store(*nodes[i], "after " + std::to_string(i), static_cast<int>(i), in(600))) << i;
    for (std::size_t reader = 0; reader < nodes.size(); ++reader)
      for (std::size_t i = 0; i < nodes.size(); ++i)
        EXPECT_TRUE(get(*nodes[reader], "after " + std::to_string(i), true)) << reader << " reads of " << i;
  }
};

TEST_F(Rejoining, ANodeWhoseNetworkWasAwayIsBackByItself) {
  add_many(8);
  swarm.fabric().partition({ip_of(7)}, ips(0, 7));
  be_busy(5min);
  EXPECT_EQ(nodes[7]->table_size(), 0u);
  EXPECT_EQ(nodes[3]->table_size(), 6u);
  swarm.fabric().heal();
  swarm.pass(25s);
  expect_that_all_read_what_all_store();
  EXPECT_EQ(nodes[7]->table_size(), 7u);
}

TEST_F(Rejoining, TheFirstNodeIsFoundAgain) {
  add_many(6);
  swarm.fabric().partition({ip_of(0)}, ips(1, 6));
  be_busy(5min);
  EXPECT_EQ(nodes[0]->table_size(), 0u);
  swarm.fabric().heal();
  swarm.pass(3min);
  expect_that_all_read_what_all_store();
}

TEST_F(Rejoining, TheSidesOfANetworkThatFellApartFindEachOther) {
  add_many(8);
  swarm.fabric().partition(ips(0, 4), ips(4, 8));
  be_busy(5min);
  EXPECT_EQ(nodes[1]->table_size(), 3u);
  EXPECT_EQ(nodes[6]->table_size(), 3u);
  swarm.fabric().heal();
  swarm.pass(3min);
  expect_that_all_read_what_all_store();
}

TEST_F(Rejoining, WhatOneSideStoredLastWhileTheyWereApartIsWhatAllRead) {
  constexpr std::size_t kSide = 20;
  add_many(2 * kSide);
  swarm.fabric().partition(ips(0, kSide), ips(kSide, 2 * kSide));
  be_busy(5min);
  const auto key = [](std::size_t i) { return Key("key " + std::to_string(i)); };
  for (std::size_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(store(*nodes[i % kSide], key(i), "older", in(3600)));
    ASSERT_TRUE(store(*nodes[kSide + i % kSide], key(i), "newer", in(3601)));
  }
  swarm.fabric().heal();
  swarm.pass(15min);
  int outdated = 0;
  for (std::size_t i = 0; i < 300; ++i)
    for (std::size_t reader = i % 5; reader < 2 * kSide; reader += 5)
      outdated += *get(*nodes[reader], key(i), true).value().value() != msgpack::Value("newer");
  EXPECT_LE(outdated, 2) << "of 2400: all that are near a key may be of the side with the older one, and agree";
}

TEST_F(Rejoining, NodesWithoutInitialPeersComeBackThroughThoseTheyKnew) {
  add_many(3);
  swarm.fabric().crash(ip_of(0));  // the only initial peer is gone for good
  swarm.fabric().partition({ip_of(1)}, {ip_of(2)});
  be_busy(5min);
  EXPECT_EQ(nodes[1]->table_size(), 0u);
  swarm.fabric().heal();
  swarm.pass(3min);
  EXPECT_EQ(nodes[1]->table_size(), 1u);
  EXPECT_EQ(nodes[2]->table_size(), 1u);
}

/// Nodes that know the first one by a name alone, which says nothing of its identity.
class RejoiningByName : public Rejoining {
 protected:
  void TearDown() override { nodes.clear(); }  // before their hosts
  void add_by_name() {
    const Multiaddr name = p2p::parsed("/dnsaddr/boot.example");
    machines.push_back(swarm.fabric().add_machine());
    p2p::FewNames::Names names;
    if (!hosts.empty()) names[name.text()] = {p2p::address_of(*hosts.front())};
    p2p::Connectivity ways;
    ways.transports.push_back(transport::stream_transport(*machines.back()));
    ways.resolver = std::make_unique<p2p::FewNames>(std::move(names));
    p2p::HostOptions options;
    options.listen = {p2p::parsed("/ip4/0.0.0.0/tcp/4001")};
    options.transport.plaintext = true;
    const auto number = static_cast<std::uint32_t>(hosts.size());
    hosts.push_back(std::make_unique<p2p::Host>(swarm.runtime(), std::move(ways), p2p::nobody(number), options));
    hosts.back()->start().value();
    nodes.push_back(std::make_unique<Dht>(*hosts.back()));
    std::vector<Multiaddr> initial;
    if (nodes.size() > 1) initial = {name};
    const auto started = swarm.run(nodes.back()->start(initial));
    EXPECT_TRUE(started) << started.error();
  }
  std::vector<std::unique_ptr<transport::Network>> machines;
  std::vector<std::unique_ptr<p2p::Host>> hosts;
};

TEST_F(RejoiningByName, TheSidesOfANetworkThatFellApartFindEachOther) {
  for (int i = 0; i < 8; ++i) add_by_name();
  swarm.fabric().partition(ips(0, 4), ips(4, 8));
  be_busy(5min);
  EXPECT_EQ(nodes[1]->table_size(), 3u);
  EXPECT_EQ(nodes[6]->table_size(), 3u);
  swarm.fabric().heal();
  swarm.pass(15min);
  expect_that_all_read_what_all_store();
}

TEST_F(Rejoining, ConnectionsThatAreDeadAreNoLossOfTheirPeers) {
  add_many(5);
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(600)));
  // While this machine slept the others gave its connections up; each says so when it is used.
  std::set<std::string> reset;
  swarm.fabric().set_tap([&](const std::string& from, const std::string& to, ByteView) {
    if (from != ip_of(4) && to != ip_of(4)) return true;
    return !reset.insert(from == ip_of(4) ? to : from).second;
  });
  EXPECT_TRUE(get(*nodes[4], "key", true));
  EXPECT_FALSE(reset.empty());
  EXPECT_EQ(nodes[4]->table_size(), 4u);
}

}  // namespace
}  // namespace cohive::dht
