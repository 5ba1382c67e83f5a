// Donors of a state and newcomers on a simulated network.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "averaging/states/state_transfer.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::averaging {

inline constexpr std::size_t kTensors = 10, kTensorBytes = 1'000'000;

/// A state of ten tensors of a megabyte; every value of tensor i is `content` + i.
inline SharedState state_with(int epoch, std::uint8_t content) {
  SharedState state{msgpack::Map{{{"epoch", epoch}}}, {}};
  for (std::size_t i = 0; i < kTensors; ++i) {
    state.tensors.push_back({codec::DType::uint8, {kTensorBytes}, false, Slice::uninitialised(kTensorBytes)});
    std::fill_n(state.tensors.back().data.mutable_data(), kTensorBytes, static_cast<std::uint8_t>(content + i));
  }
  return state;
}

struct StateSharer {
  std::unique_ptr<Dht> dht;
  std::unique_ptr<StateSharing> sharing;
  std::unique_ptr<rpc::Server> server;  // of one that does not share as we do
  PeerId id() const { return dht->host().id(); }
};

class SharedStates : public ::testing::Test {
 protected:
  StateSharer& add(StateSharingOptions options = {}) {
    auto peer = std::make_unique<StateSharer>();
    auto& host = swarm.add_host();
    peer->dht = std::make_unique<Dht>(host);
    std::vector<Multiaddr> initial;
    if (!peers.empty()) initial = {swarm.host(0).visible_addresses().front()};
    auto started = swarm.run(peer->dht->start(initial));
    EXPECT_TRUE(started) << started.error();
    options.prefix = "test";
    peer->sharing = std::make_unique<StateSharing>(*peer->dht, options);
    peers.push_back(std::move(peer));
    return *peers.back();
  }
  StateSharer& donor(SharedState state, double priority, StateSharingOptions options = {}) {
    StateSharer& peer = add(options);
    peer.sharing->set_provider([state]() -> std::optional<SharedState> { return state; });
    peer.sharing->set_priority(priority);
    peer.sharing->start();
    return peer;
  }
  /// A donor with handlers of its own, as a Python peer or a hostile one has.
  StateSharer& foreign_donor(double priority, const char* method, rpc::StreamingHandler handler) {
    StateSharer& peer = add();
    peer.sharing.reset();
    peer.server = std::make_unique<rpc::Server>(peer.dht->host());
    peer.server->add_streaming(std::string("test::DecentralizedAverager.") + method, std::move(handler));
    declare(peer, priority);
    return peer;
  }
  void declare(StateSharer& peer, double priority) {
    (void)swarm.run(
        peer.dht->store("test.all_averagers", msgpack::Value::bin(peer.id().bytes()), priority, peer.dht->now() + 600));
  }
  StateSharer& newcomer() {
    swarm.pass(2s);  // the donors' declarations spread
    StateSharer& peer = add();
    peer.sharing->start();
    return peer;
  }
  Result<DownloadedState> download(StateSharer& peer, DownloadOptions options = {}) {
    return swarm.run(peer.sharing->download(std::move(options)));
  }
  /// Begins a download on links of a megabyte a second.
  void begin(StateSharer& peer) {
    swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
    downloads.spawn([](StateSharing& sharing, std::optional<Result<DownloadedState>>& out) -> Task<void> {
      out.emplace(co_await sharing.download());
    }(*peer.sharing, result));
  }
  static void expect_same(const DownloadedState& state, const SharedState& wanted) {
    EXPECT_EQ(state.metadata, wanted.metadata);
    ASSERT_EQ(state.tensors.size(), wanted.tensors.size());
    for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
      EXPECT_EQ(state.tensors[i].shape, wanted.tensors[i].shape);
      EXPECT_EQ(state.tensors[i].dtype, wanted.tensors[i].dtype);
      EXPECT_TRUE(std::ranges::equal(state.tensors[i].data.view(), wanted.tensors[i].data.view())) << "tensor " << i;
    }
  }

  sim::Swarm swarm{{.seed = 31}};
  std::vector<std::unique_ptr<StateSharer>> peers;
  TaskGroup downloads{swarm.runtime()};
  std::optional<Result<DownloadedState>> result;
};

}  // namespace cohive::averaging
