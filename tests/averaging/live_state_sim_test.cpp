// States that are read where a model has them, and models that change meanwhile.
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

/// A model in memory of its own, which shares its state by reference.
class SharedModelMemory : public SharedStates {
 protected:
  void fill(std::uint8_t content, std::size_t tensors = kTensors) {
    memory.resize(tensors);
    for (std::size_t i = 0; i < tensors; ++i) memory[i].assign(kTensorBytes, static_cast<std::uint8_t>(content + i));
  }
  StateSharer& sharing_donor() {
    StateSharer& peer = add();
    peer.sharing->set_provider([this]() -> std::optional<SharedState> { return share(); });
    peer.sharing->set_priority(5);
    peer.sharing->start();
    return peer;
  }
  SharedState share() {
    SharedState state{msgpack::Map{{{"epoch", 5}}}, {}};
    std::vector<LiveTensors::Source> sources;
    for (const auto& tensor : memory) {
      sources.push_back({tensor.data(), tensor.size()});
      state.tensors.push_back({codec::DType::uint8, {kTensorBytes}, false, {}});
    }
    live = std::make_shared<LiveTensors>(std::move(sources));
    state.reader = std::make_shared<StateReader>(live);
    return state;
  }
  void settle() { swarm.run(LiveTensors::settle(swarm.runtime(), live)); }
  void await_download() {
    for (Duration passed = 0s; passed < 600s && !result; passed += 1s) swarm.pass(1s);
    swarm.pass(1s);  // the donor learns that its call has ended
  }

  std::vector<Bytes> memory;
  std::shared_ptr<LiveTensors> live;
};

TEST_F(SharedModelMemory, IsReadWhereItIsAndNotCopied) {
  add();
  fill(1);
  sharing_donor();
  const auto loaded = download(newcomer());
  ASSERT_TRUE(loaded) << loaded.error();
  expect_same(*loaded, state_with(5, 1));
  swarm.pass(1s);  // the donor learns that its call has ended
  settle();
  EXPECT_EQ(live->copied_bytes(), 0u) << "nobody reads it any more";
}

TEST_F(SharedModelMemory, ThatChangesIsDownloadedAsItWas) {
  add();
  fill(1);
  sharing_donor();
  begin(newcomer());
  swarm.pass(7s);
  ASSERT_FALSE(result);
  settle();
  const std::uint64_t left = live->kept_bytes();
  EXPECT_GT(left, kTensorBytes);
  EXPECT_LT(left, (kTensors - 2) * kTensorBytes) << "what the newcomer has had is not kept for it";
  fill(100);
  swarm.pass(2s);
  EXPECT_LT(live->kept_bytes(), left - kTensorBytes) << "it goes as it is sent";
  await_download();
  ASSERT_TRUE(result && *result) << (result ? (*result).error().message() : "");
  expect_same(**result, state_with(5, 1));
  EXPECT_EQ(live->kept_bytes(), 0u);
}

TEST_F(SharedModelMemory, ThatChangesIsSharedInTheExchangeOfHivemindAsItWas) {
  add();
  fill(1);
  const PeerId donor = sharing_donor().id();
  StateSharer& peer = newcomer();
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
  downloads.spawn([](StateSharer& me, PeerId from, std::optional<Result<DownloadedState>>& out) -> Task<void> {
    DownloadReport report;
    out.emplace(co_await receive_state(me.dht->host(), from, "test::DecentralizedAverager.rpc_download_state", 15s,
                                       std::uint64_t{1} << 30, report));
  }(peer, donor, result));
  swarm.pass(4s);
  ASSERT_FALSE(result);
  settle();
  EXPECT_LT(live->kept_bytes(), (kTensors - 2) * kTensorBytes);
  fill(100);
  await_download();
  ASSERT_TRUE(result && *result) << (result ? (*result).error().message() : "");
  expect_same(**result, state_with(5, 1));
  EXPECT_EQ(live->kept_bytes(), 0u);
}

TEST_F(SharedModelMemory, ThatChangesWhileDonorsAreComparedIsAskedForAnew) {
  add();
  fill(1);
  sharing_donor();
  begin(newcomer());
  while (!live || !live->in_use()) swarm.pass(10ms);
  settle();
  EXPECT_EQ(live->copied_bytes(), 0u) << "the newcomer has nothing of it yet";
  fill(100);
  await_download();
  ASSERT_TRUE(result && *result) << (result ? (*result).error().message() : "");
  expect_same(**result, state_with(5, 100));
  EXPECT_TRUE((**result).liars.empty());
}

TEST_F(SharedModelMemory, ThatChangesWhileItIsHashedIsHashedAnew) {
  add();
  fill(1);
  StateSharer& donor = sharing_donor();
  int asked = 0;
  donor.sharing->set_provider([&]() -> std::optional<SharedState> {
    auto state = share();
    if (++asked == 1) live->drop();
    return state;
  });
  const auto loaded = download(newcomer());
  ASSERT_TRUE(loaded) << loaded.error();
  expect_same(*loaded, state_with(5, 1));
  EXPECT_EQ(asked, 2);
}

TEST_F(SharedModelMemory, ThatIsWrittenToWithoutAWordMakesNoLiarOfItsDonor) {
  add();
  fill(1);
  StateSharer& donor = sharing_donor();
  begin(newcomer());
  swarm.pass(5s);
  const auto first = live;
  fill(100);
  await_download();
  ASSERT_TRUE(result && *result) << (result ? (*result).error().message() : "");
  expect_same(**result, state_with(5, 100));
  EXPECT_TRUE((**result).liars.empty());
  EXPECT_TRUE(first->is_spoiled()) << "whoever gives the state out is told";
  EXPECT_FALSE(swarm.host(0).reputation().is_banned(donor.id()));
}

TEST_F(SharedModelMemory, IsNotKeptForEverForAReaderThatIsSlow) {
  add();
  fill(1, 40);
  sharing_donor();
  StateSharer& peer = newcomer();
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 18e3});
  DownloadOptions patient{.limit = 24h};
  downloads.spawn(
      [](StateSharing& sharing, DownloadOptions how, std::optional<Result<DownloadedState>>& out) -> Task<void> {
        out.emplace(co_await sharing.download(std::move(how)));
      }(*peer.sharing, patient, result));
  swarm.pass(60s);
  settle();
  const auto first = live;
  ASSERT_GT(first->kept_bytes(), 30 * kTensorBytes);
  swarm.pass(28min);
  EXPECT_GT(first->kept_bytes(), 0u);
  swarm.pass(3min);
  EXPECT_EQ(first->kept_bytes(), 0u);
}

TEST_F(SharedModelMemory, IsKeptForTheSlowestOfItsReaders) {
  fill(1, 2);
  (void)share();
  auto fast = std::make_unique<StateReader>(live), slow = std::make_unique<StateReader>(live);
  fast->done(0, 0, kTensorBytes);
  settle();
  fill(100, 2);
  EXPECT_EQ(live->copied_bytes(), 16 * LiveTensors::kChunk) << "eight chunks of each tensor";
  EXPECT_FALSE(fast->read(0, 0, 100)) << "it has had it";
  EXPECT_EQ(slow->read(0, 0, 100)->view()[99], 1);
  EXPECT_EQ(slow->read(1, LiveTensors::kChunk - 5, 10)->view()[9], 2) << "across chunks";
  slow->done(0, 0, kTensorBytes);
  EXPECT_EQ(live->kept_bytes(), 8 * LiveTensors::kChunk);
  slow.reset();
  EXPECT_EQ(live->kept_bytes(), 8 * LiveTensors::kChunk) << "the other one still needs it";
  fast.reset();
  EXPECT_EQ(live->kept_bytes(), 0u);
}

TEST_F(SharedModelMemory, ValuesThatAreAllTheSameNeedNoMemory) {
  const float value = 0.5f;
  live = std::make_shared<LiveTensors>(std::vector<LiveTensors::Source>{
      {reinterpret_cast<const std::uint8_t*>(&value), 1000 * sizeof value, nullptr, sizeof value}});
  const StateReader reader(live);
  const auto bytes = reader.read(0, 400, 800);
  ASSERT_TRUE(bytes);
  std::vector<float> values(200);
  std::memcpy(values.data(), bytes->data(), bytes->size());
  EXPECT_EQ(values, std::vector<float>(200, value));
}

}  // namespace
}  // namespace cohive::averaging
