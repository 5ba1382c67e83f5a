// Averagers on a simulated network, for tests that let them average and look at their tensors.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/offences.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::averaging {

/// A peer with one Dht and one averager over two tensors.
struct Peer {
  std::vector<float> a, b;
  std::unique_ptr<Dht> dht;
  std::unique_ptr<Averager> averager;
};

class Averaging : public ::testing::Test {
 protected:
  void TearDown() override {
    if (!has_hostile_peers) EXPECT_EQ(sim::offences(swarm.runtime()), 0) << "among honest peers";
  }
  /// A peer without an averager.
  Peer& join(bool client = false) {
    host_options.routing_server = !client;
    auto& host = swarm.add_host(host_options, !client);
    auto peer = std::make_unique<Peer>();
    DhtOptions dht_options;
    dht_options.client_mode = client;
    if (authorizer_of) dht_options.authorizer = authorizer_of(host);
    peer->dht = std::make_unique<Dht>(host, dht_options);
    std::vector<Multiaddr> initial;
    if (!peers.empty()) initial = {swarm.host(0).visible_addresses().front()};
    auto started = swarm.run(peer->dht->start(initial));
    EXPECT_TRUE(started || may_fail_to_join) << started.error();
    peers.push_back(std::move(peer));
    return *peers.back();
  }
  Peer& add(AveragerOptions options, std::size_t size = 1000) {
    const auto number = static_cast<float>(peers.size());
    Peer& peer = join(options.mode == PeerMode::client);
    peer.a.assign(size, number);
    peer.b.assign(7, 10 * number);
    options.prefix = "test";
    peer.averager = std::make_unique<Averager>(
        *peer.dht, std::vector<AveragedTensor>{{peer.a, {static_cast<std::uint32_t>(size)}}, {peer.b, {7}}}, options);
    peer.averager->start();
    return peer;
  }
  AveragerOptions quick() {
    AveragerOptions options;
    options.min_matchmaking_time = 2s;
    options.request_timeout = 1s;
    options.part_size_bytes = 512;
    options.sender_timeout = 3s;
    options.reducer_timeout = 6s;
    options.allreduce_timeout = 20s;
    return options;
  }
  /// What a peer does in one round.
  struct Step {
    RoundOptions round = {};
    double weight = 1;
  };
  /// The mean of the first tensors of all peers.
  std::vector<double> mean_of_all() const {
    std::vector<double> mean(peers[0]->a.size());
    for (const auto& peer : peers)
      for (std::size_t k = 0; k < mean.size(); ++k)
        mean[k] += static_cast<double>(peer->a[k]) / static_cast<double>(peers.size());
    return mean;
  }
  std::vector<Result<RoundReport>> step_all(std::vector<Step> steps) {
    std::vector<Task<Result<RoundReport>>> tasks;
    for (std::size_t i = 0; i < steps.size(); ++i)
      tasks.push_back(peers[i]->averager->step(steps[i].round, steps[i].weight));
    return swarm.run(when_all(swarm.runtime(), std::move(tasks)));
  }
  std::vector<Step> same(RoundOptions round = {}) { return std::vector<Step>(peers.size(), Step{round}); }
  /// Begins a round of every peer; its trigger is up to the test.
  std::vector<Round> begin_all(RoundOptions options = {}) {
    std::vector<Round> rounds;
    for (auto& peer : peers) rounds.push_back(peer->averager->begin(options));
    return rounds;
  }
  static Task<void> keep_result(Averager& averager, RoundOptions options, std::optional<Result<RoundReport>>& out) {
    out.emplace(co_await averager.step(options));
  }
  /// Crashes the fourth of four peers while parts are on their way on slow links: the others lose some of them.
  void crash_the_fourth_amid(std::vector<Round>& rounds) {
    swarm.pass(400ms);
    swarm.fabric().crash(sim::Swarm::ip(4));
    for (std::size_t i = 0; i < 3; ++i) {
      const auto result = swarm.run(rounds[i].result());
      ASSERT_TRUE(result) << result.error();
      ASSERT_GT(result->parts_failed, 0u);
      ASSERT_LT(result->parts_failed, result->parts_total);
    }
  }
  PeerId id(std::size_t peer) const { return peers[peer]->dht->host().id(); }

  sim::Swarm swarm{{.seed = 21}};
  std::function<std::shared_ptr<dht::Authorizer>(p2p::Host&)> authorizer_of;  // of peers that join from now on
  p2p::HostOptions host_options;                                              // of peers that join from now on
  bool may_fail_to_join = false;
  bool has_hostile_peers = false;  // which some peer is to notice
  std::vector<std::unique_ptr<Peer>> peers;
};

}  // namespace cohive::averaging
