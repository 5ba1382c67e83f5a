// Measured links: a slow one is given less of the work, and the round gets faster.
#include "averaging_fixture.hpp"
#include "cohive/core/metrics.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kValues = 1'000'000;
constexpr double kFast = 8e6, kSlow = 1e6;  // bytes per second

class MeasuredBandwidth : public Averaging {
 protected:
  void add_peers(std::size_t count, Bandwidth bandwidth, std::optional<std::size_t> slow) {
    auto options = quick();
    options.part_size_bytes = 1 << 16;
    options.sender_timeout = 30s;
    options.reducer_timeout = 60s;
    options.allreduce_timeout = 120s;
    options.bandwidth = bandwidth;
    for (std::size_t i = 0; i < count; ++i) {
      add(options, kValues);
      const double rate = slow == i ? kSlow : kFast;
      swarm.fabric().set_line(sim::Swarm::ip(peers.size()), {rate, rate});
    }
  }
  /// Seconds that the exchange takes, and what the peers said about their links.
  double average() {
    const TimePoint start = swarm.runtime().now();
    auto results = step_all(same());
    double matchmaking = 0;
    for (auto& result : results) {
      EXPECT_TRUE(result) << result.error();
      if (!result) return 1e9;
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->lost_senders.empty());
      matchmaking = std::max(matchmaking, to_seconds(result->matchmaking));
    }
    said.assign(peers.size(), std::nullopt);
    sent.clear();
    for (std::size_t i = 0; i < peers.size(); ++i) {
      for (const auto& member : results[0]->group)
        if (member.peer == peers[i]->dht->host().id()) said[i] = member.bandwidth;
      sent.push_back(results[i]->bytes_sent);
    }
    return to_seconds(swarm.runtime().now() - start) - matchmaking;
  }
  std::vector<std::optional<double>> said;
  std::vector<std::uint64_t> sent;
};

TEST_F(MeasuredBandwidth, ASlowLinkIsGivenLessAndTheRoundGetsFaster) {
  add_peers(4, Bandwidth::measured(), 3);
  const double equal = average();
  for (const auto& bandwidth : said) EXPECT_FALSE(bandwidth) << "nothing is known yet";
  const auto sent_at_first = sent;
  double later = 0;
  for (int round = 0; round < 4; ++round) later = average();
  for (std::size_t i = 0; i < 4; ++i) ASSERT_TRUE(said[i]);
  EXPECT_NEAR(*said[3], kSlow, 0.3 * kSlow);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_GT(*said[i], 2 * kSlow) << "not dragged down by the slow one";
  // With equal shares it sends 1.5 times the tensors, its own parts and its replies; a mere sender sends them once.
  EXPECT_LT(static_cast<double>(sent[3]), 0.7 * static_cast<double>(sent_at_first[3]));
  EXPECT_LT(later, 0.85 * equal);
  EXPECT_LT(later, 1.3 * kValues * sizeof(float) / kSlow) << "near what any division takes";
}

TEST_F(MeasuredBandwidth, LinksThatAreAlikeGoOnSharingAlike) {
  add_peers(3, Bandwidth::measured(), std::nullopt);
  const double equal = average();
  double later = 0;
  for (int round = 0; round < 4; ++round) later = average();
  EXPECT_LT(later, 1.2 * equal);
}

TEST_F(MeasuredBandwidth, ALinkThatRecoversIsBelievedAgain) {
  add_peers(3, Bandwidth::measured(), 2);
  for (int round = 0; round < 3; ++round) average();
  ASSERT_TRUE(said[2]);
  EXPECT_LT(*said[2], 1.3 * kSlow);
  swarm.fabric().set_line(sim::Swarm::ip(3), {kFast, kFast});
  for (int round = 0; round < 4; ++round) average();
  EXPECT_GT(*said[2], 2 * kSlow);
}

TEST_F(MeasuredBandwidth, ACapIsWhatTheLinkCarries) {
  add_peers(3, Bandwidth::measured(), std::nullopt);
  swarm.set_limits({.upload = kSlow, .download = kSlow});
  add_peers(1, Bandwidth::measured(), std::nullopt);
  const double equal = average();
  double later = 0;
  for (int round = 0; round < 3; ++round) later = average();
  ASSERT_TRUE(said[3]);
  EXPECT_LE(*said[3], kSlow);
  EXPECT_GE(*said[3], 0.7 * kSlow);
  EXPECT_LT(later, 0.85 * equal);
}

TEST_F(MeasuredBandwidth, IsShownAsAMetric) {
  add_peers(2, Bandwidth::measured(), std::nullopt);
  for (int round = 0; round < 2; ++round) average();
  ASSERT_TRUE(said[0]);
  EXPECT_NE(swarm.runtime().metrics().text().find("cohive_averaging_bandwidth_bytes_per_second{averager=\"test\"}"),
            std::string::npos);
}

}  // namespace
}  // namespace cohive::averaging
