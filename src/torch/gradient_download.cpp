#include "gradient_download.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "model_state.hpp"
#include "versions.hpp"

namespace cohive::libtorch {
namespace {

using train::GradientSums;

constexpr std::size_t kBucket = std::size_t{16}
                                << 20;        // bytes: half a millisecond of a bus, so few events and little delay
constexpr std::size_t kPlaceAlignment = 256;  // bytes

bool copied_as_it_is(const torch::Tensor& gradient, const torch::Tensor& parameter) {
  return gradient.defined() && !gradient.is_sparse() && gradient.is_contiguous() && !gradient.is_inference() &&
         gradient.device() == parameter.device() && gradient.scalar_type() == parameter.scalar_type();
}

}  // namespace

/// Transfers that nothing uses. Outlives the download: gradients may still be read then.
struct GradientDownload::Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<train::Transfer>> transfers;
};

/// Goes on to what was the parameter's hook before.
class GradientDownload::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Base = torch::autograd::PostAccumulateGradHook;
  Hook(std::shared_ptr<GradientDownload*> download, std::size_t parameter, std::unique_ptr<Base> before)
      : download_(std::move(download)), parameter_(parameter), before_(std::move(before)) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    if (*download_) (*download_)->complete(parameter_);
  }
  bool is_of(const std::shared_ptr<GradientDownload*>& download) const { return download_ == download; }
  std::unique_ptr<Base> before() { return std::move(before_); }

 private:
  const std::shared_ptr<GradientDownload*> download_;
  const std::size_t parameter_;
  std::unique_ptr<Base> before_;
};

GradientDownload::GradientDownload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> parameters,
                                   bool early)
    : link_(std::move(link)),
      parameters_(std::move(parameters)),
      offsets_{0},
      idle_(std::make_shared<Idle>()),
      early_(parameters_.size()),
      times_(parameters_.size()),
      expected_times_(parameters_.size(), 1),
      alive_(std::make_shared<GradientDownload*>(this)) {
  for (const auto& parameter : parameters_) {
    const std::size_t rounded = (parameter.nbytes() + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
    offsets_.push_back(offsets_.back() + rounded);
  }
  for (std::size_t i = 0; early && i < parameters_.size(); ++i) {
    if (!parameters_[i].requires_grad()) continue;
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(parameters_[i]));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i],
                                                   std::make_unique<Hook>(alive_, i, std::move(before)));
  }
}

GradientDownload::~GradientDownload() {
  *alive_ = nullptr;
  for (const auto& parameter : parameters_) {
    if (!parameter.requires_grad()) continue;
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    auto* const ours = dynamic_cast<Hook*>(hook.get());
    if (ours && ours->is_of(alive_)) hook = ours->before();
  }
}

MutableBytes GradientDownload::place(std::size_t parameter) {
  return transfer().memory().subspan(offsets_[parameter], parameters_[parameter].nbytes());
}

train::Transfer& GradientDownload::transfer() {
  if (current_) return *current_;
  std::unique_ptr<train::Transfer> next;
  {
    const std::lock_guard lock(idle_->mutex);
    if (!idle_->transfers.empty()) {
      next = std::move(idle_->transfers.back());
      idle_->transfers.pop_back();
    }
  }
  if (!next) next = link_->open(offsets_.back());
  current_ = {next.release(), [idle = idle_](train::Transfer* unused) {
                std::unique_ptr<train::Transfer> owned(unused);
                const std::lock_guard lock(idle->mutex);
                idle->transfers.push_back(std::move(owned));
              }};
  return *current_;
}

// ---- During backward()

/// The gradient of a parameter has been added to. An error waits for the next call of the trainer: backward() is not
/// ours.
void GradientDownload::complete(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  Early& early = early_[parameter];
  early.valid = false;  // what was copied is not all of it
  const torch::Tensor& gradient = parameters_[parameter].grad();
  if (++times_[parameter] < expected_times_[parameter] || failure_ ||
      !copied_as_it_is(gradient, parameters_[parameter]))
    return;
  if (std::ranges::find(bucket_, parameter) != bucket_.end()) return;
  bucket_.push_back(parameter);
  bucket_bytes_ += gradient.nbytes();
  if (bucket_bytes_ < kBucket) return;
  try {
    start_bucket();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void GradientDownload::start_bucket() {
  const auto parameters = std::exchange(bucket_, {});
  bucket_bytes_ = 0;
  link_->sync_with_caller_stream();
  transfer().follow_trainer();
  for (const std::size_t i : parameters) {
    const torch::Tensor& gradient = parameters_[i].grad();
    if (!copied_as_it_is(gradient, parameters_[i])) continue;
    if (early_[i].gradient.defined() && !early_[i].gradient.is_same(gradient))
      replaced_.push_back(std::move(early_[i].gradient));
    early_[i] = {gradient, version_of(gradient), false};
    transfer().download(gradient.data_ptr(), place(i));
    early_[i].valid = true;
  }
}

// ---- After it

/// Memory that stays as it is while it is copied: the gradient's own where nothing else refers to it, or a copy on the
/// device.
torch::Tensor GradientDownload::prepared(torch::Tensor gradient, std::size_t parameter) const {
  torch::NoGradGuard no_grad;
  const torch::Tensor& like = parameters_[parameter];
  torch::Tensor values =
      (gradient.is_sparse() ? gradient.to_dense() : gradient).to(like.device(), like.scalar_type()).contiguous();
  const std::size_t ours = early_[parameter].gradient.is_same(values) ? 1 : 0;
  gradient.reset();
  return is_exclusive(values, 1 + ours) ? values : values.clone();
}

GradientDownload::Batch GradientDownload::take() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  bucket_.clear();
  bucket_bytes_ = 0;
  std::vector<torch::Tensor> gradients, owners = std::exchange(replaced_, {});
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    expected_times_[i] = std::max<std::size_t>(1, std::exchange(times_[i], 0));
    gradients.push_back(std::move(parameters_[i].mutable_grad()));
    if (gradients[i].defined()) {
      gradients[i] = prepared(std::move(gradients[i]), i);
      const Early& early = early_[i];
      if (!early.valid || !early.gradient.is_same(gradients[i]) || early.version != version_of(gradients[i]))
        late.push_back(i);
    }
    owners.push_back(std::exchange(early_[i], {}).gradient);
  }
  if (!late.empty()) link_->sync_with_caller_stream();
  return leave(std::move(gradients), late, std::move(owners));
}

GradientDownload::Batch GradientDownload::copy(std::vector<torch::Tensor>& gradients) {
  const std::lock_guard lock(mutex_);
  std::vector<torch::Tensor> plain(gradients.size());
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (copied_as_it_is(gradients[i], parameters_[i]) && is_exclusive(gradients[i])) {
      plain[i] = std::move(gradients[i]);
      all.push_back(i);
    }
  return leave(std::move(plain), all, {});
}

/// Queues what has not been copied yet.
GradientDownload::Batch GradientDownload::leave(std::vector<torch::Tensor> gradients,
                                                const std::vector<std::size_t>& late,
                                                std::vector<torch::Tensor> owners) {
  if (!late.empty()) transfer().follow_trainer();
  for (const std::size_t i : late) transfer().download(gradients[i].data_ptr(), place(i));
  Batch batch;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    batch.gradients.emplace_back();
    if (!gradients[i].defined()) continue;
    auto& [values, owner, exclusive] = batch.gradients.back();
    values = {*dtype_of(gradients[i]), place(i).data(), static_cast<std::size_t>(gradients[i].numel())};
    owner = current_;
    owners.push_back(std::move(gradients[i]));
  }
  batch.transfer = std::move(current_);
  if (batch.transfer) batch.transfer->keep(std::make_shared<std::vector<torch::Tensor>>(std::move(owners)));
  return batch;
}

void GradientDownload::drop() {
  const std::lock_guard lock(mutex_);
  if (current_) current_->wait();  // its gradients were looked through, which has waited for them already
  bucket_.clear();
  bucket_bytes_ = 0;
  replaced_.clear();
  std::ranges::fill(times_, 0);
  for (auto& early : early_) early = {};
  failure_ = nullptr;
}

}  // namespace cohive::libtorch
