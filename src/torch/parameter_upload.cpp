#include "parameter_upload.hpp"

#include <algorithm>

#include "cohive/optim/passes.hpp"
#include "model_state.hpp"
#include "versions.hpp"

namespace cohive::libtorch {
namespace {

using averaging::Stretch;

constexpr std::size_t kStagedAtOnce = std::size_t{4} << 20;  // values of a bucket
constexpr std::size_t kMirrorAlignment = 256;                // bytes

bool takes_plain_copies(const torch::Tensor& mirror) {
  return mirror.is_contiguous() && mirror.is_non_overlapping_and_dense();
}

std::size_t size_of(const torch::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

}  // namespace

ParameterUpload::ParameterUpload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> mirrors)
    : link_(std::move(link)), mirrors_(std::move(mirrors)), offsets_{0} {
  for (const auto& mirror : mirrors_) {
    types_.push_back(*dtype_of(mirror));
    const std::size_t rounded = (mirror.nbytes() + kMirrorAlignment - 1) / kMirrorAlignment * kMirrorAlignment;
    offsets_.push_back(offsets_.back() + rounded);
  }
}

void ParameterUpload::begin(bool at_once) {
  const std::lock_guard lock(mutex_);
  at_once_ = at_once;
  ready_ = prepared_ = false;
  staged_.emplace(mirrors_.size());
  failure_ = nullptr;
}

void ParameterUpload::forget() noexcept {
  const std::lock_guard lock(mutex_);
  staged_.reset();
  ready_ = false;
}

/// The copies before may still read the memory.
void ParameterUpload::prepare() {
  const std::lock_guard lock(mutex_);
  if (prepared_) return;
  if (failure_) std::rethrow_exception(failure_);
  if (transfer_)
    transfer_->wait();
  else
    transfer_ = link_->open(offsets_.back());
  if (at_once_) transfer_->follow_trainer();
  prepared_ = true;
}

optim::View ParameterUpload::place(std::size_t parameter) const {
  const auto& mirror = mirrors_[parameter];
  if (dtype_of(mirror) != types_[parameter])
    throw std::logic_error("cohive::Optimizer: a parameter has another type than when the optimizer was made");
  return {types_[parameter], transfer_->memory().subspan(offsets_[parameter]).data(), size_of(mirror)};
}

/// Queues the copy of what is staged.
void ParameterUpload::upload(const Stretch& stretch) {
  const auto& mirror = mirrors_[stretch.tensor];
  const std::size_t size = mirror.element_size(), offset = stretch.offset * size, length = stretch.length * size;
  const ByteView from = transfer_->memory().subspan(offsets_[stretch.tensor] + offset, length);
  transfer_->upload(from, static_cast<std::uint8_t*>(mirror.data_ptr()) + offset);
}

void ParameterUpload::stage(const Stretch& stretch, std::span<const float> values) noexcept {
  try {
    prepare();
    optim::copy(values, place(stretch.tensor).sub(stretch.offset, stretch.length));
    staged_->claim(stretch);
    if (!at_once_ || !takes_plain_copies(mirrors_[stretch.tensor])) return;
    const std::lock_guard lock(mutex_);
    if (!failure_) upload(stretch);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void ParameterUpload::finish(const std::vector<torch::Tensor>& values) {
  torch::NoGradGuard no_grad;
  prepare();
  for (std::size_t i = 0; i < mirrors_.size(); ++i) {
    const std::span all(values[i].data_ptr<float>(), size_of(mirrors_[i]));
    for (const Stretch& gap : staged_->missing({i, 0, all.size()}))
      for (std::size_t done = 0; done < gap.length; done += kStagedAtOnce) {
        const Stretch bucket{i, gap.offset + done, std::min(kStagedAtOnce, gap.length - done)};
        stage(bucket, all.subspan(bucket.offset, bucket.length));
      }
  }
  staged_.reset();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  ready_ = !at_once_;
  if (!at_once_) return;
  for (std::size_t i = 0; i < mirrors_.size(); ++i)
    takes_plain_copies(mirrors_[i]) ? note_written(mirrors_[i]) : void(mirrors_[i].copy_(values[i]));
  transfer_->hold_back_trainer();
}

void ParameterUpload::send(const std::vector<torch::Tensor>& values) {
  begin(true);
  finish(values);
}

void ParameterUpload::send() {
  torch::NoGradGuard no_grad;
  ready_ = false;
  transfer_->follow_trainer();
  for (std::size_t i = 0; i < mirrors_.size(); ++i) {
    if (takes_plain_copies(mirrors_[i])) {
      upload({i, 0, size_of(mirrors_[i])});
      note_written(mirrors_[i]);
      continue;
    }
    const auto staged = torch::from_blob(place(i).data(), mirrors_[i].sizes(),
                                         mirrors_[i].options().device(torch::kCPU).requires_grad(false));
    mirrors_[i].copy_(staged);
  }
  transfer_->hold_back_trainer();
}

}  // namespace cohive::libtorch
