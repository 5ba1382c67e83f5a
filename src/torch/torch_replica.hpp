// LibTorch's models as a run sees them. Three kinds:
//   FusedModel    float32 parameters in host memory, or on a GPU of a build with cohive::cuda, and an optimizer that
//                 cohive steps by itself: the fast case
//   FusedModel with mirrors
//                 offload_optimizer: parameters of any floating type on any device mirror float32 ones in host memory,
//                 which the optimizer steps and peers average
//   ForeignModel  anything else: LibTorch's optimizer steps, peers average copies, on a GPU if all parameters are on it
#pragma once

#include <torch/torch.h>

#include <memory>

#include "cohive/torch/optimizer.hpp"
#include "cohive/train/replica.hpp"
#include "device_backend.hpp"
#include "gradient_intake.hpp"
#include "round_extras.hpp"

namespace cohive::libtorch {

/// What the trainer's thread does with a model, beside what a run does.
class TorchReplica {
 public:
  virtual ~TorchReplica() = default;
  virtual train::Replica& replica() = 0;
  /// What takes the gradients of batches.
  virtual GradientIntake& intake() = 0;
  /// Steps with the gradients of one batch (use_local_updates), and clears them. \param scale  of the loss
  virtual void step_locally(double scale) = 0;
  /// Notes what the trainer has given its device to do. Its thread calls it before parameters may be written: by
  /// itself, or by the loop while it waits.
  virtual void sync_with_caller_stream() {}
  /// Bounds the norm of averaged gradients, or of those that step_locally() takes; 0: no bound. The loop's thread,
  /// while no step is made.
  virtual void clip_grad_norm(double max_norm) = 0;
  /// Returns the optimizer's own copies of the parameters; none where it steps those of the trainer.
  virtual std::vector<torch::Tensor> masters() { return {}; }
  /// Called when the optimizer's state and the masters were replaced.
  virtual void look_at_state() = 0;
};

struct ModelParts {
  std::vector<torch::Tensor> parameters;  ///< that the trainer computes with
  torch::optim::Optimizer& optimizer;     ///< of these, or of their masters
  SchedulerFn make_scheduler = nullptr;   ///< of the optimizer; null: there is none
  ModelExtras extras = {};
  std::shared_ptr<TrainerStream> trainer = nullptr;  ///< null: made by the thread that makes the model
};

/// What rounds of the state average beside parameters, as Python peers with these options describe it.
RoundExtras make_round_extras(const ModelParts& parts, const OptimizerOptions& options);

/// Throws std::invalid_argument with a sentence for parameters that cannot be trained together.
void check_parameters(const std::vector<torch::Tensor>& parameters);

/// Makes the kind that fits. Called and destroyed on the loop's thread. Throws std::invalid_argument with a sentence
/// for a model that does not go with the options.
std::unique_ptr<TorchReplica> make_replica(Runtime& runtime, ModelParts parts, const OptimizerOptions& options);

/// Float32 copies of parameters in host memory, for an optimizer that is offloaded.
std::vector<torch::optim::OptimizerParamGroup> make_masters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);
/// Tells whether parameters can be stepped where they are: contiguous float32 on one device, in memory that is theirs
/// alone.
bool fit_for_fused_steps(const std::vector<torch::Tensor>& parameters);

}  // namespace cohive::libtorch
