#include "foreign_model.hpp"

#include <thread>

#include "known_optimizer.hpp"

namespace cohive::libtorch {
namespace {

using train::Buffer;
using train::StateRound;

std::vector<std::size_t> sizes_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<std::size_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  return sizes;
}

torch::Tensor as_tensor(const Buffer& buffer, at::IntArrayRef sizes) {
  return torch::from_blob(buffer.values.data(), sizes, [owner = buffer.owner](void*) mutable { owner.reset(); },
                          torch::TensorOptions(torch::kFloat32));
}

}  // namespace

ForeignModel::ForeignModel(Runtime& runtime, ModelParts parts, const OptimizerOptions& options)
    : runtime_(runtime),
      optimizer_(parts.optimizer),
      parameters_(parts.parameters),
      sums_(runtime, train::host_backend(runtime), sizes_of(parts.parameters)),
      intake_(sums_, parts.parameters, torch::kCPU, options.reuse_grad_buffers),
      extras_(make_round_extras(parts, options)),
      schedule_(parts.scheduler) {
  for (const auto& parameter : parameters_) {
    averaging::TensorInfo info;
    for (auto size : parameter.sizes()) info.shape.push_back(static_cast<std::uint32_t>(size));
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
  while (in_use_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void ForeignModel::step_locally(double scale) {
  const std::lock_guard lock(stepping_);
  if (scale != 1)
    for (auto& parameter : parameters_)
      if (parameter.grad().defined()) parameter.mutable_grad().div_(scale);
  optimizer_.step();
  optimizer_.zero_grad();
}

// ---- Gradients and step

Task<train::Replica::Gradients> ForeignModel::take_gradients(std::optional<train::Place>) {
  taken_ = std::make_shared<train::GradientSums::Taken>(co_await intake_.take());
  std::vector<averaging::TensorSpan> memory;
  for (const auto& sum : taken_->sums) memory.emplace_back(sum.values);
  averaging::HostPartsOptions how;
  how.factor = static_cast<float>(taken_->factor);
  how.residuals = residuals_;
  co_return Gradients{
      std::make_shared<averaging::HostParts>(runtime_, gradient_infos_, std::move(memory), std::move(how)),
      taken_->finite};
}

Task<void> ForeignModel::drop_gradients() {
  residuals_ = averaging::make_residuals(gradient_infos_);
  taken_.reset();
  co_await intake_.drop();
}

Task<void> ForeignModel::finish_step(std::uint64_t epoch, bool step) {
  const auto taken = std::exchange(taken_, nullptr);
  if (step && taken)
    co_await runtime_.offload([this, taken, used = in_use_] {
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        if (parameters_[i].requires_grad())
          parameters_[i].mutable_grad() =
              as_tensor(taken->sums[i], parameters_[i].sizes()).to(parameters_[i].options());
      if (max_norm_ > 0) torch::nn::utils::clip_grad_norm_(parameters_, max_norm_);
      optimizer_.step();
      for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    });
  enter_epoch(epoch);
}

// ---- State rounds

Task<std::shared_ptr<averaging::TensorParts>> ForeignModel::state_parts(StateRound how) {
  state_round_ = how;
  if (copies_.empty())
    for (std::size_t size : sizes_of(parameters_)) copies_.push_back(Buffer::on_host(size));
  std::vector<averaging::TensorSpan> memory;
  for (const auto& copy : copies_) memory.emplace_back(copy.values);
  const auto beside = co_await runtime_.offload([this, how, used = in_use_] {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      as_tensor(copies_[i], parameters_[i].sizes()).copy_(parameters_[i]);
    return extras_.begin(how);
  });
  memory.insert(memory.end(), beside.begin(), beside.end());
  co_return std::make_shared<averaging::HostParts>(runtime_, state_infos_, std::move(memory),
                                                   averaging::HostPartsOptions{how == StateRound::difference});
}

Task<bool> ForeignModel::finish_state(bool averaged) {
  const StateRound how = *std::exchange(state_round_, std::nullopt);
  extras_.end(averaged);
  if (!averaged) co_return false;
  difference_ = how == StateRound::difference;
  publishable_ = true;
  if (how != StateRound::live) co_return true;
  co_await runtime_.offload([this, used = in_use_] { write_parameters(); });
  publishable_ = false;
  co_return false;
}

void ForeignModel::write_parameters() {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto values = as_tensor(copies_[i], parameters_[i].sizes());
    if (difference_)
      parameters_[i].add_(values.to(parameters_[i].options().requires_grad(false)));
    else
      parameters_[i].copy_(values);
  }
  extras_.publish();
}

void ForeignModel::publish() {
  if (std::exchange(publishable_, false)) write_parameters();
}

// ---- The state as a whole

Task<std::optional<averaging::SharedState>> ForeignModel::snapshot(std::uint64_t epoch) {
  co_return co_await runtime_.offload([this, epoch, used = in_use_] {
    const std::lock_guard lock(stepping_);
    return copy_unless_changed(parameters_,
                               [&] { return describe_state(optimizer_, parameters_, epoch, extras_.tensors()); });
  });
}

Task<Result<std::uint64_t>> ForeignModel::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  publishable_ = false;
  extras_.forget();
  auto shared = std::make_shared<averaging::DownloadedState>(std::move(state));
  co_return co_await runtime_.offload([this, shared, least_epoch, used = in_use_] {
    return load_state(optimizer_, parameters_, *shared, least_epoch, extras_.tensors());
  });
}

}  // namespace cohive::libtorch
