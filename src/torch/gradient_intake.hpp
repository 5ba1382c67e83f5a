// How gradients get from a LibTorch model into the sums of an epoch, at the price of no pass over memory on the trainer's thread where
// that can be: a gradient tensor that nothing else refers to is handed over, and backward() makes a new one.
#pragma once

#include <torch/torch.h>

#include "cohive/train/gradient_sums.hpp"

namespace cohive::libtorch {

class GradientIntake {
 public:
  /// \param reuse  gradients add up in the model's own buffers (reuse_grad_buffers): batches are only counted
  GradientIntake(Runtime& runtime, train::GradientSums& sums, std::vector<torch::Tensor> parameters, bool reuse);

  /// Takes the gradients of a batch; afterwards the parameters have none, unless buffers are reused. The trainer's thread.
  /// Throws std::logic_error when reused buffers were cleared by someone else.
  void take_batch(double samples);
  /// As GradientSums.
  void cut();
  Task<train::GradientSums::Taken> take();
  Task<void> drop();

 private:
  Task<train::GradientSums::Taken> take_reused();

  Runtime& runtime_;
  train::GradientSums& sums_;
  std::vector<torch::Tensor> parameters_;
  const bool reuse_;
  std::size_t times_ = 0;                                  // batches in the model's buffers; the trainer's thread
  std::optional<std::size_t> witness_;                     // a parameter that has a gradient since the first batch
  std::deque<std::pair<std::vector<torch::Tensor>, std::size_t>> cut_;  // buffers that wait to be taken, and batches in them
};

}  // namespace cohive::libtorch
