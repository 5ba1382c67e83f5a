// Rounds and downloads on a real loop with real threads: parts and states are large enough that their arithmetic leaves
// the loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kValues = 2'500'000;
constexpr std::size_t kPartBytes = 4 << 20;

/// How a round is done, and how far from the mean its result may be.
struct Way {
  const char* name;
  codec::Codec codec = codec::Codec::none;
  std::optional<codec::Compression> agreed{};
  Aggregation aggregation{};
  float tolerance = 0.05f;
  double verified_share = 0;
};

struct Peer {
  Peer(transport::Network& network, float value)
      : values(kValues, value), host(network, KeyPair::generate_ed25519(), options()), dht(host) {
    host.start().value();
  }
  static p2p::HostOptions options() {
    p2p::HostOptions options;
    options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
    return options;
  }
  /// \param patience  with another member; sanitizers on a busy machine need a lot
  Task<void> start(std::vector<Multiaddr> initial, Way way, Duration patience = 20s) {
    (co_await dht.start(std::move(initial))).value();
    AveragerOptions settings;
    settings.prefix = "threads";
    settings.target_group_size = 2;
    settings.part_size_bytes = kPartBytes;
    settings.codec = way.codec;
    settings.agreed_codec = way.agreed;
    settings.aggregation = way.aggregation;
    settings.verified_share = way.verified_share;
    settings.sender_timeout = patience;
    settings.reducer_timeout = 2 * patience;
    averager = std::make_unique<Averager>(dht, std::vector<AveragedTensor>{{values, {kValues}}}, settings);
    averager->start();
    sharing = std::make_unique<StateSharing>(dht, StateSharingOptions{.prefix = "threads", .codec = way.codec});
    sharing->start();
  }
  Task<void> close() {
    averager.reset();
    sharing.reset();
    co_await dht.close();
    co_await host.close();
  }

  std::vector<float> values;
  p2p::Host host;
  Dht dht;
  std::unique_ptr<Averager> averager;
  std::unique_ptr<StateSharing> sharing;
};

class Threads : public ::testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 3});
  std::unique_ptr<transport::Network> network = transport::make_tcp_network(*runtime);
};
INSTANTIATE_TEST_SUITE_P(
    Ways, Threads,
    ::testing::Values(Way{"Float32"}, Way{"Float16", codec::Codec::float16}, Way{"Uniform8", codec::Codec::uniform8},
                      Way{"Block4", codec::Codec::float16, codec::Codec::block4, Mean(), 0.5f},
                      Way{"TrimmedMean", codec::Codec::float16, {}, TrimmedMean{0.2}},
                      Way{"ClippedBlock4", codec::Codec::none, codec::Codec::block4, CenteredClip{1e6, 2}, 0.5f},
                      Way{"Verified", codec::Codec::none, {}, Mean(), 0.05f, 1.0},
                      Way{"VerifiedFloat16", codec::Codec::float16, {}, ClippedMean{100}, 0.05f, 1.0}),
    [](const auto& test) { return test.param.name; });

TEST_P(Threads, TwoPeersAgreeOnTheMean) {
  auto test = [](Runtime& loop, transport::Network& net, Way way) -> Task<void> {
    Peer first(net, 1), second(net, 4);
    for (std::size_t i = 0; i < kValues; ++i) second.values[i] = 4 + static_cast<float>(i % 3);
    co_await first.start({}, way);
    co_await second.start({first.host.visible_addresses().front()}, way);
    std::vector<Task<Result<RoundReport>>> steps;
    steps.push_back(first.averager->step({}, 1));
    steps.push_back(second.averager->step({}, 3));
    for (const auto& result : co_await when_all(loop, std::move(steps))) {
      EXPECT_TRUE(result) << result.error();
      EXPECT_EQ(result->parts_failed, 0u);
    }
    for (const auto* peer : {&first, &second})
      for (std::size_t i = 0; i < kValues; ++i) {
        const float mean = (1 + 3 * (4 + static_cast<float>(i % 3))) / 4;
        if (std::abs(peer->values[i] - mean) > way.tolerance || std::abs(first.values[i] - second.values[i]) > 0.05f) {
          ADD_FAILURE() << "value " << i << " is " << peer->values[i] << ", not " << mean;
          break;
        }
      }
    co_await first.close();
    co_await second.close();
  };
  runtime->run(test(*runtime, *network, GetParam()));
}

TEST_P(Threads, NothingTouchesTheTensorsOfACancelledRound) {
  auto test = [](Runtime& loop, transport::Network& net, Way way) -> Task<void> {
    Peer first(net, 1), second(net, 3);
    co_await first.start({}, way, 2s);
    co_await second.start({first.host.visible_addresses().front()}, way, 2s);
    Round cancelled = first.averager->begin();
    cancelled.trigger();
    auto cancelling = [](Runtime& turns, Round& round) -> Task<Result<RoundReport>> {
      while (round.stage() != Round::Stage::running) co_await turns.yield();
      for (int turn = 0; turn < 30; ++turn) co_await turns.yield();
      round.cancel();
      co_return Error(Errc::round_cancelled);
    };
    std::vector<Task<Result<RoundReport>>> steps;
    RoundOptions once;
    once.allow_retries = false;
    steps.push_back(cancelled.result());
    steps.push_back(second.averager->step(once));
    steps.push_back(cancelling(loop, cancelled));
    const auto results = co_await when_all(loop, std::move(steps));
    EXPECT_FALSE(results[0]);
    // The memory is the caller's again: under a sanitizer any later use of it would show.
    std::vector<float>().swap(first.values);
    EXPECT_TRUE(results[1]) << "who is left keeps what it could not average: " << results[1].error();
    for (float value : second.values)
      if (!(value >= 0.9f && value <= 3.1f)) {
        ADD_FAILURE() << value;
        break;
      }
    co_await first.close();
    co_await second.close();
  };
  runtime->run(test(*runtime, *network, GetParam()));
}

/// Memory that is handed to one round and freed at its end, with all that its hook uses.
struct Handed {
  std::vector<float> values = std::vector<float>(kValues, 1), results = std::vector<float>(kValues);
  std::vector<char> reported = std::vector<char>(kValues);  // by several threads, at different places
  std::shared_ptr<HostParts> hand_over(Runtime& runtime, const Averager& averager) {
    HostPartsOptions options{.factor = 2, .residuals = make_residuals(averager.schema())};
    options.on_result = [this](const StretchResult& result) {
      for (std::size_t i = 0; i < result.stretch.length; ++i) ++reported[result.stretch.offset + i];
    };
    return std::make_shared<HostParts>(runtime, averager.schema(), std::vector<TensorSpan>{TensorSpan(values, results)},
                                       std::move(options));
  }
};

TEST_P(Threads, MemoryThatWasHandedOverIsFreeWhenTheRoundEnds) {
  auto test = [](Runtime& loop, transport::Network& net, Way way) -> Task<void> {
    Peer first(net, 1), second(net, 3);
    co_await first.start({}, way, 2s);
    co_await second.start({first.host.visible_addresses().front()}, way, 2s);
    for (const int turns : {0, 3, 10, 30, 100}) {
      auto handed = std::make_unique<Handed>();
      std::optional<Round> round(first.averager->begin());
      round->trigger(1, handed->hand_over(loop, *first.averager));
      TaskGroup other(loop);
      other.spawn([](Averager& averager) -> Task<void> {
        RoundOptions once;
        once.allow_retries = false;
        (void)co_await averager.step(once);
      }(*second.averager));
      while (round->stage() == Round::Stage::looking_for_group) co_await loop.yield();
      for (int turn = 0; turn < turns; ++turn) co_await loop.yield();
      round.reset();
      handed.reset();  // under a sanitizer any later use of it would show
      co_await other.join();
    }
    auto handed = std::make_unique<Handed>();
    std::vector<Task<Result<RoundReport>>> steps;
    Round last = first.averager->begin();
    last.trigger(1, handed->hand_over(loop, *first.averager));
    steps.push_back(last.result());
    steps.push_back(second.averager->step());
    for (const auto& result : co_await when_all(loop, std::move(steps))) EXPECT_TRUE(result) << result.error();
    EXPECT_EQ(std::ranges::count(handed->reported, 1), std::ptrdiff_t{kValues});
    EXPECT_EQ(std::ranges::count(handed->values, 2.0f), std::ptrdiff_t{kValues});
    co_await first.close();
    co_await second.close();
  };
  runtime->run(test(*runtime, *network, GetParam()));
}

class SharedStates : public Threads {
 protected:
  /// Many pieces, for all threads of the pool to hash, encode, check and put in their places; halves hold its values.
  static SharedState state() {
    SharedState result{msgpack::Map{{{"epoch", 1}}}, {}};
    for (std::uint32_t i = 0; i < 3; ++i) {
      codec::Tensor tensor{codec::DType::float32, {1'000'000 + i}, false, Slice::uninitialised(4 * (1'000'000 + i))};
      auto* values = reinterpret_cast<float*>(tensor.data.mutable_data());
      for (std::uint32_t k = 0; k < tensor.shape[0]; ++k) values[k] = static_cast<float>((k * (i + 7)) % 2048);
      result.tensors.push_back(std::move(tensor));
    }
    return result;
  }
  /// Until both have told the swarm that they share a state.
  static Task<void> declared(Dht& dht) {
    for (std::size_t sharing = 0; sharing < 2;) {
      const auto found = co_await dht.get("threads.all_averagers", true);
      sharing = 0;
      if (found)
        for (const auto& [subkey, entry] : found->entries()) sharing += !entry.value.is_nil();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, SharedStates, ::testing::Values(Way{"Float32"}, Way{"Float16", codec::Codec::float16}),
                         [](const auto& test) { return test.param.name; });

TEST_P(SharedStates, AreHashedSentAndCheckedByAllThreads) {
  auto test = [](transport::Network& net, Way way) -> Task<void> {
    Peer first(net, 1), second(net, 1), newcomer(net, 0);
    co_await first.start({}, way);
    const auto initial = first.host.visible_addresses().front();
    co_await second.start(std::vector<Multiaddr>(1, initial), way);
    co_await newcomer.start(std::vector<Multiaddr>(1, initial), way);
    const SharedState shared = state();
    for (auto* donor : {&first, &second}) {
      donor->sharing->set_provider([shared]() -> std::optional<SharedState> { return shared; });
      donor->sharing->set_priority(1);
    }
    co_await declared(newcomer.dht);
    const auto found = co_await newcomer.sharing->download();
    EXPECT_TRUE(found) << found.error();
    if (found) {
      EXPECT_TRUE(found->liars.empty());
      EXPECT_EQ(found->tensors.size(), shared.tensors.size());
      for (std::size_t i = 0; i < shared.tensors.size() && i < found->tensors.size(); ++i)
        EXPECT_TRUE(std::ranges::equal(found->tensors[i].data.view(), shared.tensors[i].data.view())) << "tensor " << i;
    }
    for (auto* peer : {&newcomer, &second, &first}) co_await peer->close();
  };
  runtime->run(test(*network, GetParam()));
}

}  // namespace
}  // namespace cohive::averaging
