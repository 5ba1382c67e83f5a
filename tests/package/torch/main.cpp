// A trainer in a few lines: a linear model learns in a swarm of one. It logs through cohive, whose library uses another
// fmt than the one that LibTorch's headers bring.
#include <torch/torch.h>

#include "cohive/core/log.hpp"
#include "cohive/train/optimizer.hpp"

int main() {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  const auto x = torch::randn({64, 4}), y = x.sum(1, true);

  cohive::Strategy strategy({.run_id = "package"});
  torch::optim::SGD sgd(model->parameters(), 0.1);
  cohive::Optimizer optimizer(strategy, sgd, {.target_batch_size = 128});
  double loss = 0;
  while (optimizer.epoch() < 20) {
    const auto error = torch::mse_loss(model->forward(x), y);
    loss = error.item<double>();
    error.backward();
    optimizer.step(x.size(0));
  }
  cohive::log::info("trainer", "epoch {}, loss {:.3f}, peer {}", optimizer.epoch(), loss, strategy.peer_id());
  return loss < 0.1 ? 0 : 1;
}
