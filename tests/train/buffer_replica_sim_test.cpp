// A model of arrays: its schedule, and states that come from files and from peers.
#include "cohive/train/buffer_replica.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "averaging/states/manifest.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "train/checkpoint_content.hpp"

namespace cohive::train {
namespace {

class BufferReplicas : public ::testing::Test {
 protected:
  /// The state of a model as a checkpoint gives it.
  averaging::DownloadedState from_file(Replica& donor) {
    const auto state = swarm.run(donor.snapshot(3)).value();
    auto read = to_tensors(to_file(state, {}, "run", {}, {}).value(), {}, donor.gradient_infos().size()).value();
    averaging::DownloadedState file;
    file.metadata = msgpack::Map{{{"epoch", 3}, {"statistics", std::move(read.statistics)}}};
    file.tensors = std::move(read.tensors);
    return file;
  }

  /// The state of a model as a newcomer gets it.
  averaging::DownloadedState from_peer(Replica& donor, const codec::Compression& compression = {}) {
    const auto shared = swarm.run(donor.snapshot(3)).value();
    averaging::DownloadedState state;
    state.metadata = shared.metadata;
    for (std::size_t i = 0; i < shared.tensors.size(); ++i) {
      const codec::Tensor& tensor = shared.tensors[i];
      const auto codec =
          codec::codec_for(averaging::codec_of(shared, i, compression).value(), tensor.dtype, tensor.shape);
      const Slice encoded = codec::encode_tensor(codec, tensor).value();
      state.tensors.push_back(codec::decode_tensor(codec, tensor.dtype, tensor.shape, false, encoded).value());
    }
    return state;
  }
  static void set(codec::Tensor& tensor, std::vector<float> values) {
    ASSERT_EQ(tensor.data.size(), values.size() * sizeof(float));
    tensor.data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(values.data()), tensor.data.size()});
  }

  sim::Swarm swarm{{.seed = 3}};
};

TEST_F(BufferReplicas, FollowAScheduleFromTheEpochThatTheyHaveEntered) {
  PlainReplica replica{swarm.runtime(), {{2}}, optim::SgdOptions{.lr = 0.1}};
  replica.enter_epoch(7);
  std::vector<std::uint64_t> asked;
  replica.schedule([&asked](std::uint64_t epoch) {
    asked.push_back(epoch);
    return optim::Options(optim::SgdOptions{.lr = 0.1});
  });
  replica.enter_epoch(8);
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{7, 8}));
}

/// RMSprop with momentum keeps as many statistics as Adam, of the same shapes.
TEST_F(BufferReplicas, TakeTheParametersAloneFromAFileOfAnotherOptimizer) {
  PlainReplica donor{swarm.runtime(), {{2}}, optim::RmspropOptions{.momentum = 0.9}};
  PlainReplica adam{swarm.runtime(), {{2}}, optim::AdamOptions{.lr = 0.1}};
  const std::vector<float> gradient{1, -2};
  donor.step_locally({gradient});
  const auto before = swarm.run(adam.snapshot(0)).value();
  const auto loaded = swarm.run(adam.load(from_file(donor), 0));
  ASSERT_TRUE(loaded) << loaded.error();
  EXPECT_EQ(*loaded, 3u);
  EXPECT_EQ(adam.parameter(0)[1], donor.parameter(0)[1]);
  EXPECT_NE(adam.parameter(0)[1], 0);
  const auto after = swarm.run(adam.snapshot(3)).value();
  for (std::size_t i = 1; i < after.tensors.size(); ++i)
    EXPECT_EQ(to_bytes(after.tensors[i].data), to_bytes(before.tensors[i].data)) << after.names[i];
}

/// Squares of such gradients are nothing in float16.
TEST_F(BufferReplicas, StepOnAsTheDonorDoesWhateverItsStateTravelsIn) {
  const optim::Options kinds[] = {optim::AdamOptions(), optim::AdamWOptions(), optim::RmspropOptions(),
                                  optim::LambOptions()};
  for (const auto& kind : kinds) {
    SCOPED_TRACE(kind.index());
    PlainReplica donor{swarm.runtime(), {{4}}, kind}, newcomer{swarm.runtime(), {{4}}, kind};
    std::ranges::fill(donor.parameter(0), 1.0f);
    const auto step = [](PlainReplica& model, float size) {
      const float before = model.parameter(0)[0];
      const std::vector<float> gradient(4, size);
      model.step_locally({gradient});
      return model.parameter(0)[0] - before;
    };
    for (int i = 0; i < 20; ++i) step(donor, 1e-4f);
    ASSERT_TRUE(swarm.run(newcomer.load(from_peer(donor, codec::Codec::float16), 0)));
    const float theirs = step(donor, 1e-6f), ours = step(newcomer, 1e-6f);
    EXPECT_LT(std::abs(ours), 2 * std::abs(theirs));
    EXPECT_GT(std::abs(ours), std::abs(theirs) / 2);
  }
}

TEST_F(BufferReplicas, MakeStatisticsUsableThatRoundingOrAPeerHasSpoilt) {
  const auto load_and_step = [&](const optim::Options& kind, const std::vector<std::pair<std::size_t, float>>& spoilt) {
    PlainReplica model{swarm.runtime(), {{2}}, kind};
    const std::vector<float> first{1, 1}, next{1e-3f, 0};
    model.step_locally({first});
    auto state = from_peer(model);
    for (const auto& [tensor, value] : spoilt) set(state.tensors[tensor], {value, value});
    EXPECT_TRUE(swarm.run(model.load(std::move(state), 0)));
    const float before = model.parameter(0)[0];
    model.step_locally({next});
    for (const float value : model.parameter(0)) EXPECT_LT(std::abs(value - before), 1) << value;
  };
  // After the parameter, statistics are sorted by name.
  load_and_step(optim::AdamOptions(), {{2, -1e-9f}});
  load_and_step(optim::AdamOptions(), {{1, 1e-4f}, {2, 0}});
  load_and_step(optim::RmspropOptions{.centered = true}, {{1, 2}, {2, 1}});
  load_and_step(optim::AdagradOptions(), {{1, -1e-9f}});
}

/// In a file the twelfth comes before the third.
TEST_F(BufferReplicas, FindManyStatisticsInAFileByTheirNames) {
  struct Model {
    explicit Model(Runtime& runtime) {
      CallersOptimizer optimizer;
      optimizer.step = [](const std::vector<std::span<float>>&, std::uint64_t) {};
      optimizer.where = StepThread::worker;
      for (float& value : kept) optimizer.statistics.push_back({.data = &value, .shape = {1}});
      replica = std::make_unique<BufferReplica>(
          runtime, std::vector<BufferTensor>{{.data = weights.data(), .shape = {2}}}, std::move(optimizer));
    }
    std::vector<float> weights = std::vector<float>(2), kept = std::vector<float>(12);
    std::unique_ptr<BufferReplica> replica;
  } donor(swarm.runtime()), receiver(swarm.runtime());
  std::iota(donor.kept.begin(), donor.kept.end(), 1.0f);
  ASSERT_TRUE(swarm.run(receiver.replica->load(from_file(*donor.replica), 0)));
  EXPECT_EQ(receiver.kept, donor.kept);
}

}  // namespace
}  // namespace cohive::train
