/// \file
/// Optimizer: turns a local LibTorch optimizer into a collaborative one; one run of a Swarm.
/// Source: docs/wire/hivemind.md, section 7.
///
/// Every peer accumulates gradients of its own batches. When the swarm together has seen target_batch_size samples, the
/// gradients are averaged (weighted by samples), every peer takes the same optimizer step, and a new epoch begins. Now
/// and then the parameters are averaged, too. A peer that is new or behind downloads the state of another peer.
///
///   cohive::Swarm swarm({.initial_peers = {"/ip4/.../p2p/..."}});
///   torch::optim::AdamW adam(model->parameters());
///   cohive::Optimizer optimizer(swarm, adam, {.run_id = "my_run", .target_batch_size = 4096});
///   for (auto& batch : loader) {
///     loss(model, batch).backward();
///     optimizer.step(batch.size());
///   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohive/torch/model_extras.hpp"
#include "cohive/train/run.hpp"
#include "cohive/train/swarm.hpp"

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
class LRScheduler;
}  // namespace torch::optim
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace cohive {

class GradScaler;

/// hivemind.Optimizer's options, under their names.
using OptimizerOptions = train::RunOptions;
using train::CheckpointOptions;
using train::StepReport;
using train::TrainingStats;

/// Makes an optimizer of parameter groups, such as
/// `[](auto groups) { return std::make_unique<torch::optim::AdamW>(std::move(groups),
/// torch::optim::AdamWOptions(1e-3)); }`
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;
/// Makes the scheduler of an optimizer, which is stepped once for every epoch: the learning rate of epoch n is that of
/// PyTorch's scheduler after n steps. HivemindStrategy's scheduler_fn. See schedules.hpp for ready-made ones. Called on
/// the loop's thread, and again where an earlier epoch is loaded: what it refers to outlives the Optimizer.
using SchedulerFn = std::function<std::unique_ptr<torch::optim::LRScheduler>(torch::optim::Optimizer&)>;

/// One thread calls it, the trainer's. Parameters may be float32, float64, float16 or bfloat16 on any device. Steps
/// leave those alone of which no peer of the group has a gradient in an epoch, as LibTorch's do. The optimizer's groups
/// and the model are those of the constructor: every call throws std::logic_error with a sentence once groups were
/// added, or a parameter has another type, shape or device.
///
/// Speed: the classes of torch::optim (not LBFGS) and cohive::Lamb are stepped by cohive, several times faster, where
/// the parameters are float32 in host memory or offload_optimizer copies them there; their options and statistics stay
/// where LibTorch has them. Any other optimizer steps by itself.
///
/// Ownership of tensors: after step() parameters have no gradients (unless reuse_grad_buffers), as after
/// zero_grad(set_to_none=true): the tensors were handed over. With delayed work parameters get other memory in a call
/// of step(): pointers into a parameter are good until the next one. Newcomers download parameters and statistics as
/// they are between calls, at any time: other code should not write to them.
class Optimizer {
 public:
  /// Makes an existing optimizer collaborative. \param optimizer  outlives this object, and is stepped by it alone
  /// Throws std::invalid_argument with a sentence: options that contradict one another (train::check), a model that
  /// they do not go with. Throws ErrorException for checkpoints that cannot be gone on from, or a folder for them that
  /// cannot be used.
  Optimizer(Swarm& swarm, torch::optim::Optimizer& optimizer, OptimizerOptions options = {},
            SchedulerFn scheduler = nullptr, ModelExtras extras = {});
  /// Makes the optimizer itself, which offloading needs where parameters are not float32 in host memory: it then works
  /// on float32 copies.
  Optimizer(Swarm& swarm, std::vector<torch::optim::OptimizerParamGroup> parameters,
            const OptimizerFactory& make_optimizer, OptimizerOptions options = {}, SchedulerFn scheduler = nullptr,
            ModelExtras extras = {});
  /// Leaves the run, within shutdown_timeout.
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;

  /// Call after backward() of the mean loss of a batch of `batch_size` samples: takes its gradients, which weigh as
  /// much as the batch has samples (with reuse_grad_buffers all batches weigh the same). Returns at once, except when
  /// an epoch ends (the part of it that is not delayed) or this peer must catch up (the download). Gradients that hold
  /// NaN or infinity do not count: an epoch that has some goes by the gradients of the other peers, and with
  /// use_local_updates such a batch takes no step.
  StepReport step(std::int64_t batch_size);
  /// The same for batches of OptimizerOptions::batch_size. Throws std::logic_error when it is not set.
  StepReport step();
  /// The same for the batch itself, whose leading dimension is its size.
  StepReport step(const at::Tensor& batch);

  /// The same for gradients of a scaled loss; see GradScaler::step.
  StepReport step(std::int64_t batch_size, GradScaler& scaler);
  /// Tells whether all gradients that the parameters have now are finite.
  bool has_finite_gradients() const;

  /// Clears the gradients; with reuse_grad_buffers it does nothing, as they add up until the epoch ends.
  void zero_grad();

  /// Downloads the state of the swarm if it is ahead; true if it did. hivemind's load_state_from_peers.
  bool load_state_from_peers();
  /// Averages the parameters once more with the peers that do the same. Returns the size of the group; 0: no group.
  std::size_t average_parameters();
  /// Ends the training together with the peers that end theirs now; see train::Run::finish. Returns the size of the
  /// last group. Only stats() and the destructor may follow.
  std::size_t finish();
  /// Writes the state into a file, and reads one: parameters, statistics, epoch; schedulers follow. Files are in the
  /// safetensors format (docs/checkpoints.md). Loading one of another run, or that no run wrote, leaves the epoch as it
  /// is; it returns the epoch. Errors are for the user's eyes: a disk that is full, a file that is damaged or of
  /// another model, which changes nothing.
  Result<> save_checkpoint(const std::filesystem::path& path);
  /// Goes on from a file. Returns its epoch. Errors: see train::Run::load_checkpoint.
  Result<std::uint64_t> load_checkpoint(const std::filesystem::path& path);
  /// Writes a checkpoint into CheckpointOptions::directory and returns when it is on the disk, as for a machine that is
  /// about to be taken away. A round in progress is waited for, averaging_timeout at most.
  Result<std::filesystem::path> checkpoint_now();
  /// Returns what CheckpointOptions::strings returned for the checkpoint that was loaded; empty when none was.
  checkpoint::Metadata loaded_strings() const;
  /// Bounds the norm of the averaged gradients of all parameters together, or with use_local_updates that of each
  /// batch's, as DiLoCo does; 0: no bound. Before step().
  void clip_grad_norm(double max_norm);
  /// Shows the loss of a batch in the metrics of this peer as cohive_train_loss, and to monitors of the run unless
  /// RunOptions::share_loss is false.
  void report_loss(double loss);

  /// Writes what goes on with a training: the epoch, the optimizer's statistics and options, and its float32 copies of
  /// the parameters where it has some. Delayed work is awaited first: save the model after this. torch::save(optimizer,
  /// path) calls it, hivemind's state_dict.
  void save(torch::serialize::OutputArchive& archive) const;
  /// Reads it, after the model has been loaded and before the first step; learning rates follow the scheduler if there
  /// is one. A swarm that is ahead is caught up with as always. Throws std::invalid_argument with a sentence, and
  /// changes nothing, for an archive of another model or optimizer, or of an epoch that this training has passed.
  void load(torch::serialize::InputArchive& archive);

  /// The optimizer that is stepped: the one given, or the one made.
  torch::optim::Optimizer& optimizer() noexcept;
  /// Returns the epoch of this peer, which the swarm may have passed.
  std::uint64_t local_epoch() const;
  /// Returns what the run has done since construction.
  TrainingStats stats() const;
  /// Returns the options of the run.
  const OptimizerOptions& options() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// For torch::save and torch::load.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Optimizer& optimizer);
/// Calls Optimizer::load, with its errors.
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, Optimizer& optimizer);

}  // namespace cohive
