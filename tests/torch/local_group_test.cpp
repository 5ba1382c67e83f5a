// Several ranks that are one peer: threads of one process, and two processes.
#include "cohive/torch/local_group.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "torch/training.hpp"

namespace cohive {
namespace {

struct RankModel {
  torch::Tensor weight = torch::full({4, 2}, 0.5f).requires_grad_();
  void backward(std::int64_t seed, std::int64_t batch) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    const auto x = torch::randn({batch, 4}, generator), y = torch::randn({batch, 2}, generator);
    (x.matmul(weight) - y).pow(2).mean().backward();
  }
};

/// A folder for the socket of one test.
class LocalRanks : public testing::Test {
 protected:
  LocalRanks() {
    std::string name = "/tmp/cohive-ranks-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~LocalRanks() override { std::filesystem::remove_all(folder_); }

  LocalGroupOptions rank(std::size_t rank, std::size_t size) const { return {rank, size, folder_ + "/socket", 60s}; }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

/// One rank of a node that is alone in its swarm: `epochs` epochs of one batch of each rank.
struct Rank {
  explicit Rank(LocalGroupOptions options) : group(std::move(options)) {
    if (!group.leads()) return;
    swarm.emplace(SwarmOptions{.host_maddrs = {"/ip4/127.0.0.1/tcp/0"}});
    sgd.emplace(std::vector{model.weight}, torch::optim::SGDOptions(kRate));
    OptimizerOptions run;
    run.run_id = "ranks";
    run.delay_state_averaging = false;
    run.matchmaking_time = 1s;
    run.target_batch_size = 8 * static_cast<std::int64_t>(group.size());
    optimizer.emplace(*swarm, *sgd, run);
  }
  torch::Tensor train(std::uint64_t epochs, std::int64_t batch) {
    LocalOptimizer node(group, optimizer ? &*optimizer : nullptr, {model.weight});
    const auto seed = static_cast<std::int64_t>(group.rank());
    for (StepReport report; report.epoch < epochs;) {
      model.backward(seed + 10 * static_cast<std::int64_t>(report.epoch), batch);
      report = node.step(batch);
    }
    node.finish();
    return model.weight.detach().clone();
  }

  LocalGroup group;
  RankModel model;
  std::optional<Swarm> swarm;
  std::optional<torch::optim::SGD> sgd;
  std::optional<Optimizer> optimizer;
};

TEST_F(LocalRanks, TakeTheStepOfOneTrainerWithAllTheirBatches) {
  // Batches of different sizes: what counts is the sample.
  auto second = std::async(std::launch::async, [&] { return Rank(rank(1, 2)).train(1, 12); });
  const auto first = Rank(rank(0, 2)).train(1, 4);
  RankModel small, large;
  small.backward(0, 4);
  large.backward(1, 12);
  const auto expected = torch::full({4, 2}, 0.5f) - kRate * (4 * small.weight.grad() + 12 * large.weight.grad()) / 16;
  EXPECT_TRUE(torch::allclose(first, expected, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(first, second.get()));
}

/// A parameter that some rank has a gradient of is stepped, one that none has is left alone.
TEST_F(LocalRanks, LeaveAParameterWithoutGradientsAlone) {
  const auto train = [&](std::size_t number) {
    LocalGroup group(rank(number, 2));
    std::vector<torch::Tensor> all;
    for (int i = 0; i < 3; ++i) all.push_back(torch::ones({2}).requires_grad_());
    std::optional<Swarm> swarm;
    std::optional<torch::optim::AdamW> adamw;
    std::optional<Optimizer> optimizer;
    if (group.leads()) {
      swarm.emplace(alone());
      adamw.emplace(all, torch::optim::AdamWOptions(0.1).weight_decay(0.1));
      auto options = epochs_of_three_batches();
      options.target_batch_size = 2 * kBatch;
      optimizer.emplace(*swarm, *adamw, options);
    }
    LocalOptimizer node(group, optimizer ? &*optimizer : nullptr, all);
    (number == 0 ? all[0] : all[0] + all[1]).sum().backward();
    node.step(kBatch);
    for (auto& parameter : all) parameter = parameter.detach().clone();
    return all;
  };
  auto second = std::async(std::launch::async, train, 1);
  const auto first = train(0), other = second.get();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], other[i]));
  EXPECT_NE(first[0][0].item<float>(), 1);
  EXPECT_NE(first[1][0].item<float>(), 1) << "the second rank has a gradient";
  EXPECT_EQ(first[2][0].item<float>(), 1) << "no weight decay";
}

TEST_F(LocalRanks, OfTwoProcessesEndWithEqualParameters) {
  const pid_t child = ::fork();  // before there are threads
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto weight = Rank(rank(1, 2)).train(3, 8);
    std::ofstream(file("weight"), std::ios::binary)
        .write(static_cast<const char*>(weight.data_ptr()), static_cast<std::streamsize>(weight.nbytes()));
    ::_exit(0);
  }
  const auto first = Rank(rank(0, 2)).train(3, 8);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  auto second = torch::zeros_like(first);
  std::ifstream(file("weight"), std::ios::binary)
      .read(static_cast<char*>(second.data_ptr()), static_cast<std::streamsize>(second.nbytes()));
  EXPECT_TRUE(torch::equal(first, second));
  EXPECT_FALSE(torch::allclose(first, torch::full({4, 2}, 0.5f)));
}

TEST_F(LocalRanks, BeginWithTheParametersOfRankZero) {
  auto second = std::async(std::launch::async, [&] {
    Rank other(rank(1, 2));
    torch::NoGradGuard no_grad;
    other.model.weight.fill_(7);
    LocalOptimizer node(other.group, nullptr, {other.model.weight});
    return other.model.weight.detach().clone();
  });
  Rank first(rank(0, 2));
  LocalOptimizer node(first.group, &*first.optimizer, {first.model.weight});
  EXPECT_TRUE(torch::equal(second.get(), torch::full({4, 2}, 0.5f)));
}

TEST_F(LocalRanks, WithDifferentModelsAreRefusedOnAllRanks) {
  auto second = std::async(std::launch::async, [&] {
    LocalGroup group(rank(1, 2));
    EXPECT_THROW(LocalOptimizer(group, nullptr, {torch::zeros({3})}), std::invalid_argument);
  });
  Rank first(rank(0, 2));
  EXPECT_THROW(LocalOptimizer(first.group, &*first.optimizer, {first.model.weight}), std::invalid_argument);
  second.get();
}

TEST_F(LocalRanks, SayWhichRankHasGone) {
  auto second = std::async(std::launch::async, [&] { LocalGroup group(rank(1, 2)); });
  LocalGroup group(rank(0, 2));
  second.get();
  float value = 1;
  try {
    group.sum(&value, 1);
    FAIL() << "a rank that has gone sent a value";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 has gone"), std::string::npos) << error.what();
  }
}

TEST_F(LocalRanks, DoNotWaitForeverForOneThatDoesNotCome) {
  auto options = rank(0, 2);
  options.timeout = 10ms;
  EXPECT_THROW(LocalGroup{options}, std::runtime_error);
  options.rank = 1;
  EXPECT_THROW(LocalGroup{options}, std::runtime_error);
}

TEST_F(LocalRanks, TakeTheSocketOfARankZeroThatWasKilled) {
  std::ofstream(file("socket")) << "left over";
  auto second = std::async(std::launch::async, [&] { return LocalGroup(rank(1, 2)).size(); });
  EXPECT_EQ(LocalGroup(rank(0, 2)).size(), 2u);
  EXPECT_EQ(second.get(), 2u);
  EXPECT_FALSE(std::filesystem::exists(file("socket")));
}

TEST(LocalGroupOptions, ComeFromTheEnvironment) {
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(LocalGroupOptions::from_environment().size, 1u);
  EXPECT_EQ(LocalGroup(LocalGroupOptions::from_environment()).size(), 1u);
  ::setenv("LOCAL_RANK", "1", 1);
  EXPECT_THROW(LocalGroupOptions::from_environment(), std::invalid_argument);
  ::setenv("LOCAL_WORLD_SIZE", "two", 1);
  EXPECT_THROW(LocalGroupOptions::from_environment(), std::invalid_argument);
  ::setenv("LOCAL_WORLD_SIZE", "4", 1);
  ::setenv("MASTER_PORT", "29500", 1);
  const auto options = LocalGroupOptions::from_environment();
  EXPECT_EQ(options.rank, 1u);
  EXPECT_EQ(options.size, 4u);
  EXPECT_NE(options.socket_path.find("29500"), std::string::npos);
}

}  // namespace
}  // namespace cohive
