// Averaging of peers that are reached only through relays that carry little.
#include <gmock/gmock.h>

#include "averaging_fixture.hpp"
#include "limited_relay.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kLarge = 500'000;  // values: 2 MB

class LimitedRelay : public Averaging {
 protected:
  void add_public(std::size_t size) {
    add_on(swarm.add_host_at("4.0.0." + std::to_string(peers.size() + 1),
                             {.force_reachability = p2p::Reachability::public_}),
           size);
  }
  /// \param open  its router lets in whom it has sent to, at any time
  void add_hidden(std::size_t size, bool open = false) { add_on(relay_.add_hidden(peers.size() + 1, open), size); }
  /// A round of all peers, and how long it takes.
  std::vector<Result<RoundReport>> average() {
    swarm.pass(10s);  // until relays are found
    const TimePoint start = swarm.runtime().now();
    auto results = step_all(same());
    took = swarm.runtime().now() - start;
    return results;
  }
  /// What a member offered to average for the others.
  std::optional<double> offered(const RoundReport& result, std::size_t peer) const {
    for (const Member& member : result.group)
      if (member.peer == id(peer)) return member.bandwidth;
    ADD_FAILURE() << "not in the group";
    return std::nullopt;
  }
  void expect_the_average() {
    const float mean = static_cast<float>(peers.size() - 1) / 2;
    for (const auto& peer : peers) {
      EXPECT_NEAR(peer->a.front(), mean, 1e-5);
      EXPECT_NEAR(peer->a.back(), mean, 1e-5);
    }
  }
  Duration took{};

 private:
  void add_on(p2p::Host& host, std::size_t size) {
    const auto number = static_cast<float>(peers.size());
    auto peer = std::make_unique<Peer>();
    peer->dht = std::make_unique<Dht>(host, DhtOptions{});
    swarm.run(peer->dht->start({relay_.address()})).value();
    peer->a.assign(size, number);
    AveragerOptions options = quick();
    options.prefix = "test";
    options.part_size_bytes = 1 << 16;
    options.target_group_size = 8;
    options.sender_timeout = 15s;
    options.reducer_timeout = 30s;
    options.allreduce_timeout = 60s;
    peer->averager = std::make_unique<Averager>(
        *peer->dht, std::vector<AveragedTensor>{{peer->a, {static_cast<std::uint32_t>(size)}}}, options);
    peer->averager->start();
    peers.push_back(std::move(peer));
  }
  LimitedRelayHost relay_{swarm};
};

TEST_F(LimitedRelay, PeersBehindItLetTheOthersOwnTheParts) {
  add_public(kLarge);
  for (int i = 0; i < 3; ++i) add_hidden(kLarge);
  for (auto& result : average()) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4U);
    EXPECT_EQ(result->parts_failed, 0U);
    EXPECT_EQ(offered(*result, 0), std::nullopt);
    for (std::size_t hidden : {1, 2, 3}) EXPECT_EQ(offered(*result, hidden), 0.0);
  }
  expect_the_average();
}

TEST_F(LimitedRelay, ItCarriesARoundThatIsSmallEnough) {
  for (int i = 0; i < 2; ++i) add_hidden(1000);
  for (auto& result : average()) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0U);
    EXPECT_EQ(offered(*result, 0), std::nullopt) << "nothing is in the way of its share";
  }
  expect_the_average();
}

TEST_F(LimitedRelay, PeersThatCanPunchWaitForTheirDirectConnection) {
  for (int i = 0; i < 2; ++i) add_hidden(kLarge, true);
  for (auto& result : average()) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0U);
  }
  expect_the_average();
}

TEST_F(LimitedRelay, PeersThatItAloneConnectsSayWhatIsMissingInsteadOfStalling) {
  for (int i = 0; i < 2; ++i) add_hidden(kLarge);
  auto results = average();
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->failed_reducers, std::vector{id(1 - i)});
    EXPECT_LT(results[i]->bytes_sent, kCarried);
  }
  EXPECT_LT(took, 30s);
}

}  // namespace
}  // namespace cohive::averaging
