// Reducers with few connections, which others want while a round goes on.
#include "averaging_fixture.hpp"

namespace cohive::averaging {
namespace {

class FullTables : public Averaging {
 protected:
  static constexpr std::size_t kMost = 16;
  void SetUp() override {
    host_options = {.max_connections = kMost, .high_water = kMost, .low_water = kMost};
    auto options = quick();
    options.sender_timeout = 60s;
    options.reducer_timeout = 90s;
    options.allreduce_timeout = 120s;
    for (int i = 0; i < 2; ++i) add(options);
    options.mode = PeerMode::client;  // whose connection nobody else can open again
    add(options);
  }
  /// Newcomers, one each half second, that fill the table of a host and stay.
  void crowd(p2p::Host& host) {
    for (std::size_t i = 0; i < 2 * kMost; ++i) {
      p2p::Host& guest = swarm.add_host({.routing_server = false});
      guest.learn_addresses(host.id(), host.addresses());
      EXPECT_TRUE(swarm.run(guest.connect(host.id(), swarm.after(5s))));
      swarm.pass(500ms);
    }
  }
};

TEST_F(FullTables, AClientThatComesLateToARoundIsNotTakenForGone) {
  auto rounds = begin_all({.allow_retries = false});
  swarm.pass(4s);
  for (std::size_t i = 0; i < 2; ++i) rounds[i].trigger();
  for (std::size_t i = 0; i < 2; ++i) crowd(peers[i]->dht->host());
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_GE(peers[i]->dht->host().peers().size(), kMost * 3 / 4) << "else this test shows nothing";
  rounds[2].trigger();
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_TRUE(result->lost_senders.empty());
    EXPECT_EQ(result->parts_failed, 0u);
  }
  for (const auto& peer : peers) EXPECT_NEAR(peer->a[0], 1, 1e-5);
}

}  // namespace
}  // namespace cohive::averaging
