// A trainer in a few lines: a linear model learns in a swarm of one.
#include <torch/torch.h>

#include <cstdio>

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
  std::printf("epoch %lu, loss %g\n", static_cast<unsigned long>(optimizer.epoch()), loss);
  return loss < 0.1 ? 0 : 1;
}
