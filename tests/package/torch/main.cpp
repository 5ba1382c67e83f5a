// A trainer in a few lines: a linear model learns in a swarm of one. It logs through cohive, whose library uses another
// fmt than the one that LibTorch's headers bring.
#include <torch/torch.h>

#include "cohive/core/log.hpp"
#include "cohive/torch/optimizer.hpp"

int main() {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  const auto x = torch::randn({64, 4}), y = x.sum(1, true);

  cohive::Swarm swarm;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  cohive::Optimizer optimizer(swarm, sgd, {.run_id = "package", .target_batch_size = 128});
  double loss = 0;
  while (optimizer.local_epoch() < 20) {
    const auto error = torch::mse_loss(model->forward(x), y);
    loss = error.item<double>();
    error.backward();
    optimizer.step(x.size(0));
  }
  cohive::log::info("trainer", "epoch {}, loss {:.3f}, peer {}", optimizer.local_epoch(), loss, swarm.peer_id());
  return loss < 0.1 ? 0 : 1;
}
