// Newcomers that reach a donor of the state only through relays that carry little.
#include "limited_relay.hpp"
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

class RelayedState : public SharedStates {
 protected:
  /// A peer behind a router, see LimitedRelayHost.
  StateSharer& add_hidden(bool open) {
    auto peer = std::make_unique<StateSharer>();
    peer->dht = std::make_unique<Dht>(relay_.add_hidden(peers.size() + 1, open));
    swarm.run(peer->dht->start({relay_.address()})).value();
    StateSharingOptions sharing;
    sharing.prefix = "test";
    peer->sharing = std::make_unique<StateSharing>(*peer->dht, sharing);
    peers.push_back(std::move(peer));
    swarm.pass(10s);  // until its relay is found
    return *peers.back();
  }
  StateSharer& add_donor(SharedState state, bool open) {
    StateSharer& peer = add_hidden(open);
    peer.sharing->set_provider([state]() -> std::optional<SharedState> { return state; });
    peer.sharing->set_priority(5);
    peer.sharing->start();
    swarm.pass(5s);
    return peer;
  }
  /// A donor that sends its state as hivemind's do, as far as the relay lets it.
  StateSharer& add_python_like_donor(const SharedState& state, bool open) {
    StateSharer& peer = add_hidden(open);
    peer.sharing.reset();
    peer.server = std::make_unique<rpc::Server>(peer.dht->host());
    peer.server->add_streaming("test::DecentralizedAverager.rpc_download_state",
                               [this, state](rpc::ServerStream& stream) -> Task<Result<>> {
                                 auto sent = co_await send_state(swarm.runtime(), stream, state, codec::Codec::none);
                                 if (!sent) co_await swarm.runtime().sleep_for(10min);  // its daemon does not tell it
                                 co_return ok();
                               });
    declare(peer, 9);
    swarm.pass(5s);
    return peer;
  }
  /// A state of so many tensors of 40 kB.
  static SharedState small_state(std::size_t tensors) {
    SharedState state{msgpack::Map{{{"epoch", 3}}}, {}};
    for (std::size_t i = 0; i < tensors; ++i) {
      state.tensors.push_back({codec::DType::uint8, {40'000}, false, Slice::uninitialised(40'000)});
      std::fill_n(state.tensors.back().data.mutable_data(), 40'000, static_cast<std::uint8_t>(i));
    }
    return state;
  }
  void expect_no_room(StateSharer& newcomer) {
    const TimePoint start = swarm.runtime().now();
    const auto found = download(newcomer);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error(), Errc::narrow_path) << found.error();
    ASSERT_TRUE(found.error().peer());
    EXPECT_EQ(*found.error().peer(), peers.front()->id());
    EXPECT_LT(swarm.runtime().now() - start, 25s);
  }

 private:
  LimitedRelayHost relay_{swarm};
};

TEST_F(RelayedState, OfPeersThatCanPunchComesOverTheirDirectConnection) {
  const auto state = state_with(3, 20);
  add_donor(state, true);
  const auto found = download(add_hidden(true));
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
}

TEST_F(RelayedState, ThatFitsIsTakenThroughTheRelay) {
  const auto state = small_state(2);
  add_donor(state, false);
  const auto found = download(add_hidden(false));
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
}

TEST_F(RelayedState, ThatTheRelayDoesNotCarryIsRefusedBeforeItStalls) {
  add_donor(state_with(3, 20), false);
  StateSharer& newcomer = add_hidden(false);
  expect_no_room(newcomer);
}

TEST_F(RelayedState, OfAPythonLikeDonorComesOverTheDirectConnection) {
  const auto state = state_with(3, 20);
  add_python_like_donor(state, true);
  const auto found = download(add_hidden(true));
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
}

TEST_F(RelayedState, OfAPythonLikeDonorIsGivenUpAtTheTensorThatDoesNotFit) {
  add_python_like_donor(state_with(3, 20), false);
  StateSharer& newcomer = add_hidden(false);
  expect_no_room(newcomer);
}

}  // namespace
}  // namespace cohive::averaging
