// A peer whose tensors are on a device averages with one that has them in host memory.
#include "cohive/cuda/device_parts.hpp"

#include <cmath>

#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/dht/dht.hpp"
#include "gpu.hpp"

namespace cohive::cuda {
namespace {

constexpr std::size_t kValues = 100'000;

std::vector<float> values_of(std::size_t peer) {
  std::vector<float> values(kValues);
  for (std::size_t i = 0; i < kValues; ++i) values[i] = static_cast<float>((i * 7 + peer * 3) % 101) / 10 - 4;
  return values;
}

std::vector<codec::Codec> all_codecs() {
  std::vector<codec::Codec> codecs;
  for (const auto& one : codec::all_codecs()) codecs.push_back(one.codec);
  return codecs;
}

/// An answer of these values, as a peer sends them.
averaging::Answer average_of(codec::Codec codec, codec::DType dtype, const std::vector<float>& values) {
  const Slice record = codec::encode(codec, values);
  return {averaging::Answer::Form::average,
          std::make_shared<averaging::EncodedPart>(averaging::EncodedPart{codec, dtype, record, record.view()}),
          std::nullopt};
}

class OnDevice : public Gpu {
 protected:
  struct Peer {
    Peer(transport::Network& network) : host(network, KeyPair::generate_ed25519(), options()), dht(host) {
      host.start().value();
    }
    static p2p::HostOptions options() {
      p2p::HostOptions options;
      options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
      return options;
    }
    Task<void> start(std::vector<Multiaddr> initial, averaging::AveragerOptions options) {
      (co_await dht.start(std::move(initial))).value();
      averager = std::make_unique<averaging::Averager>(dht, std::vector<averaging::TensorInfo>{{.shape = {kValues}}},
                                                       std::move(options));
      averager->start();
    }
    Task<void> close() {
      averager.reset();
      co_await dht.close();
      co_await host.close();
    }
    p2p::Host host;
    Dht dht;
    std::unique_ptr<averaging::Averager> averager;
  };

  std::shared_ptr<DeviceParts> parts_of(const DeviceBuffer& memory, averaging::ResidualsPtr residuals = nullptr) {
    DevicePartsOptions options;
    options.residuals = std::move(residuals);
    return DeviceParts::create(*runtime, {{.shape = {kValues}}}, {memory.floats()}, std::move(options)).value();
  }
  static averaging::AveragerOptions in_pairs(codec::Codec codec) {
    return {.prefix = "device", .target_group_size = 2, .part_size_bytes = 64 * 1024, .codec = codec};
  }
  /// Runs a step of two peers, one with these values on the device.
  std::vector<Result<averaging::RoundReport>> average(const averaging::AveragerOptions& options,
                                                      std::vector<float>& on_host, const DeviceBuffer& memory) {
    const auto residuals = [] {
      return averaging::make_residuals(std::vector<averaging::TensorInfo>{{.shape = {kValues}}});
    };
    auto step = [](Peer& peer,
                   std::shared_ptr<averaging::TensorParts> tensors) -> Task<Result<averaging::RoundReport>> {
      auto round = peer.averager->begin();
      round.trigger(1, std::move(tensors));
      co_return co_await round.result();
    };
    auto all = [&](Peer& one, Peer& other) -> Task<std::vector<Result<averaging::RoundReport>>> {
      co_await one.start({}, options);
      co_await other.start({one.host.visible_addresses().front()}, options);
      std::vector<Task<Result<averaging::RoundReport>>> steps;
      steps.push_back(step(one, std::make_shared<averaging::HostParts>(
                                    *runtime, std::vector<averaging::TensorInfo>{{.shape = {kValues}}},
                                    std::vector<averaging::TensorSpan>{std::span(on_host)},
                                    averaging::HostPartsOptions{.residuals = residuals()})));
      steps.push_back(step(other, parts_of(memory, residuals())));
      auto results = co_await when_all(*runtime, std::move(steps));
      co_await one.close();
      co_await other.close();
      co_return results;
    };
    Peer one(*network), other(*network);
    return runtime->run(all(one, other));
  }

  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 2});
  std::unique_ptr<transport::Network> network = transport::make_tcp_network(*runtime);
};

TEST_F(OnDevice, TensorsAreAveragedWithThoseOfAHost) {
  for (const auto codec :
       {codec::Codec::none, codec::Codec::float16, codec::Codec::blockwise8, codec::Codec::uniform8}) {
    auto on_host = values_of(0);
    const auto memory = to_device(values_of(1));
    for (const auto& result : average(in_pairs(codec), on_host, memory)) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_EQ(result->parts_failed, 0u);
    }
    const auto averaged = to_host<float>(memory), first = values_of(0), second = values_of(1);
    double lost = 0, apart = 0;
    for (std::size_t i = 0; i < kValues; ++i) {
      lost = std::max(lost, std::abs((double{first[i]} + second[i]) / 2 - averaged[i]));
      apart = std::max(apart, std::abs(double{averaged[i]} - on_host[i]));
    }
    const double bound = codec == codec::Codec::none ? 1e-6 : codec == codec::Codec::float16 ? 0.01 : 0.3;
    EXPECT_LT(lost, bound) << name_of(codec);
    EXPECT_LT(apart, bound) << name_of(codec);
  }
}

TEST_F(OnDevice, OneAverageIsTheSameThereAndOnAHostToTheBit) {
  const std::pair<codec::Codec, std::optional<codec::Codec>> ways[] = {{codec::Codec::none, std::nullopt},
                                                                       {codec::Codec::float16, std::nullopt},
                                                                       {codec::Codec::uniform8, std::nullopt},
                                                                       {codec::Codec::blockwise8, std::nullopt},
                                                                       {codec::Codec::float16, codec::Codec::block4},
                                                                       {codec::Codec::float16, codec::Codec::top_k}};
  for (const auto& [ordinary, agreed] : ways) {
    auto options = in_pairs(ordinary);
    if (agreed) options.agreed_codec = *agreed;
    options.one_average = true;
    auto on_host = values_of(0);
    const auto memory = to_device(values_of(1));
    for (const auto& result : average(options, on_host, memory)) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_TRUE(result->one_average);
      EXPECT_EQ(result->agreed_codecs.empty(), !agreed.has_value());
      EXPECT_EQ(result->parts_failed, 0u);
    }
    EXPECT_EQ(to_host<float>(memory), on_host) << name_of(agreed.value_or(ordinary));
    EXPECT_NE(on_host, values_of(0));
  }
}

TEST_F(OnDevice, EncodedBytesAreThoseOfAHost) {
  const auto memory = to_device(values_of(1));
  const auto there = parts_of(memory);
  auto on_host = values_of(1);
  averaging::HostParts here(*runtime, {{.shape = {kValues}}}, {std::span(on_host)});
  for (const auto codec : all_codecs())
    for (const averaging::Stretch stretch : {averaging::Stretch{0, 0, kValues}, averaging::Stretch{0, 4096, 10'001}}) {
      const auto one = runtime->run(there->encode(stretch, codec)), other = runtime->run(here.encode(stretch, codec));
      ASSERT_TRUE(one) << one.error();
      EXPECT_EQ(to_bytes(one->bytes), to_bytes(other->bytes)) << name_of(codec);
    }
}

/// Round after round, with the residuals of the one before, which move to the device.
TEST_F(OnDevice, WhatIsOwedIsWhatAHostOwes) {
  const std::vector<averaging::TensorInfo> infos{{.shape = {kValues}}};
  for (const codec::CodecSpec& spec :
       {codec::CodecSpec(codec::Codec::block4), codec::CodecSpec(codec::Codec::top_k, 0.02),
        codec::CodecSpec(codec::Codec::sparse2)}) {
    const auto owed_there = averaging::make_residuals(infos), owed_here = averaging::make_residuals(infos);
    std::vector<float> restored(kValues, 0.25f);
    for (std::size_t round = 0; round < 3; ++round) {
      SCOPED_TRACE(std::string(name_of(spec.codec)) + " in round " + std::to_string(round));
      if (round == 2)
        for (const auto& owed : {owed_there, owed_here}) owed->front().replace(restored);
      const auto memory = to_device(values_of(round));
      auto on_host = values_of(round);
      const auto there = DeviceParts::create(*runtime, infos, {memory.floats()}, {.residuals = owed_there}).value();
      averaging::HostParts here(*runtime, infos, {std::span(on_host)}, {.residuals = owed_here});
      EXPECT_TRUE(there->keeps_residuals());
      const auto both = [&](auto use) {
        use(*there);
        use(here);
      };
      const averaging::Stretch sent{0, 0, 70'001}, reduced{0, 70'001, 20'000}, failed{0, 90'001, 9'999};
      both([&](averaging::TensorParts& parts) {  // encoded, delivered and answered
        const auto encoded = runtime->run(parts.encode(sent, spec)).value();
        auto answer = average_of(codec::Codec::float16, codec::DType::float32, std::vector<float>(sent.length, 1));
        answer.sent = averaging::Answer::Sent{spec.codec, encoded};
        ASSERT_TRUE(runtime->run(parts.apply(sent, answer, {})));
      });
      std::vector<std::vector<float>> sums;
      both([&](averaging::TensorParts& parts) {  // reduced here: all that is owed counts
        auto own = runtime->run(parts.contribute(reduced, spec, {})).value();
        sums.emplace_back(reduced.length);
        ASSERT_TRUE(own->add(sums.back(), {.first = true}));
        auto answer = average_of(codec::Codec::none, codec::DType::float32, sums.back());
        answer.sent = averaging::Answer::Sent{};
        ASSERT_TRUE(runtime->run(parts.apply(reduced, answer, {})));
      });
      EXPECT_EQ(sums[0], sums[1]);
      const auto one = runtime->run(there->encode(failed, spec)).value(),
                 other = runtime->run(here.encode(failed, spec)).value();
      EXPECT_EQ(to_bytes(one.bytes), to_bytes(other.bytes));
      EXPECT_EQ(owed_there->front().values(), owed_here->front().values());
      EXPECT_NE(owed_there->front().kept_in(), nullptr);
      EXPECT_EQ(to_host<float>(memory), on_host);
    }
  }
}

TEST_F(OnDevice, AnswersOfEveryCodecAreApplied) {
  const std::vector<averaging::TensorInfo> infos{{.shape = {kValues}}};
  const averaging::Stretch stretch{0, 3, 20'001};
  for (const codec::Codec codec : all_codecs())
    for (const codec::DType dtype : {codec::DType::float32, codec::DType::float16}) {
      if (codec == codec::Codec::none && dtype != codec::DType::float32) continue;
      SCOPED_TRACE(std::string(name_of(codec)) + " of " + std::string(name_of(dtype)));
      const auto memory = to_device(values_of(1));
      auto on_host = values_of(1);
      averaging::HostParts here(*runtime, infos, {std::span(on_host)});
      auto values = values_of(2);
      values.resize(stretch.length);
      const auto answer = average_of(codec, dtype, values);
      ASSERT_TRUE(runtime->run(parts_of(memory)->apply(stretch, answer, {})));
      ASSERT_TRUE(runtime->run(here.apply(stretch, answer, {})));
      EXPECT_EQ(to_host<float>(memory), on_host);
    }
}

/// Averages and differences, in part and whole, where they are read from and elsewhere, and as differences.
TEST_F(OnDevice, EveryFormOfAnAnswerIsAppliedAsOnAHost) {
  const std::vector<averaging::TensorInfo> infos{{.shape = {kValues}}};
  const averaging::Stretch stretch{0, 5, 10'002};
  for (const auto form : {averaging::Answer::Form::average, averaging::Answer::Form::difference})
    for (const double alpha : {1.0, 0.5})  // exact: a host that fuses multiplying and adding gives the same
      for (const bool elsewhere : {false, true})
        for (const bool differences : {false, true})
          for (const auto codec : {codec::Codec::none, codec::Codec::blockwise8}) {
            const auto memory = to_device(values_of(1)), out = to_device(values_of(2));
            auto on_host = values_of(1), out_on_host = values_of(2);
            const auto there = DeviceParts::create(
                *runtime, infos, {elsewhere ? averaging::TensorSpan(memory.floats(), out.floats()) : memory.floats()},
                {.differences = differences});
            averaging::HostParts here(
                *runtime, infos,
                {elsewhere ? averaging::TensorSpan(std::span(on_host), std::span(out_on_host)) : std::span(on_host)},
                {.differences = differences});
            auto values = values_of(3);
            values.resize(stretch.length);
            auto answer = average_of(codec, codec::DType::float32, values);
            answer.form = form;
            ASSERT_TRUE(runtime->run((*there)->apply(stretch, answer, {.alpha = alpha})));
            ASSERT_TRUE(runtime->run(here.apply(stretch, answer, {.alpha = alpha})));
            runtime->run((*there)->finish());
            runtime->run(here.finish());
            EXPECT_EQ(to_host<float>(memory), on_host) << name_of(codec) << alpha << elsewhere << differences;
            EXPECT_EQ(to_host<float>(out), out_on_host) << name_of(codec) << alpha << elsewhere << differences;
          }
}

TEST_F(OnDevice, ValuesThatAreNotFiniteAreNotSent) {
  auto values = values_of(1);
  values[777] = std::nanf("");
  const auto memory = to_device(values);
  const auto parts = parts_of(memory);
  for (const auto codec : all_codecs()) {
    EXPECT_EQ(runtime->run(parts->encode({0, 0, kValues}, codec)).error(), averaging::Errc::not_finite)
        << name_of(codec);
    EXPECT_TRUE(runtime->run(parts->encode({0, 1000, 500}, codec))) << name_of(codec);
  }
}

TEST_F(OnDevice, MemoryThatDoesNotFitIsRefused) {
  const auto memory = to_device(std::vector<float>(10, 0));
  EXPECT_THROW((void)DeviceParts::create(*runtime, {{.shape = {11}}}, {memory.floats()}), std::invalid_argument);
}

/// A task that is dropped while the device works leaves nothing behind that the device still uses.
TEST_F(OnDevice, AnOperationMayBeDropped) {
  const auto memory = to_device(values_of(1));
  auto begin_and_drop = [](Runtime& loop, std::shared_ptr<DeviceParts> parts, int turns) -> Task<void> {
    TaskGroup group(loop, "dropped");
    for (std::size_t i = 0; i < 8; ++i)
      group.spawn(
          [](std::shared_ptr<DeviceParts> of, std::size_t offset) -> Task<void> {
            (void)co_await of->encode({0, offset, 10'000}, codec::Codec::float16);
          }(parts, 10'000 * i),
          "encode");
    for (int i = 0; i < turns; ++i) co_await loop.yield();
  };
  for (int turns = 0; turns < 20; ++turns) {
    const auto parts = parts_of(memory);
    runtime->run(begin_and_drop(*runtime, parts, turns));
    EXPECT_TRUE(runtime->run(parts->encode({0, 0, kValues}, codec::Codec::float16)));
  }
  EXPECT_EQ(to_host<float>(memory), values_of(1));
}

}  // namespace
}  // namespace cohive::cuda
