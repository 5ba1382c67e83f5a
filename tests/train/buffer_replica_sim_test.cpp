// A model of arrays: its schedule, and states that come from files.
#include "cohive/train/buffer_replica.hpp"

#include <gtest/gtest.h>

#include <numeric>

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
