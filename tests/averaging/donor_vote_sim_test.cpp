// Donors vote: the state of one that agrees with no other is not taken.
#include <random>

#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

/// Values that differ a little from donor to donor, as those of peers that average do, or are drawn anew.
SharedState model(int epoch, std::uint64_t seed, double drift) {
  constexpr std::size_t kValues = 100'000;
  SharedState state{msgpack::Map{{{"epoch", epoch}}}, {}};
  std::mt19937_64 same(1), own(seed);
  std::normal_distribution<float> normal;
  for (int t = 0; t < 3; ++t) {
    codec::Tensor tensor{codec::DType::float32, {kValues}, t == 0, Slice::uninitialised(4 * kValues)};
    auto* values = reinterpret_cast<float*>(tensor.data.mutable_data());
    for (std::size_t i = 0; i < kValues; ++i)
      values[i] = (drift < 1 ? normal(same) : normal(own)) + static_cast<float>(drift) * normal(own);
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

TEST_F(SharedStates, ADonorWithAModelOfItsOwnIsOutvotedByThoseThatAgree) {
  add();
  for (int i = 0; i < 3; ++i) donor(model(5 + i % 2, 10 + i, 0.01), 5 + i % 2);
  StateSharer& liar = donor(model(7, 99, 1), 7);
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto& late = newcomer();
    const auto state = download(late, {.max_priority = 7});
    ASSERT_TRUE(state) << state.error();
    EXPECT_EQ(state->metadata, msgpack::Value(msgpack::Map{{{"epoch", 6}}})) << "the best of those that agree";
    EXPECT_FALSE(state->contributed.contains(liar.id()));
  }
}

/// As in a run of many donors with lines of homes: the liar is seldom among those that vote.
TEST_F(SharedStates, AFastDonorThatHasNotVotedTakesNoPlaceOfSlowOnesThatAgree) {
  const auto share = [this](int epoch, std::uint8_t content, std::uint8_t own, double priority) -> StateSharer& {
    SharedState state = state_with(epoch, content);
    state.tensors.resize(6);
    state.tensors[0].data.mutable_data()[0] = own;  // no two have the same root
    return donor(std::move(state), priority);
  };
  add();
  std::vector<std::size_t> honest;
  const auto add_honest = [&](double priority) {
    share(5, 1, static_cast<std::uint8_t>(100 + peers.size()), priority);
    honest.push_back(peers.size());
  };
  for (int i = 0; i < 3; ++i) add_honest(9);
  StateSharer& liar = share(7, 99, 0, 8);
  for (int i = 0; i < 7; ++i) add_honest(5);
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto& late = newcomer();
    for (const std::size_t number : honest)
      swarm.fabric().set_link(sim::Swarm::ip(number), sim::Swarm::ip(peers.size()),
                              {.latency = 10ms, .bandwidth = 4e4});
    const auto state = download(late);
    ASSERT_TRUE(state) << state.error();
    EXPECT_EQ(state->metadata, msgpack::Value(msgpack::Map{{{"epoch", 5}}}));
    EXPECT_NE(state->donor, liar.id());
  }
}

TEST_F(SharedStates, ADonorOfTheRightModelAndAFarEpochIsOutvoted) {
  add();
  for (int i = 0; i < 3; ++i) donor(model(5 + i % 2, 10 + i, 0.01), 5 + i % 2);
  StateSharer& liar = donor(model(1'000'000, 10, 0.01), 7);
  const auto near = [](const msgpack::Value& a, const msgpack::Value& b) {
    const auto epoch = [](const msgpack::Value& v) { return *v.get_if<msgpack::Map>()->find("epoch")->as_number(); };
    return std::abs(epoch(a) - epoch(b)) <= 2;
  };
  auto& late = newcomer();
  const auto state = download(late, {.alike = near});
  ASSERT_TRUE(state) << state.error();
  EXPECT_EQ(state->metadata, msgpack::Value(msgpack::Map{{{"epoch", 6}}}));
  EXPECT_FALSE(state->contributed.contains(liar.id()));
}

TEST_F(SharedStates, APeerThatHasAveragedWithThisOneIsBelievedMoreThanStrangersThatAgree) {
  add();
  const SharedState honest = state_with(5, 1), poison = state_with(6, 99);
  const PeerId acquaintance = donor(honest, 5).id();
  for (int i = 0; i < 4; ++i) donor(poison, 6);
  auto& stranger = newcomer();
  expect_same(download(stranger, {.max_priority = 7}).value(), poison);
  auto& late = newcomer();
  late.dht->host().reputation().record_success(acquaintance);
  expect_same(download(late, {.max_priority = 7}).value(), honest);
}

TEST_F(SharedStates, AnyNumberOfDeclarationsPushesNoAcquaintanceOut) {
  add();
  const SharedState honest = state_with(5, 1);
  const PeerId acquaintance = donor(honest, 5).id();
  for (int i = 0; i < 3; ++i) donor(state_with(6, 99), 6);
  Dht& stranger = *add().dht;
  std::vector<dht::StoreItem> names;
  for (int i = 0; i < 300; ++i) {
    const auto nobody = PeerId::of_public_key(as_bytes("nobody " + std::to_string(i)));
    names.push_back({"test.all_averagers", msgpack::Value::bin(nobody.bytes()), 6.0, stranger.now() + 600});
  }
  (void)swarm.run(stranger.store_many(std::move(names), swarm.after(30s)));
  for (int attempt = 0; attempt < 5; ++attempt) {
    auto& late = newcomer();
    late.dht->host().reputation().record_success(acquaintance);
    const auto state = download(late, {.max_priority = 7, .known = {{acquaintance, 5.0}}});
    ASSERT_TRUE(state) << state.error();
    expect_same(*state, honest);
  }
}

TEST_F(SharedStates, OutvotedDonorsAreNotAskedWhenTheOthersAreLost) {
  add();
  for (int i = 0; i < 2; ++i) donor(state_with(5, 1), 5);
  donor(model(7, 99, 1), 7);
  begin(newcomer());
  swarm.pass(3s);
  swarm.fabric().kill(sim::Swarm::ip(2));
  swarm.fabric().kill(sim::Swarm::ip(3));
  swarm.pass(1s);
  EXPECT_FALSE(result) << "not that of the liar";
}

TEST_F(SharedStates, DonorsThatSleepHoldNoVoteUp) {
  add();
  for (int i = 0; i < 2; ++i) donor(state_with(5, 1), 5);
  DownloadOptions how;
  for (int i = 0; i < 2; ++i) how.asleep.push_back(donor(state_with(5, 1), 5).id());
  auto& late = newcomer();
  for (const std::size_t sleeper : {4, 5}) swarm.fabric().crash(sim::Swarm::ip(sleeper));
  for (std::size_t i = 1; i <= 4; ++i) {  // it has averaged with them
    late.dht->host().reputation().record_success(peers[i]->id());
    how.known.emplace_back(peers[i]->id(), 5);
  }
  const TimePoint start = swarm.runtime().now();
  const auto state = download(late, how);
  ASSERT_TRUE(state) << state.error();
  EXPECT_LT(swarm.runtime().now() - start, 1500ms) << "the state itself, and a short look at the DHT";
}

/// A donor that is lost half way is gone on for by one that holds the same bytes, if there is one awake.
TEST_F(SharedStates, HelpersThatSleepHoldNoDownloadUp) {
  add();
  donor(state_with(5, 1), 9);
  donor(state_with(5, 1), 8);
  donor(state_with(4, 3), 1);
  auto& late = newcomer();
  swarm.fabric().crash(sim::Swarm::ip(3));
  begin(late);
  swarm.pass(10s);
  swarm.fabric().kill(sim::Swarm::ip(2));
  const TimePoint start = swarm.runtime().now();
  for (int i = 0; i < 60 && !result; ++i) swarm.pass(1s);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ((*result)->donor, peers[3]->id());
  EXPECT_LE(swarm.runtime().now() - start, 20s) << "most of it for the other state";
}

TEST_F(SharedStates, ManySybilsOfOneNetworkHaveOneVoice) {
  const auto at = [&](const std::string& ip) -> StateSharer& {  // public addresses, of which a /24 is one network
    auto peer = std::make_unique<StateSharer>();
    peer->dht = std::make_unique<Dht>(swarm.add_host_at(ip));
    std::vector<Multiaddr> initial;
    if (!peers.empty()) initial = {swarm.host(0).visible_addresses().front()};
    EXPECT_TRUE(swarm.run(peer->dht->start(initial)));
    peer->sharing = std::make_unique<StateSharing>(*peer->dht, StateSharingOptions{.prefix = "test"});
    peers.push_back(std::move(peer));
    return *peers.back();
  };
  const auto share = [](StateSharer& peer, SharedState state, double priority) {
    peer.sharing->set_provider([state]() -> std::optional<SharedState> { return state; });
    peer.sharing->set_priority(priority);
    peer.sharing->start();
  };
  for (int i = 0; i < 2; ++i) share(at("93.0." + std::to_string(i) + ".1"), state_with(5, 1), 5);
  for (int i = 1; i <= 3; ++i) share(at("95.0.0." + std::to_string(i)), state_with(7, 99), 7);
  swarm.pass(2s);
  const auto state = download(at("97.0.0.1"), {.max_priority = 7});
  ASSERT_TRUE(state) << state.error();
  expect_same(*state, state_with(5, 1));
}

}  // namespace
}  // namespace cohive::averaging
