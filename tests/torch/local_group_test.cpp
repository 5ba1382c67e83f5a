// Several ranks that are one peer: threads of one process, and two processes.
#include "cohive/torch/local_group.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
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

/// A folder for the file by which the ranks of one test meet.
class LocalRanks : public testing::Test {
 protected:
  LocalRanks() {
    std::string name = "/tmp/cohive-ranks-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~LocalRanks() override { std::filesystem::remove_all(folder_); }

  LocalGroupOptions rank(std::size_t rank, std::size_t size) const { return {rank, size, folder_ + "/meeting", 60s}; }
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

TEST_F(LocalRanks, AddSparseGradientsOfEmbeddings) {
  const auto train = [&](std::size_t number) {
    LocalGroup group(rank(number, 2));
    auto weight = torch::zeros({4, 2}).requires_grad_();
    std::optional<Swarm> swarm;
    std::optional<torch::optim::SGD> sgd;
    std::optional<Optimizer> optimizer;
    if (group.leads()) {
      swarm.emplace(alone());
      sgd.emplace(std::vector{weight}, torch::optim::SGDOptions(1.0));
      auto options = epochs_of_three_batches();
      options.target_batch_size = 2 * kBatch;
      optimizer.emplace(*swarm, *sgd, options);
    }
    LocalOptimizer node(group, optimizer ? &*optimizer : nullptr, {weight});
    const auto row = torch::tensor({static_cast<std::int64_t>(number)});
    torch::embedding(weight, row, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum().backward();
    node.step(kBatch);
    return weight.detach().sum(1);
  };
  auto second = std::async(std::launch::async, train, 1);
  const auto expected = torch::tensor({-1.f, -1.f, 0.f, 0.f});
  EXPECT_TRUE(torch::equal(train(0), expected));
  EXPECT_TRUE(torch::equal(second.get(), expected));
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

TEST_F(LocalRanks, SayThatOneHasGone) {
  auto second = std::async(std::launch::async, [&] { LocalGroup group(rank(1, 2)); });
  LocalGroup group(rank(0, 2));
  second.get();
  float value = 1;
  try {
    group.sum(&value, 1);
    FAIL() << "a rank that has gone sent a value";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("a rank of this peer is gone"), std::string::npos) << error.what();
  }
}

TEST_F(LocalRanks, DoNotWaitForeverForOneThatDoesNotCome) {
  auto options = rank(0, 2);
  options.timeout = 10ms;
  EXPECT_THROW(LocalGroup{options}, std::runtime_error);
  options.rank = 1;
  EXPECT_THROW(LocalGroup{options}, std::runtime_error);
}

TEST_F(LocalRanks, DoNotWaitForeverForOneThatIsSilent) {
  auto options = rank(0, 2);
  options.rank_timeout = 500ms;
  std::promise<void> ended;
  auto second = std::async(std::launch::async, [&] {
    LocalGroup group(rank(1, 2));
    ended.get_future().wait();
  });
  LocalGroup group(options);
  float value = 1;
  EXPECT_THROW(group.sum(&value, 1), std::runtime_error);
  ended.set_value();
}

TEST_F(LocalRanks, TakeTheFileOfARankZeroThatWasKilled) {
  std::ofstream(file("meeting")) << "1 0-0\n";  // nobody is at that port
  auto second = std::async(std::launch::async, [&] { return LocalGroup(rank(1, 2)).size(); });
  EXPECT_EQ(LocalGroup(rank(0, 2)).size(), 2u);
  EXPECT_EQ(second.get(), 2u);
  EXPECT_FALSE(std::filesystem::exists(file("meeting")));
}

TEST_F(LocalRanks, AreRefusedWhereTheGroupDoesNotMissThem) {
  auto options = rank(0, 3);
  options.timeout = 3s;
  const auto refused = [&](LocalGroupOptions of) {
    of.timeout = 3s;
    EXPECT_THROW(LocalGroup{of}, std::runtime_error);
  };
  auto first = std::async(std::launch::async, refused, options),
       one = std::async(std::launch::async, refused, rank(1, 3)),
       same = std::async(std::launch::async, refused, rank(1, 3)),
       other = std::async(std::launch::async, refused, rank(1, 2));
}

/// What two ranks come to has the bits of one addition, as when rank 0 added what the other had sent it.
TEST_F(LocalRanks, SumToTheBit) {
  const auto values = [](std::int64_t seed) {
    return torch::randn({100'003}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)));
  };
  auto second = std::async(std::launch::async, [&] {
    LocalGroup group(rank(1, 2));
    auto own = values(1);
    group.sum(own);
    group.broadcast(own);
    return own;
  });
  LocalGroup group(rank(0, 2));
  auto sum = values(0);
  group.sum(sum);
  EXPECT_TRUE(torch::equal(sum, values(0) + values(1)));
  group.broadcast(sum);
  EXPECT_TRUE(torch::equal(second.get(), sum));
}

/// With more of them, Gloo adds in an order of its own.
TEST_F(LocalRanks, SumOfFourIsExactUpToRounding) {
  std::vector<torch::Tensor> values;
  for (int i = 0; i < 4; ++i)
    values.push_back(torch::randn({1'003}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(i))));
  const auto expected = values[0] + values[1] + values[2] + values[3];
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < 4; ++i)
    others.push_back(std::async(std::launch::async, [&, i] { LocalGroup(rank(i, 4)).sum(values[i]); }));
  LocalGroup(rank(0, 4)).sum(values[0]);
  for (auto& other : others) other.get();
  EXPECT_TRUE(torch::allclose(values[0], expected, 1e-5, 1e-6));
}

TEST_F(LocalRanks, OneThatIsKilledEndsItsPeerAndNotTheRun) {
  const pid_t child = ::fork();  // before there are threads
  ASSERT_GE(child, 0);
  if (child == 0) {
    Rank(rank(1, 2)).train(1'000'000, 8);
    ::_exit(0);
  }
  auto first = std::make_unique<Rank>(rank(0, 2));
  RankModel model;
  Swarm swarm(joining(first->swarm->visible_addresses()));
  torch::optim::SGD sgd({model.weight}, torch::optim::SGDOptions(kRate));
  Optimizer other(swarm, sgd, first->optimizer->options());
  const auto train = [&](std::uint64_t epochs) {
    for (const auto end = other.local_epoch() + epochs; other.local_epoch() < end;) {
      model.backward(static_cast<std::int64_t>(other.local_epoch()), 4);
      other.step(4);
    }
  };
  auto peer = std::async(std::launch::async, [&] { first->train(1'000'000, 8); });
  train(2);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_THROW(peer.get(), std::runtime_error);
  first.reset();
  train(2);
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
  EXPECT_NE(options.meeting_path.find("29500"), std::string::npos);
}

}  // namespace
}  // namespace cohive
