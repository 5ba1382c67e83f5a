// A donor serves few downloads at once; calls that do not read hold none of their slots.
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

class UploadSlots : public SharedStates {
 protected:
  /// Calls that ask for nothing, or for the state without reading it.
  static Task<void> hold(p2p::Host& host, PeerId donor, std::string method, bool ask) {
    const Deadline never = Deadline::never();
    auto call = co_await rpc::open_call(host, donor, "test::DecentralizedAverager." + method, host.runtime().after(5s));
    if (!call) co_return;
    if (ask) {
      (void)co_await (*call)->send(ByteView(), never);
      (void)co_await (*call)->finish(never);
    }
    co_await host.runtime().sleep_for(24h);
  }
  void connect_to_donor(p2p::Host& host) {
    ASSERT_TRUE(swarm.run(host.connect(swarm.host(1).visible_addresses().front(), swarm.after(5s))));
  }

  template <class Peer>
  void expect_a_quick_download(Peer& peer) {
    const TimePoint start = swarm.runtime().now();
    auto loaded = download(peer);
    ASSERT_TRUE(loaded) << loaded.error();
    EXPECT_LE(swarm.runtime().now() - start, 10s);
  }
};

TEST_F(UploadSlots, CallsThatAskForNothingHoldNone) {
  add();
  const SharedState state = state_with(5, 1);
  const PeerId id = donor(state, 5).id();
  auto& silent = swarm.add_host();
  connect_to_donor(silent);
  for (const char* method : {"rpc_download_state", "rpc_download_pieces"})
    for (int i = 0; i < 8; ++i) downloads.spawn(hold(silent, id, method, false));
  auto& peer = newcomer();
  expect_a_quick_download(peer);
}

TEST_F(UploadSlots, OnePeerHasOne) {
  add();
  const PeerId id = donor(state_with(5, 1), 5).id();
  auto& greedy = swarm.add_host();
  connect_to_donor(greedy);
  for (int i = 0; i < 8; ++i) downloads.spawn(hold(greedy, id, "rpc_download_state", true));
  auto& peer = newcomer();
  expect_a_quick_download(peer);
}

TEST_F(UploadSlots, AReaderThatMakesNoProgressLosesItsSlot) {
  add();
  const PeerId id = donor(state_with(5, 1), 5).id();
  for (int i = 0; i < 4; ++i) {
    auto& slow = swarm.add_host();
    connect_to_donor(slow);
    swarm.fabric().set_link(sim::Swarm::ip(2), sim::Swarm::ip(swarm.size()), {.latency = 10ms, .bandwidth = 5e3});
    downloads.spawn([](p2p::Host& host, PeerId to) -> Task<void> {
      const Deadline never = Deadline::never();
      auto call = co_await rpc::open_call(host, to, "test::DecentralizedAverager.rpc_download_state", never);
      (void)co_await (*call)->send(ByteView(), never);
      (void)co_await (*call)->finish(never);
      for (;;) {
        auto record = co_await (*call)->receive(never);
        if (!record || !*record) co_return;
      }
    }(slow, id));
  }
  swarm.pass(5s);
  auto& peer = newcomer();
  swarm.pass(3min);  // ten megabytes would take half an hour each
  expect_a_quick_download(peer);
}

}  // namespace
}  // namespace cohive::averaging
