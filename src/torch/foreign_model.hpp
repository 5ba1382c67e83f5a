#pragma once

#include <mutex>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/train/work_count.hpp"
#include "device_backend.hpp"
#include "gradient_intake.hpp"
#include "model_state.hpp"
#include "schedule.hpp"
#include "torch_replica.hpp"

namespace cohive::libtorch {

/// Parameters of any floating type on any device, stepped by their LibTorch optimizer, whatever its class. Gradients
/// and parameters are averaged as float32 copies of a backend: on the parameters' device, or in host memory.
class ForeignModel final : public TorchReplica, public train::Replica {
 public:
  /// \param backend  of the device that has all parameters; null: the host's
  /// \param trainer  of the parameters' device
  ForeignModel(Runtime& runtime, std::shared_ptr<train::Backend> backend, std::shared_ptr<TrainerStream> trainer,
               ModelParts parts, const OptimizerOptions& options);
  ~ForeignModel() override;

  train::Replica& replica() override { return *this; }
  GradientIntake& intake() override { return intake_; }
  void step_locally(double scale) override;
  void sync_with_caller_stream() override { trainer_->note(); }
  void clip_grad_norm(double max_norm) override { max_norm_ = max_norm; }

  const std::vector<averaging::TensorInfo>& gradient_infos() const override { return gradient_infos_; }
  const std::vector<averaging::TensorInfo>& state_infos() const override { return state_infos_; }
  void cut_gradients() override { intake_.cut(); }
  Task<Gradients> take_gradients(std::optional<train::Place> step) override;
  averaging::ResidualsPtr residuals() override { return residuals_; }
  void forget_residuals() override { residuals_ = averaging::make_residuals(gradient_infos_); }
  Task<void> drop_gradients() override;
  Task<void> finish_step(std::uint64_t epoch, bool step) override;
  Task<std::shared_ptr<averaging::TensorParts>> state_parts(train::ParameterRound how) override;
  Task<bool> finish_state(bool averaged) override;
  bool copies_parameters() const override { return true; }
  void read_parameters(const std::vector<std::span<float>>& to) override;
  void write_parameters(const std::vector<std::span<float>>& from) override;
  void change_parameters(const std::vector<std::span<float>>& by) override;
  void publish() override;
  Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) override;
  Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) override;
  std::shared_ptr<const void> in_use() const override { return work_.begin(); }
  Task<void> close() override { return work_.finished(runtime_); }
  void enter_epoch(std::uint64_t epoch) override { schedule_.enter_epoch(epoch); }
  void look_at_state() override { extras_.forget(); }

 private:
  torch::Tensor as_tensor(const train::Buffer& buffer, at::IntArrayRef sizes) const;
  /// The gradients of an epoch.
  struct Stepping {
    std::vector<train::Buffer> means;
    std::vector<bool> present;  // this peer has some of the parameter
    std::shared_ptr<train::GradientRound> round;
  };
  void step_with(const Stepping& gradients);
  void write_copies();
  void make_copies();
  std::vector<torch::Tensor> newest_parameters();

  Runtime& runtime_;
  const torch::Device device_;  // of the backend's memory
  const std::shared_ptr<train::Backend> backend_;
  const std::shared_ptr<TrainerStream> trainer_;
  torch::optim::Optimizer& optimizer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<averaging::TensorInfo> gradient_infos_, state_infos_;
  train::GradientSums sums_;
  GradientIntake intake_;
  RoundExtras extras_;
  Schedule schedule_;
  OptimizerLayout layout_;  // loads change it, copies read it
  averaging::ResidualsPtr residuals_;
  std::shared_ptr<Stepping> stepping_with_;  // from take_gradients to finish_step
  std::vector<train::Buffer> copies_;        // of the parameters, in state rounds
  std::optional<train::ParameterRound> round_;
  train::Pending pending_ = train::Pending::nothing;  // what is in the copies
  double max_norm_ = 0;
  std::mutex stepping_;    // local steps and copies exclude one another
  train::WorkCount work_;  // on the model and the copies
};

}  // namespace cohive::libtorch
