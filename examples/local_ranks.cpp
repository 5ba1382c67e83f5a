// Several processes of one machine as one peer of a swarm, a GPU each in earnest. Every one of them runs
//   LOCAL_RANK=<0 to N-1> LOCAL_WORLD_SIZE=<N> local_ranks
// which is what torchrun sets, too. Without the variables there is one rank. Others join with INITIAL_PEERS as always.
#include <torch/torch.h>

#include <iostream>
#include <optional>

#include "cohive/torch/local_group.hpp"

int main() {
  constexpr std::int64_t kBatch = 32;
  constexpr std::uint64_t kEpochs = 5;
  cohive::LocalGroup group(cohive::LocalGroupOptions::from_environment());

  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));  // each rank its own data; the parameters are rank 0's
  torch::nn::Linear model(16, 1);
  std::optional<cohive::Swarm> swarm;
  std::optional<torch::optim::AdamW> adam;
  std::optional<cohive::Optimizer> optimizer;
  if (group.leads()) {
    swarm.emplace();
    adam.emplace(model->parameters());
    optimizer.emplace(*swarm, *adam, cohive::OptimizerOptions{.run_id = "local_ranks", .target_batch_size = 256});
  }

  cohive::LocalOptimizer node(group, optimizer ? &*optimizer : nullptr, model->parameters());
  node.load_state_from_peers();
  for (cohive::StepReport report; report.epoch < kEpochs;) {
    const auto x = torch::randn({kBatch, 16});
    torch::mse_loss(model->forward(x), x.sum(1, true)).backward();
    report = node.step(kBatch);
  }
  node.finish();
  std::cout << "rank " << group.rank() << ": " << model->weight.sum().item<float>() << std::endl;
}
