#include "gradient_intake.hpp"

#include "averaging/detail/lease.hpp"
#include "cohive/core/log.hpp"
#include "cohive/optim/passes.hpp"
#include "model_state.hpp"

namespace cohive::libtorch {
namespace {

using train::Buffer;
using train::GradientSums;

/// Dense, on a device and contiguous; the same tensor where it is already.
torch::Tensor on_device(const torch::Tensor& gradient, torch::Device device) {
  torch::NoGradGuard no_grad;
  return (gradient.is_sparse() ? gradient.to_dense() : gradient).to(device).contiguous();
}

optim::View view_of(const torch::Tensor& tensor) {
  return {*dtype_of(tensor), tensor.data_ptr(), static_cast<std::size_t>(tensor.numel())};
}

/// Memory that no other code uses any more: the gradient's own, or a copy.
torch::Tensor released(torch::Tensor gradient, torch::Device device) {
  torch::NoGradGuard no_grad;
  torch::Tensor values = on_device(gradient, device);
  gradient.reset();
  return is_exclusive(values) ? values : values.clone();
}

GradientSums::Gradient handed_over(torch::Tensor gradient, torch::Device device) {
  if (!gradient.defined()) return {};
  torch::Tensor values = released(std::move(gradient), device);
  const auto view = view_of(values);
  return {view, std::make_shared<torch::Tensor>(std::move(values)), true};
}

}  // namespace

void make_gradients_dense(const std::vector<torch::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters)
    if (auto& gradient = parameter.mutable_grad(); gradient.defined() && gradient.is_sparse())
      gradient = gradient.to_dense();
}

GradientIntake::GradientIntake(GradientSums& sums, std::vector<torch::Tensor> parameters, torch::Device device,
                               std::shared_ptr<TrainerStream> trainer, bool reuse,
                               std::unique_ptr<GradientDownload> download)
    : sums_(sums),
      parameters_(std::move(parameters)),
      device_(device),
      trainer_(std::move(trainer)),
      reuse_(reuse),
      download_(std::move(download)) {}

void GradientIntake::take_batch(double samples, double scale) {
  if (reuse_) {
    if (filled_.times > 0 && filled_.scale != scale)
      throw std::logic_error(
          "cohive::Optimizer: with reuse_grad_buffers all gradients of an epoch have one loss scale; change it where "
          "an epoch has ended only");
    filled_.scale = scale;
    if (filled_.times > 0 && filled_.samples != samples && !std::exchange(told_of_sizes_, true))
      log::warn(
          "torch",
          "with reuse_grad_buffers batches of {} and of {} samples weigh the same: gradients add up in the model. "
          "Leave the option out where batches differ in size",
          filled_.samples, samples);
    filled_.samples = samples;
    if (witness_ && !parameters_[*witness_].grad().defined())
      throw std::logic_error(
          "cohive::Optimizer: with reuse_grad_buffers gradients add up in the model until the epoch ends, but "
          "something has cleared them; call zero_grad of cohive::Optimizer only");
    for (std::size_t i = 0; i < parameters_.size() && !witness_; ++i)
      if (parameters_[i].grad().defined()) witness_ = i;
    ++filled_.times;
    return;
  }
  if (download_) {
    auto [gradients, transfer] = download_->take();
    return sums_.add(std::move(gradients), samples, scale, std::move(transfer));
  }
  std::vector<GradientSums::Gradient> batch;
  batch.reserve(parameters_.size());
  for (auto& parameter : parameters_) batch.push_back(handed_over(std::move(parameter.mutable_grad()), device_));
  sums_.add(std::move(batch), samples, scale);
}

/// The trainer's thread waits for a device once, whatever the number of parameters.
bool GradientIntake::all_finite() const {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> told;  // of each device
  for (const auto& parameter : parameters_) {
    const torch::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.is_cpu() && values.is_contiguous()) {
      if (!optim::all_finite(view_of(values))) return false;
      continue;
    }
    const torch::Tensor finite = torch::isfinite(values).all();
    const auto same = std::ranges::find(told, finite.device(), &torch::Tensor::device);
    if (same == told.end())
      told.push_back(finite);
    else
      same->logical_and_(finite);
  }
  return std::ranges::all_of(told, [](const torch::Tensor& finite) { return finite.item<bool>(); });
}

void GradientIntake::drop_batch() {
  if (download_) download_->drop();
  for (auto& parameter : parameters_) parameter.mutable_grad().reset();
  filled_ = {};
  witness_.reset();
}

void GradientIntake::cut() {
  if (!reuse_) return sums_.cut();
  sums_.backend().follow_caller();
  for (auto& parameter : parameters_) filled_.gradients.push_back(std::move(parameter.mutable_grad()));
  cut_.push_back(std::exchange(filled_, {}));
  witness_.reset();
}

Task<GradientSums::Taken> GradientIntake::take() {
  return reuse_ ? take_reused() : sums_.take();
}

/// Starts the download of those that can be copied as they are, and leaves the others on the sums' device. Pinned
/// memory is made for that, and LibTorch may wait for its copies: neither is for the loop.
Task<GradientDownload::Batch> GradientIntake::move_to_sums(std::vector<torch::Tensor>& gradients) {
  const auto move = [&]() -> Result<GradientDownload::Batch> {
    GradientDownload::Batch downloaded;
    if (download_) downloaded = download_->copy(gradients);
    const auto turn = trainer_->in_turn();
    for (auto& gradient : gradients)
      if (gradient.defined()) gradient = released(std::move(gradient), device_);
    return downloaded;
  };
  co_return (co_await averaging::offload_leased(sums_.runtime(), move)).value();
}

Task<GradientSums::Taken> GradientIntake::take_reused() {
  auto [gradients, samples, times, scale] = std::move(cut_.front());
  cut_.pop_front();
  struct Owners {
    std::vector<torch::Tensor> tensors;
    std::shared_ptr<train::Transfer> downloaded;
  };
  auto owners = std::make_shared<Owners>();
  GradientSums::Taken taken;
  taken.factor = times > 0 ? 1 / (static_cast<double>(times) * scale) : 0;
  for (const auto& gradient : gradients) taken.present.push_back(gradient.defined());
  train::Backend& backend = sums_.backend();
  std::vector<Buffer> without;
  std::vector<optim::ConstView> unread;
  std::vector<optim::Addition> converted;
  const GradientDownload::Batch downloaded = co_await move_to_sums(gradients);
  owners->downloaded = downloaded.transfer;
  if (downloaded.transfer) co_await downloaded.transfer->done();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto size = static_cast<std::size_t>(parameters_[i].numel());
    if (downloaded.transfer && downloaded.gradients[i].owner) {  // pinned memory is for what is under way
      taken.sums.push_back(backend.allocate(size));
      converted.push_back({downloaded.gradients[i].values, taken.sums.back().values});
      continue;
    }
    if (!gradients[i].defined()) {
      taken.sums.push_back(backend.allocate(size));
      without.push_back(taken.sums.back());
      continue;
    }
    const torch::Tensor values = std::move(gradients[i]);
    const auto view = view_of(values);
    owners->tensors.push_back(values);
    if (view.dtype() == optim::DType::float32) {
      taken.sums.push_back({std::make_shared<torch::Tensor>(values), {values.data_ptr<float>(), size}});
      unread.push_back(view);
    } else {
      taken.sums.push_back(backend.allocate(size));
      converted.push_back({view, taken.sums.back().values});
    }
  }
  gradients.clear();
  backend.follow_caller();  // what was converted
  if (!unread.empty()) taken.finite &= co_await backend.all_finite(std::move(unread), owners);
  if (!converted.empty())
    taken.finite &= co_await backend.accumulate(std::move(converted), {.factor = 1, .first = true}, owners);
  if (!taken.finite) {
    without = taken.sums;
    taken.present.assign(taken.present.size(), false);
  }
  if (!without.empty()) co_await backend.clear(std::move(without));
  co_return taken;
}

Task<void> GradientIntake::drop() {
  if (!reuse_) co_return co_await sums_.drop();
  cut_.clear();
}

}  // namespace cohive::libtorch
