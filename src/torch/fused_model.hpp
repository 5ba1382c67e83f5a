#pragma once

#include <mutex>

#include "cohive/train/fused_replica.hpp"
#include "device_backend.hpp"
#include "gradient_intake.hpp"
#include "known_optimizer.hpp"
#include "model_state.hpp"
#include "parameter_upload.hpp"
#include "schedule.hpp"
#include "torch_replica.hpp"

namespace cohive::libtorch {

/// Float32 parameters of a backend, stepped by cohive. The trainer computes with them, or, where they are in host
/// memory, with mirrors of another type or on another device.
class FusedModel final : public TorchReplica, public train::FusedReplica {
 public:
  /// \param parts.parameters  those of the optimizer, or their mirrors
  /// \param link  to the mirrors' device; null: LibTorch copies
  /// \param trainer  of the device that the trainer computes on
  FusedModel(Runtime& runtime, std::shared_ptr<train::Backend> backend, std::shared_ptr<train::DeviceLink> link,
             std::shared_ptr<TrainerStream> trainer, ModelParts parts, KnownOptimizer known,
             const OptimizerOptions& options);
  ~FusedModel() override;

  train::Replica& replica() override { return *this; }
  GradientIntake& intake() override { return intake_; }
  void step_locally(double scale) override;
  void clip_grad_norm(double max_norm) override {
    clip_gradients(max_norm > 0 ? std::optional(max_norm) : std::nullopt);
  }

  void sync_with_caller_stream() override {
    trainer_->note();
    if (link_) link_->sync_with_caller_stream();
  }

  void cut_gradients() override {
    hold_memory();
    intake_.cut();
  }
  Task<void> finish_step(std::uint64_t epoch, bool step) override;
  Task<void> hold_state() override;
  Task<std::shared_ptr<averaging::TensorParts>> state_parts(train::ParameterRound how) override {
    hold_memory();
    averages_live_ = how.to == train::Place::live;
    return FusedReplica::state_parts(how);
  }
  Task<bool> finish_state(bool averaged) override;
  void write_parameters(const std::vector<std::span<float>>& from) override {
    FusedReplica::write_parameters(from);
    note_all_written();
    if (!mirrors_.empty()) copy_to_mirrors();
  }
  void publish() override;
  bool publishes_by_exchange() const override { return true; }
  Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) override;
  Task<std::optional<averaging::SharedState>> view(std::uint64_t epoch) override;
  Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) override;
  void enter_epoch(std::uint64_t epoch) override { schedule_.enter_epoch(epoch); }
  std::vector<torch::Tensor> masters() override { return mirrors_.empty() ? mirrors_ : parameters_; }
  void look_at_state() override;

 protected:
  std::span<float> live(std::size_t parameter) override;
  void exchange_live(std::size_t parameter, train::Buffer& next) override;
  optim::Options options(std::size_t parameter) override { return known_.options(parameter); }
  std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter) override {
    const auto turn = trainer_->in_turn();  // of new ones
    return known_.statistics(parameter);
  }
  std::int64_t steps_taken(std::size_t parameter) override { return known_.steps_taken(parameter); }
  void count_step(std::size_t parameter) override { known_.count_step(parameter); }
  std::function<void(const averaging::Stretch&)> watch_step(train::Place place,
                                                            std::vector<std::span<const float>> results) override;
  Task<std::vector<averaging::TensorSpan>> extra_parts(train::ParameterRound how) override;
  Task<train::GradientSums::Taken> take_sums() override { return intake_.take(); }
  Task<void> drop_sums() override { return intake_.drop(); }

 private:
  const std::vector<torch::Tensor>& trained() const { return mirrors_.empty() ? parameters_ : mirrors_; }
  double local_factor(double scale) const;
  void hold_memory();
  void note_all_written() const;
  bool is_as_described() const;
  Task<void> show_in_mirrors();
  void copy_to_mirrors();
  Task<void> stage_next();
  std::vector<torch::Tensor> newest_parameters();

  torch::optim::Optimizer& optimizer_;
  KnownOptimizer known_;
  std::vector<torch::Tensor> parameters_;  // of the optimizer
  std::vector<torch::Tensor> mirrors_;     // of the trainer, where they are other tensors
  std::vector<torch::Tensor> held_;        // the memory of both, which work in the background uses
  const std::shared_ptr<train::DeviceLink> link_;
  const std::shared_ptr<TrainerStream> trainer_;
  std::unique_ptr<ParameterUpload> upload_;  // to mirrors, where there is a link
  GradientIntake intake_;
  RoundExtras extras_;
  Schedule schedule_;
  OptimizerLayout layout_;      // loads change it, copies read it
  bool averages_live_ = false;  // in the round of the state in progress
  std::mutex stepping_;         // local steps and copies exclude one another
};

}  // namespace cohive::libtorch
