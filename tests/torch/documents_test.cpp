// The code of README.md and docs as it stands there: tests/tools/test_code_blocks.py compares the two. It learns.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/strategy.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

struct SampleBatch {
  torch::Tensor x, y;
  std::int64_t size() const { return x.size(0); }
};
using BatchLoader = std::vector<SampleBatch>;

/// Batches of a line through zero, an epoch of the documents in all.
BatchLoader batches_of_a_line() {
  BatchLoader batches;
  for (int i = 0; i < 4; ++i) {
    const auto x = torch::randn({1024, 1});
    batches.push_back({x, 3 * x});
  }
  return batches;
}
torch::Tensor loss(torch::nn::Linear& model, const SampleBatch& batch) {
  return torch::mse_loss(model->forward(batch.x), batch.y);
}

TEST(Documents, ATrainerOfTheReadmeEndsAnEpoch) {
  Swarm first(alone());
  const std::vector<std::string> initial_peers = first.visible_addresses();
  torch::nn::Linear model(1, 1);
  const torch::Tensor before = model->weight.clone();
  BatchLoader loader = batches_of_a_line();

  cohive::Swarm swarm({.initial_peers = initial_peers});  // /ip4/203.0.113.7/tcp/31337/p2p/Qm...; none: a new swarm
  torch::optim::AdamW adam(model->parameters());
  cohive::Optimizer optimizer(swarm, adam, {.run_id = "my_run", .target_batch_size = 4096});
  for (auto& batch : loader) {
    loss(model, batch).backward();
    optimizer.step(batch.size());  // averages with the swarm whenever it has seen 4096 samples together
  }

  optimizer.finish();
  EXPECT_EQ(optimizer.local_epoch(), 1u);
  EXPECT_FALSE(torch::equal(model->weight, before));
}

TEST(Documents, ATrainerGoesOnFromItsCheckpointWhereItWas) {
  const checkpoint::TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder / "");
  const auto back = on_exit([&] { std::filesystem::current_path(before); });
  torch::nn::Linear model(1, 1);
  const auto train_from = [&](std::uint64_t batch) {
    torch::optim::AdamW adam(model->parameters());
    std::vector<std::string> names;
    for (const auto& parameter : model->named_parameters()) names.push_back(parameter.key());
    Swarm swarm(alone());

    cohive::OptimizerOptions options{.run_id = "my_run"};
    options.checkpoints.directory = "checkpoints";  // written here in the background
    options.checkpoints.every = 10min;
    options.checkpoints.resume = true;              // goes on from the newest whole one, if there is one
    options.checkpoints.parameter_names = names;    // those of model->named_parameters(), for instance
    options.checkpoints.strings = [&] { return cohive::checkpoint::Metadata{{"batch", std::to_string(batch)}}; };
    cohive::Optimizer optimizer(swarm, adam, options);
    const auto strings = optimizer.loaded_strings();
    if (strings.contains("batch")) batch = std::stoull(strings.at("batch"));

    EXPECT_TRUE(optimizer.checkpoint_now());
    return batch;
  };
  EXPECT_EQ(train_from(17), 17u);
  EXPECT_EQ(train_from(0), 17u);
}

TEST(Documents, AStrategyTrains) {
  torch::nn::Linear model(1, 1);
  BatchLoader loader = batches_of_a_line();

  cohive::Strategy strategy({.target_batch_size = 4096, .run_id = "my_run", .delay_grad_averaging = true});
  strategy.setup({torch::optim::OptimizerParamGroup(model->parameters())}, [](auto groups) {
    return std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(1e-3));
  });

  for (auto& batch : loader) {
    loss(model, batch).backward();
    strategy.step(batch.x);
  }
  strategy.optimizer().finish();
  EXPECT_EQ(strategy.optimizer().local_epoch(), 1u);
}

}  // namespace
}  // namespace cohive
