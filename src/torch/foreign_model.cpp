#include "foreign_model.hpp"

#include "known_optimizer.hpp"
#include "train/detail/state_parts.hpp"

namespace cohive::libtorch {
namespace {

using train::Buffer;
using train::ParameterRound;
using train::Pending;

std::vector<std::size_t> sizes_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<std::size_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  return sizes;
}

}  // namespace

ForeignModel::ForeignModel(Runtime& runtime, std::shared_ptr<train::Backend> backend,
                           std::shared_ptr<TrainerStream> trainer, ModelParts parts, const OptimizerOptions& options)
    : runtime_(runtime),
      device_(backend ? parts.parameters.front().device() : torch::Device(torch::kCPU)),
      backend_(backend ? std::move(backend) : train::host_backend(runtime)),
      trainer_(std::move(trainer)),
      optimizer_(parts.optimizer),
      parameters_(parts.parameters),
      sums_(runtime, backend_, sizes_of(parts.parameters)),
      intake_(sums_, parts.parameters, device_, trainer_, options.reuse_grad_buffers),
      extras_(make_round_extras(parts, options)),
      schedule_(parts.make_scheduler, parts.optimizer),
      layout_(schedule_.entries(), parts.extras.python) {
  for (const auto& parameter : parameters_) {
    averaging::TensorInfo info;
    info.shape = shape_of(parameter);
    info.dtype = *dtype_of(parameter);
    gradient_infos_.push_back(info);
    info.role = codec::Role::parameter;
    info.dtype = codec::DType::float32;  // of the copies
    state_infos_.push_back(std::move(info));
  }
  state_infos_.insert(state_infos_.end(), extras_.infos().begin(), extras_.infos().end());
  residuals_ = averaging::make_residuals(gradient_infos_);
}

ForeignModel::~ForeignModel() {
  work_.wait();
}

torch::Tensor ForeignModel::as_tensor(const Buffer& buffer, at::IntArrayRef sizes) const {
  return torch::from_blob(
      buffer.values.data(), sizes, [owner = buffer.owner](void*) mutable { owner.reset(); },
      torch::TensorOptions(torch::kFloat32).device(device_));
}

void ForeignModel::step_locally(double scale) {
  const std::lock_guard lock(stepping_);
  make_gradients_dense(parameters_);
  if (scale != 1)
    for (auto& parameter : parameters_)
      if (parameter.grad().defined()) parameter.mutable_grad().div_(scale);
  if (max_norm_ > 0) torch::nn::utils::clip_grad_norm_(parameters_, max_norm_);
  optimizer_.step();
  optimizer_.zero_grad();
}

// ---- Gradients and step

Task<train::Replica::Gradients> ForeignModel::take_gradients(std::optional<train::Place>) {
  auto taken = co_await intake_.take();
  train::GradientWork work;
  work.infos = gradient_infos_;
  work.sums = taken.sums;
  work.factor = taken.factor;
  work.residuals = residuals_;
  stepping_with_ = std::make_shared<Stepping>(std::move(taken.sums), std::move(taken.present),
                                              backend_->gradient_round(std::move(work)));
  co_return Gradients{stepping_with_->round->parts(), taken.finite};
}

Task<void> ForeignModel::drop_gradients() {
  stepping_with_.reset();
  co_await intake_.drop();
}

Task<void> ForeignModel::finish_step(std::uint64_t epoch, bool step) {
  const auto stepping = std::exchange(stepping_with_, nullptr);
  if (step && stepping) co_await runtime_.offload([this, stepping, used = in_use()] { step_with(*stepping); });
  enter_epoch(epoch);
}

/// LibTorch's step with averaged gradients. A parameter of which no member had one is left alone: it has no gradient.
void ForeignModel::step_with(const Stepping& gradients) {
  torch::NoGradGuard no_grad;
  const auto turn = trainer_->in_turn();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto mean = as_tensor(gradients.means[i], parameters_[i].sizes());
    if (gradients.present[i] || mean.any().item<bool>())
      parameters_[i].mutable_grad() = mean.to(parameters_[i].options().requires_grad(false));
  }
  if (max_norm_ > 0) torch::nn::utils::clip_grad_norm_(parameters_, max_norm_);
  optimizer_.step();
  for (auto& parameter : parameters_) parameter.mutable_grad().reset();
}

// ---- State rounds

void ForeignModel::make_copies() {
  if (!copies_.empty()) return;
  for (std::size_t size : sizes_of(parameters_)) copies_.push_back(backend_->allocate(size));
}

Task<std::shared_ptr<averaging::TensorParts>> ForeignModel::state_parts(ParameterRound how) {
  round_ = how;
  make_copies();
  std::vector<averaging::TensorSpan> memory;
  for (const auto& copy : copies_) memory.emplace_back(copy.values);
  auto beside = co_await runtime_.offload([this, how, used = in_use()] {
    torch::NoGradGuard no_grad;
    {
      const auto turn = trainer_->in_turn();
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        as_tensor(copies_[i], parameters_[i].sizes()).copy_(parameters_[i]);
    }
    backend_->follow_caller();
    return extras_.begin(how, *trainer_);
  });
  co_return train::state_parts(runtime_, *backend_, state_infos_, std::move(memory), std::move(beside), how.changes);
}

Task<bool> ForeignModel::finish_state(bool averaged) {
  const ParameterRound how = *std::exchange(round_, std::nullopt);
  extras_.end(averaged);
  if (!averaged) co_return false;
  if (!extras_.empty()) co_await runtime_.offload([this, used = in_use()] { extras_.stage(*trainer_); });
  pending_ = how.changes ? Pending::changes : Pending::values;
  if (how.to != train::Place::live) co_return true;
  co_await runtime_.offload([this, used = in_use()] { publish(); });
  co_return false;
}

void ForeignModel::write_copies() {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto values = as_tensor(copies_[i], parameters_[i].sizes());
    if (pending_ == Pending::changes)
      parameters_[i].add_(values.to(parameters_[i].options().requires_grad(false)));
    else
      parameters_[i].copy_(values);
  }
  extras_.publish();
}

void ForeignModel::publish() {
  if (pending_ == Pending::nothing) return;
  const auto turn = trainer_->in_turn();  // it may be a thread of the pool that publishes
  write_copies();
  pending_ = Pending::nothing;
}

// ---- Values in host memory

namespace {

torch::Tensor as_host_tensor(std::span<float> values, at::IntArrayRef sizes) {
  return torch::from_blob(values.data(), sizes, torch::TensorOptions(torch::kFloat32));
}

}  // namespace

void ForeignModel::read_parameters(const std::vector<std::span<float>>& to) {
  torch::NoGradGuard no_grad;
  const auto turn = trainer_->in_turn();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!to[i].empty()) as_host_tensor(to[i], parameters_[i].sizes()).copy_(parameters_[i]);
}

void ForeignModel::write_parameters(const std::vector<std::span<float>>& from) {
  torch::NoGradGuard no_grad;
  const auto turn = trainer_->in_turn();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!from[i].empty()) parameters_[i].copy_(as_host_tensor(from[i], parameters_[i].sizes()));
}

void ForeignModel::change_parameters(const std::vector<std::span<float>>& by) {
  torch::NoGradGuard no_grad;
  make_copies();
  {
    const auto turn = trainer_->beside();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto copy = as_tensor(copies_[i], parameters_[i].sizes());
      if (by[i].empty())
        copy.zero_();
      else
        copy.copy_(as_host_tensor(by[i], parameters_[i].sizes()));
    }
  }
  backend_->follow_caller();
  pending_ = Pending::changes;
}

// ---- The state as a whole

/// With what publish() will add to them: what is kept beside the parameters has it already.
std::vector<torch::Tensor> ForeignModel::newest_parameters() {
  if (pending_ != Pending::changes) return parameters_;
  std::vector<torch::Tensor> newest;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    newest.push_back(with_change(parameters_[i], as_tensor(copies_[i], parameters_[i].sizes())));
  return newest;
}

Task<std::optional<averaging::SharedState>> ForeignModel::snapshot(std::uint64_t epoch) {
  co_return co_await runtime_.offload([this, epoch, used = in_use()] {
    const std::lock_guard lock(stepping_);
    const auto beside = trainer_->beside();
    return copy_unless_changed(parameters_, [&] {
      return describe_state(optimizer_, newest_parameters(), epoch, extras_.tensors(), layout_);
    });
  });
}

Task<Result<std::uint64_t>> ForeignModel::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  pending_ = Pending::nothing;
  extras_.forget();
  auto shared = std::make_shared<averaging::DownloadedState>(std::move(state));
  co_return co_await runtime_.offload([this, shared, least_epoch, used = in_use()] {
    const auto turn = trainer_->in_turn();
    return load_state(optimizer_, parameters_, *shared, least_epoch, extras_.tensors(), layout_);
  });
}

}  // namespace cohive::libtorch
