#include "parameter_upload.hpp"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace cohive::libtorch {
namespace {

constexpr std::int64_t kStagedAtOnce = std::int64_t{4} << 20;  // values of a bucket
constexpr std::size_t kMirrorAlignment = 256;                  // bytes

bool takes_plain_copies(const torch::Tensor& mirror) {
  return mirror.is_contiguous() && mirror.is_non_overlapping_and_dense();
}

}  // namespace

ParameterUpload::ParameterUpload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> mirrors)
    : link_(std::move(link)), mirrors_(std::move(mirrors)), offsets_{0} {
  for (const auto& mirror : mirrors_) {
    const std::size_t rounded = (mirror.nbytes() + kMirrorAlignment - 1) / kMirrorAlignment * kMirrorAlignment;
    offsets_.push_back(offsets_.back() + rounded);
  }
}

/// The copies before may still read the memory.
void ParameterUpload::prepare() {
  if (transfer_)
    transfer_->wait();
  else
    transfer_ = link_->open(offsets_.back());
}

torch::Tensor ParameterUpload::place(std::size_t parameter) const {
  return torch::from_blob(transfer_->memory().subspan(offsets_[parameter]).data(), {mirrors_[parameter].numel()},
                          mirrors_[parameter].options().device(torch::kCPU).requires_grad(false));
}

/// As an operation of LibTorch tells what has saved the tensor for a backward pass.
void ParameterUpload::written(std::size_t parameter) const {
  if (!mirrors_[parameter].is_inference()) torch::autograd::impl::bump_version(mirrors_[parameter]);
}

void ParameterUpload::stage(const std::vector<torch::Tensor>& values) {
  torch::NoGradGuard no_grad;
  prepare();
  for (std::size_t i = 0; i < mirrors_.size(); ++i) place(i).copy_(values[i].reshape({-1}));
  staged_ = true;
}

void ParameterUpload::send() {
  torch::NoGradGuard no_grad;
  staged_ = false;
  transfer_->follow_trainer();
  for (std::size_t i = 0; i < mirrors_.size(); ++i) {
    if (!takes_plain_copies(mirrors_[i])) {
      mirrors_[i].copy_(place(i).reshape(mirrors_[i].sizes()));
      continue;
    }
    transfer_->upload(transfer_->memory().subspan(offsets_[i], mirrors_[i].nbytes()), mirrors_[i].data_ptr());
    written(i);
  }
  transfer_->hold_back_trainer();
}

void ParameterUpload::send(const std::vector<torch::Tensor>& values) {
  torch::NoGradGuard no_grad;
  prepare();
  staged_ = false;
  transfer_->follow_trainer();
  for (std::size_t i = 0; i < mirrors_.size(); ++i) {
    const torch::Tensor from = values[i].reshape({-1}), to = place(i);
    if (!takes_plain_copies(mirrors_[i])) {
      mirrors_[i].copy_(values[i]);
      continue;
    }
    auto* const target = static_cast<std::uint8_t*>(mirrors_[i].data_ptr());
    for (std::int64_t begin = 0; begin < from.numel(); begin += kStagedAtOnce) {
      const std::int64_t length = std::min(kStagedAtOnce, from.numel() - begin);
      torch::Tensor bucket = to.narrow(0, begin, length);
      bucket.copy_(from.narrow(0, begin, length));
      const std::size_t offset = static_cast<std::size_t>(begin) * to.element_size();
      transfer_->upload({static_cast<const std::uint8_t*>(bucket.data_ptr()), bucket.nbytes()}, target + offset);
    }
    written(i);
  }
  transfer_->hold_back_trainer();
}

}  // namespace cohive::libtorch
