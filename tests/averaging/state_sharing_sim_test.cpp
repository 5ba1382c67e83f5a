// Newcomers download the state: from several cohive donors at once, or from one donor as hivemind does it.
#include "cohive/testing/offences.hpp"
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

TEST_F(SharedStates, TheStateOfTheBestDonorIsTakenAndTheNextOneTakesOver) {
  const auto state_of = [](int epoch) {
    const auto content = static_cast<std::uint8_t>(epoch);
    return SharedState{msgpack::Map{{{"epoch", epoch}}},
                       {{codec::DType::float32, {50'000}, true, Slice::copy_of(Bytes(200'000, content))},
                        {codec::DType::float32, {0}, false, Slice::uninitialised(0)},
                        {codec::DType::int64, {}, false, Slice::copy_of(Bytes{content, 0, 0, 0, 0, 0, 0, 0})},
                        {codec::DType::bfloat16, {2, 3}, false, Slice::copy_of(Bytes(12, 0x40))},
                        {codec::DType::boolean, {4}, false, Slice::copy_of(Bytes{0, 1, 1, 0})}}};
  };
  donor(state_of(1), 1);
  StateSharer& best = donor(state_of(2), 2);
  StateSharer& late = newcomer();
  const auto state = download(late);
  ASSERT_TRUE(state) << state.error();
  EXPECT_EQ(state->donor, best.id());
  EXPECT_TRUE(state->tensors[0].requires_grad);
  expect_same(*state, state_of(2));

  swarm.fabric().kill(sim::Swarm::ip(2));
  const auto again = download(late);
  ASSERT_TRUE(again) << again.error();
  EXPECT_EQ(again->donor, peers[0]->id());
  expect_same(*again, state_of(1));
}

TEST_F(SharedStates, DonorsOfTheSameBytesShareTheLoad) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 4; ++i) donor(state, 9 - i);
  StateSharer& late = newcomer();
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e6});
  std::uint64_t done = 0;
  std::size_t most_donors = 0;
  DownloadOptions options;
  options.on_progress = [&](const DownloadProgress& progress) {
    EXPECT_GE(progress.bytes_done, done) << "it never goes back";
    EXPECT_EQ(progress.bytes_total, kTensors * kTensorBytes);
    done = progress.bytes_done;
    most_donors = std::max(most_donors, progress.donors);
  };
  const auto found = download(late, options);
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
  EXPECT_EQ(found->contributed.size(), 4u);
  for (const auto& [peer, bytes] : found->contributed) EXPECT_GT(bytes, kTensors * kTensorBytes / 8) << peer;
  EXPECT_EQ(found->bytes, kTensors * kTensorBytes);
  EXPECT_EQ(done, kTensors * kTensorBytes);
  EXPECT_EQ(most_donors, 4u);
  EXPECT_TRUE(found->liars.empty());
}

TEST_F(SharedStates, OfItsLastTensorsOnlyWhatDiffersTravels) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 2; ++i) donor(state, 9);
  StateSharer& late = newcomer();
  DownloadOptions options;
  options.last = {state.tensors.end() - 2, state.tensors.end()};
  for (auto& tensor : options.last) tensor.data = Slice::copy_of(tensor.data);
  const auto same = download(late, options);
  ASSERT_TRUE(same) << same.error();
  EXPECT_EQ(same->bytes, 0u);

  options.last[1].data.mutable_data()[kPieceBytes] ^= 1;
  for (std::size_t at = 0; at < kTensorBytes; at += kPieceBytes) options.last[0].data.mutable_data()[at] ^= 1;
  const Bytes own(options.last[0].data.view().begin(), options.last[0].data.view().end());
  const auto found = download(late, options);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->bytes, kTensorBytes + kPieceBytes) << "all of the one, and a piece of the other";
  ASSERT_EQ(found->tensors.size(), state.tensors.size());
  for (std::size_t i = 0; i + 2 < state.tensors.size(); ++i) EXPECT_TRUE(found->tensors[i].data.empty()) << i;
  for (std::size_t i = state.tensors.size() - 2; i < state.tensors.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(found->tensors[i].data.view(), state.tensors[i].data.view())) << i;
  EXPECT_TRUE(std::ranges::equal(options.last[0].data.view(), own)) << "what the caller has stays";

  options.last[1].shape = {1};
  options.last[1].data = options.last[1].data.sub(0, 4);
  const auto other = download(late, options);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error(), Errc::no_donor) << other.error();
  EXPECT_EQ(sim::offences(swarm.runtime()), 0) << "a donor of another model does not lie";
}

TEST_F(SharedStates, APythonLikeDonorIsNotAskedForTensorsOfItsState) {
  const auto state = state_with(7, 1);
  foreign_donor(9, "rpc_download_state", [&](rpc::ServerStream& stream) {
    return send_state(swarm.runtime(), stream, state, codec::Codec::none);
  });
  DownloadOptions options;
  options.last = {state.tensors.back()};
  EXPECT_FALSE(download(newcomer(), options));
}

TEST_F(SharedStates, NoMoreDonorsAtOnceThanAllowed) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 3; ++i) donor(state, 9);
  StateSharer& late = newcomer();
  DownloadOptions options;
  options.max_donors = 1;
  options.on_progress = [](const DownloadProgress& progress) { EXPECT_LE(progress.donors, 1u); };
  const auto found = download(late, options);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->contributed.size(), 1u);
}

TEST_F(SharedStates, ALiarIsFoundAndNamedAndTheStateIsRight) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 2; ++i) donor(state, 9);
  // Shows honest hashes and gives other bytes: what it shares changes although it says it does not.
  auto honest = state_with(7, 1);
  honest.version = 1;
  auto spoilt = honest;
  for (auto& tensor : spoilt.tensors) {
    tensor.data = Slice::copy_of(tensor.data);
    for (std::size_t at = 0; at < kTensorBytes; at += kPieceBytes) tensor.data.mutable_data()[at] ^= 1;
  }
  StateSharer& liar = add();
  auto calls = std::make_shared<int>(0);
  liar.sharing->set_provider([=]() -> std::optional<SharedState> { return (*calls)++ == 0 ? honest : spoilt; });
  liar.sharing->set_priority(10);
  liar.sharing->start();

  StateSharer& first = newcomer();
  ASSERT_TRUE(download(first)->liars.empty());
  const auto found = download(first);
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, state);
  EXPECT_EQ(found->liars, std::vector{liar.id()});
  EXPECT_FALSE(found->contributed.contains(liar.id())) << "none of its bytes counted";
}

TEST_F(SharedStates, ADonorThatDiesCostsOnlyWhatItWasAboutToSend) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 3; ++i) donor(state, 9);
  begin(newcomer());
  swarm.pass(1s);
  swarm.fabric().kill(sim::Swarm::ip(2));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  expect_same(**result, state);
  EXPECT_EQ((*result)->bytes, kTensors * kTensorBytes) << "nothing that was there came again";
}

TEST_F(SharedStates, ADonorThatIsCutOffForWantOfMemoryIsNoLiar) {
  const auto state = state_with(7, 1);
  for (int i = 0; i < 2; ++i) donor(state, 9);
  StateSharer& late = newcomer();
  begin(late);
  swarm.pass(1s);
  p2p::Host& host = late.dht->host();
  const MemoryBudget& memory = host.memory();
  {
    const auto charge = [&](const PeerId& peer, const std::string& from, std::size_t bytes) {
      MemoryBudget::Charge charge(memory.account(peer, Multiaddr::from_text(from).value()));
      (void)charge.add(bytes);
      return charge;
    };
    const auto donors = charge(peers[0]->id(), "/ip4/5.0.0.1/tcp/4001", memory.total() / 4 * 3);
    const auto others = charge(host.id(), "/ip4/6.0.0.1/tcp/4001", memory.total() / 4);
    swarm.pass(1s);
  }
  swarm.pass(60s);
  EXPECT_GE(memory.cut_off(), 1u);
  ASSERT_TRUE(result && *result) << result->error();
  expect_same(**result, state);
  EXPECT_TRUE((*result)->liars.empty());
}

TEST_F(SharedStates, AnotherDonorOfTheSameBytesGoesOnWhereTheLastOneStopped) {
  StateSharingOptions halves;
  halves.codec = codec::Codec::float16;
  SharedState state{msgpack::Map{{{"epoch", 3}}}, {}};
  for (int i = 0; i < 4; ++i)
    state.tensors.push_back({codec::DType::float32, {250'000}, false, Slice::copy_of(Bytes(1'000'000, 0x40))});
  donor(state, 9, halves);
  begin(newcomer());
  swarm.pass(1s);
  donor(state, 5, halves);  // too late to be asked in the first pass
  swarm.fabric().kill(sim::Swarm::ip(1));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  EXPECT_EQ((*result)->donor, peers[2]->id());
  EXPECT_GT((*result)->resumed, 1'000'000u);
  EXPECT_EQ((*result)->bytes, 2'000'000u) << "in halves, once";
  EXPECT_EQ((*result)->contributed.size(), 2u);
  float value = 0;
  std::memcpy(&value, (*result)->tensors[3].data.data(), sizeof value);
  EXPECT_EQ(value, 3.00390625f) << "the half next to 3.0039215";
}

TEST_F(SharedStates, WhenRootsDifferTheBestDonorsStateIsTakenWhole) {
  const auto best = state_with(7, 1);
  auto other = state_with(7, 1);  // of the same epoch, but for the last bit of one value
  other.tensors[5].data = Slice::copy_of(other.tensors[5].data);
  other.tensors[5].data.mutable_data()[500'000] ^= 1;
  donor(best, 9);
  donor(other, 8);
  donor(other, 7);
  StateSharer& late = newcomer();
  const auto found = download(late);
  ASSERT_TRUE(found) << found.error();
  expect_same(*found, best);
  EXPECT_EQ(found->contributed.size(), 1u);
}

TEST_F(SharedStates, AResumedDownloadNeverMixesTwoStates) {
  auto best = state_with(7, 1), other = state_with(7, 1);
  for (std::size_t i : {0u, 1u, 2u, 6u}) {
    other.tensors[i].data = Slice::copy_of(other.tensors[i].data);
    other.tensors[i].data.mutable_data()[999'999] ^= 1;
  }
  donor(best, 9);
  donor(other, 5);
  begin(newcomer());
  swarm.pass(5s);  // about half of ten megabytes
  swarm.fabric().kill(sim::Swarm::ip(1));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  EXPECT_EQ((*result)->donor, peers[1]->id());
  expect_same(**result, other);
  EXPECT_GT((*result)->resumed, 2'000'000u) << "pieces of the same bytes are kept";
}

TEST_F(SharedStates, WhatCameOnTrustIsHashedBeforeAnotherDonorGoesOn) {
  // Shows honest hashes and gives other bytes in three of the tensors.
  auto honest = state_with(7, 1);
  honest.version = 1;
  auto spoilt = honest;
  for (std::size_t i = 0; i < 3; ++i) {
    spoilt.tensors[i].data = Slice::copy_of(spoilt.tensors[i].data);
    for (std::size_t at = 0; at < kTensorBytes; at += kPieceBytes) spoilt.tensors[i].data.mutable_data()[at] ^= 1;
  }
  StateSharer& alone = add();
  auto calls = std::make_shared<int>(0);
  alone.sharing->set_provider([=]() -> std::optional<SharedState> { return (*calls)++ == 0 ? honest : spoilt; });
  alone.sharing->set_priority(9);
  alone.sharing->start();
  StateSharer& late = newcomer();
  ASSERT_TRUE(download(late));
  begin(late);
  swarm.pass(5s);  // about half of ten megabytes
  donor(honest, 5);
  swarm.fabric().kill(sim::Swarm::ip(1));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  expect_same(**result, honest);
  EXPECT_EQ((*result)->donor, peers[2]->id());
  EXPECT_GT((*result)->resumed, 0u);
  EXPECT_GT((*result)->bytes, kTensors * kTensorBytes) << "the spoilt pieces came again";
}

TEST_F(SharedStates, NothingIsKeptOfAStateWithNothingInCommon) {
  const auto other = state_with(6, 100);
  donor(state_with(7, 1), 9);
  donor(other, 5);
  begin(newcomer());
  swarm.pass(3s);
  swarm.fabric().kill(sim::Swarm::ip(1));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  expect_same(**result, other);
  EXPECT_EQ((*result)->resumed, 0u);
  EXPECT_EQ((*result)->bytes, kTensors * kTensorBytes);
}

TEST_F(SharedStates, ADonorThatKnowsOnlyHivemindsExchangeIsAskedForTheWhole) {
  const auto best = state_with(9, 50);
  auto& python = foreign_donor(9, "rpc_download_state", [&](rpc::ServerStream& stream) {
    return send_state(swarm.runtime(), stream, best, codec::Codec::none);
  });
  donor(state_with(7, 1), 5);
  StateSharer& late = newcomer();
  std::uint64_t done = 0;
  DownloadOptions options;
  options.on_progress = [&](const DownloadProgress& progress) { done = progress.bytes_done; };
  const auto found = download(late, options);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->donor, python.id());
  expect_same(*found, best);
  EXPECT_EQ(done, kTensors * kTensorBytes);
}

TEST_F(SharedStates, WhatAPythonLikeDonorSentBeforeItDiedIsNotMixedWithAnotherState) {
  const auto other = state_with(7, 1);
  foreign_donor(9, "rpc_download_state", [&](rpc::ServerStream& stream) {
    return send_state(swarm.runtime(), stream, state_with(7, 50), codec::Codec::none);
  });
  donor(other, 5);
  begin(newcomer());
  swarm.pass(5s);
  swarm.fabric().kill(sim::Swarm::ip(1));
  swarm.pass(60s);
  ASSERT_TRUE(result && *result) << result->error();
  EXPECT_EQ((*result)->donor, peers[1]->id());
  expect_same(**result, other);
}

class SharedStatesIn : public SharedStates, public ::testing::WithParamInterface<codec::Codec> {
 protected:
  static SharedState sines() {
    SharedState state{msgpack::Map{{{"epoch", 1}}}, {{codec::DType::float32, {300, 1000}, false, {}}}};
    state.tensors[0].data = Slice::uninitialised(1'200'000);
    auto* values = reinterpret_cast<float*>(state.tensors[0].data.mutable_data());
    for (int i = 0; i < 300'000; ++i) values[i] = std::sin(static_cast<float>(i));
    return state;
  }
  void expect_sines() {
    const auto found = download(newcomer());
    ASSERT_TRUE(found) << found.error();
    ASSERT_EQ(found->tensors.size(), 1u);
    ASSERT_EQ(found->tensors[0].shape, (codec::Shape{300, 1000}));
    const auto* values = reinterpret_cast<const float*>(found->tensors[0].data.data());
    for (int i = 0; i < 300'000; ++i) ASSERT_NEAR(values[i], std::sin(static_cast<float>(i)), 5e-2) << i;
  }
};

TEST_P(SharedStatesIn, ACohiveDonorsStateArrives) {
  StateSharingOptions options;
  options.codec = GetParam();
  donor(sines(), 1, options);
  expect_sines();
}

TEST_P(SharedStatesIn, APythonLikeDonorsStateArrives) {
  add();
  foreign_donor(1, "rpc_download_state",
                [&](rpc::ServerStream& stream) { return send_state(swarm.runtime(), stream, sines(), GetParam()); });
  expect_sines();
}

INSTANTIATE_TEST_SUITE_P(Codecs, SharedStatesIn,
                         ::testing::Values(codec::Codec::none, codec::Codec::meanstd16, codec::Codec::float16,
                                           codec::Codec::quantile8, codec::Codec::uniform8, codec::Codec::blockwise8),
                         [](const auto& test) { return std::string(codec::name_of(test.param)); });

TEST_F(SharedStates, OnlySoManyDownloadAtOnceAndTheOthersAskElsewhere) {
  const auto small = [](std::uint8_t content) {
    auto state = state_with(7, content);
    state.tensors.resize(1);
    return state;
  };
  donor(small(1), 9);
  donor(small(2), 5);
  std::vector<StateSharer*> late;
  for (int i = 0; i < 6; ++i) late.push_back(&newcomer());
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 1e5});  // ten seconds for each
  std::vector<std::optional<Result<DownloadedState>>> states(late.size());
  for (std::size_t i = 0; i < late.size(); ++i)
    downloads.spawn([](StateSharing& sharing, std::optional<Result<DownloadedState>>& out) -> Task<void> {
      out.emplace(co_await sharing.download());
    }(*late[i]->sharing, states[i]));
  swarm.pass(60s);
  std::map<PeerId, int> served;
  for (const auto& state : states) {
    ASSERT_TRUE(state && *state);
    ++served[(*state)->donor];
  }
  for (std::size_t i : {0u, 1u}) EXPECT_GE(served[peers[i]->id()], 2) << "and four at most at a time";
}

TEST_F(SharedStates, HostileDonorsAreRefusedAndTheHonestOneIsAsked) {
  const auto state = state_with(7, 1);
  const auto reply = [&](std::vector<std::string> messages) {
    return [&runtime = swarm.runtime(), messages](rpc::ServerStream& stream) {
      return [](Runtime& loop, rpc::ServerStream& caller, std::vector<std::string> all) -> Task<Result<>> {
        for (const auto& message : all)
          if (auto sent = co_await caller.send(as_bytes(message), loop.after(5s)); !sent) co_return sent;
        for (;;)  // and whatever is asked: a piece of nonsense
          if (auto request = co_await caller.receive(loop.after(20s)); !request || !*request)
            co_return ok();
          else if (auto sent = co_await caller.send(as_bytes(piece_head(0, 3) + "abc"), loop.after(5s)); !sent)
            co_return sent;
      }(runtime, stream, messages);
    };
  };
  Manifest claims;
  claims.metadata = msgpack::encode(state.metadata);
  claims.tensors = {{codec::DType::float32, {1u << 30}, false, codec::Codec::none, 1u << 30}};
  claims.hashes.resize((std::size_t{4} << 30) / kPieceBytes);
  const std::string large = encode_manifest(claims);
  claims.tensors = {{codec::DType::float32, {8}, false, codec::Codec::none, 8}};
  claims.hashes.resize(1);
  const std::string small = encode_manifest(claims);
  const StateRoot wrong(kRootSize, 'r');
  std::vector<PeerId> hostile;
  std::optional<PeerId> too_large;  // may be a donor of another model
  double priority = 99;
  for (const std::vector<std::string>& messages :
       std::vector<std::vector<std::string>>{{"\xff\xff\xff"},
                                             {encode_manifest_head({wrong, std::uint64_t{1} << 40})},
                                             {encode_manifest_head({wrong, 5}), "abcdefgh"},
                                             {encode_manifest_head({wrong, small.size()}), small},
                                             {encode_manifest_head({root_of(as_bytes("junk")), 4}), "junk"},
                                             {encode_manifest_head({root_of(as_bytes(large)), large.size()}), large},
                                             {encode_manifest_head({root_of(as_bytes(small)), small.size()}), small}})
    if (messages.back() == large)
      too_large = foreign_donor(priority--, "rpc_download_pieces", reply(messages)).id();
    else
      hostile.push_back(foreign_donor(priority--, "rpc_download_pieces", reply(messages)).id());
  StateSharer& honest = donor(state, 1);
  StateSharer& late = newcomer();
  DownloadOptions options;
  options.max_bytes = 100'000'000;
  const auto found = download(late, options);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->donor, honest.id());
  EXPECT_THAT(found->liars, ::testing::UnorderedElementsAreArray(hostile));
  EXPECT_FALSE(late.dht->host().reputation().is_banned(*too_large));
  expect_same(*found, state);
}

TEST_F(SharedStates, ADonorThatOnlyAsksForPatienceIsGivenUp) {
  foreign_donor(9, "rpc_download_pieces", [&](rpc::ServerStream& stream) {
    return [](Runtime& loop, rpc::ServerStream& caller) -> Task<Result<>> {
      for (;;) {
        const std::string preparing = encode_manifest_head({});
        if (auto sent = co_await caller.send(as_bytes(preparing), loop.after(5s)); !sent) co_return sent;
        co_await loop.sleep_for(5s);
      }
    }(swarm.runtime(), stream);
  });
  StateSharer& honest = donor(state_with(7, 1), 1);
  StateSharer& late = newcomer();
  const auto found = download(late);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->donor, honest.id());
}

TEST_F(SharedStates, ADonorThatClaimsMoreThanIsPlausibleComesLast) {
  add();
  const SharedState honest = state_with(5, 1), poison = state_with(9, 100);
  donor(honest, 5);
  for (double claimed : {1e308, 1e9, 7.5}) donor(poison, claimed);
  auto& peer = newcomer();
  auto state = download(peer, {.max_priority = 7});
  ASSERT_TRUE(state) << state.error();
  expect_same(*state, honest);
}

TEST_F(SharedStates, AStateLargerThanTheModelIsNotDownloaded) {
  add();
  donor(state_with(5, 1), 5);
  auto& peer = newcomer();
  EXPECT_EQ(download(peer, {.max_bytes = kTensors * kTensorBytes - 1}).error(), cohive::Errc::limit_exceeded);
  EXPECT_TRUE(download(peer, {.max_bytes = kTensors * kTensorBytes}));
}

TEST_F(SharedStates, ADonorWhoseClockWasADayAheadIsHeardOfAgain) {
  add();
  swarm.runtime().shift_wall_clock(24h);
  StateSharer& ahead = donor(state_with(5, 1), 5);
  swarm.pass(60s);  // declares itself tomorrow
  swarm.runtime().shift_wall_clock(-24h);
  donor(state_with(6, 2), 6);
  ahead.sharing->set_priority(7);
  const auto state = download(newcomer());
  ASSERT_TRUE(state) << state.error();
  EXPECT_EQ(state->donor, ahead.id());
}

/// Whoever is near the key of the declarations may keep them to itself.
TEST_F(SharedStates, ADonorThatIsKnownNeedNotBeDeclared) {
  StateSharer& known = donor(state_with(5, 1), 5);
  StateSharer& late = *peers.emplace_back(std::make_unique<StateSharer>());
  late.dht = std::make_unique<Dht>(swarm.add_host());
  ASSERT_TRUE(swarm.run(late.dht->start({})));  // a swarm of its own, where nobody declares anything
  late.sharing = std::make_unique<StateSharing>(*late.dht, StateSharingOptions{.prefix = "test"});
  ASSERT_TRUE(swarm.run(late.dht->host().connect(known.dht->host().visible_addresses().front(), swarm.after(5s))));
  EXPECT_EQ(download(late).error(), Errc::no_donor);
  EXPECT_EQ(download(late, {.min_priority = 6, .known = {{known.id(), 5}}}).error(), Errc::no_donor);
  const auto state = download(late, {.known = {{late.id(), 9}, {known.id(), 5}}});
  ASSERT_TRUE(state) << state.error();
  EXPECT_EQ(state->donor, known.id());
}

TEST_F(SharedStates, WhoSharesNothingIsNoDonor) {
  StateSharer& shy = add();
  shy.sharing->set_provider([]() -> std::optional<SharedState> { return std::nullopt; });
  shy.sharing->start();
  StateSharer& late = newcomer();
  const auto found = download(late);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error(), make_error_code(Errc::no_donor));
}

}  // namespace
}  // namespace cohive::averaging
