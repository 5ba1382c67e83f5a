// How gradients get from a LibTorch model into the sums of an epoch, at the price of no pass over memory on the
// trainer's thread where that can be: a gradient tensor that nothing else refers to is handed over, and backward()
// makes a new one.
#pragma once

#include <torch/torch.h>

#include "cohive/train/gradient_sums.hpp"
#include "device_backend.hpp"
#include "gradient_download.hpp"

namespace cohive::libtorch {

/// Makes gradients dense that are not, as those of an embedding with sparse gradients.
void make_gradients_dense(const std::vector<torch::Tensor>& parameters);

class GradientIntake {
 public:
  /// \param device  where the sums are
  /// \param trainer  of the parameters' device
  /// \param reuse  gradients add up in the model's own buffers (reuse_grad_buffers): batches are only counted
  /// \param download  gets gradients to the sums' device; null: LibTorch does, and whoever asks waits for it
  GradientIntake(train::GradientSums& sums, std::vector<torch::Tensor> parameters, torch::Device device,
                 std::shared_ptr<TrainerStream> trainer, bool reuse,
                 std::unique_ptr<GradientDownload> download = nullptr);

  // ---- The trainer's thread

  /// Takes the gradients of a batch; afterwards the parameters have none, unless buffers are reused.
  /// \param scale  of the loss, which the gradients have, too
  /// Throws std::logic_error when reused buffers were cleared by other code, or hold gradients of another scale.
  void take_batch(double samples, double scale);
  /// Tells whether all gradients that the parameters have are finite.
  bool all_finite() const;
  /// Throws away the gradients that the parameters have: of a batch, or of the epoch where buffers are reused.
  void drop_batch();

  // ---- The loop

  /// As GradientSums.
  void cut();
  Task<train::GradientSums::Taken> take();
  Task<void> drop();

 private:
  Task<train::GradientSums::Taken> take_reused();
  Task<GradientDownload::Batch> move_to_sums(std::vector<torch::Tensor>& gradients);

  train::GradientSums& sums_;
  std::vector<torch::Tensor> parameters_;
  const torch::Device device_;
  const std::shared_ptr<TrainerStream> trainer_;
  const bool reuse_;
  const std::unique_ptr<GradientDownload> download_;
  /// What is in the model's buffers.
  struct Reused {
    std::vector<torch::Tensor> gradients;  // where they were cut off
    double samples = 0;                    // of the last batch
    std::size_t times = 0;                 // batches
    double scale = 1;
  };
  Reused filled_;                       // the trainer's thread
  std::optional<std::size_t> witness_;  // a parameter that has a gradient since the first batch
  bool told_of_sizes_ = false;          // that batches of several sizes weigh the same
  std::deque<Reused> cut_;              // that wait to be taken
};

}  // namespace cohive::libtorch
