// A trainer with a loop of its own. Alone it begins a swarm; others join it with INITIAL_PEERS=<what it prints>.
#include <torch/torch.h>

#include <iostream>

#include "cohive/torch/optimizer.hpp"

int main() {
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  torch::optim::AdamW adam(model->parameters(), 0.01);

  cohive::Swarm swarm;
  std::cout << "others join with: " << swarm.join_line() << std::endl;
  cohive::Optimizer optimizer(swarm, adam, {.run_id = "example", .target_batch_size = 256});
  optimizer.load_state_from_peers();  // those that have begun already

  double loss = 0;
  while (optimizer.local_epoch() < 100) {
    const auto x = torch::randn({32, 8});
    const auto error = torch::mse_loss(model->forward(x), x.sum(1, true));
    error.backward();
    loss = 0.9 * loss + 0.1 * error.item<double>();
    optimizer.step(x.size(0));  // averages with the swarm whenever it has seen 256 samples together
  }
  optimizer.finish();
  std::cout << "epoch " << optimizer.local_epoch() << ", loss " << loss << std::endl;
  return loss < 1 ? 0 : 1;  // 8 before the first step; 60 seeds ended between 0.08 and 0.19
}
