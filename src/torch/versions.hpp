// The version counters by which autograd, and readers of a model, see that a tensor was written to. LibTorch's
// operations count by themselves; what is written by its address, as cohive's steps do, has to be counted here.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

namespace cohive::libtorch {

/// Returns how often a tensor was written to.
inline std::uint32_t version_of(const torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

/// Counts values that were written in place: a graph that has saved the tensor refuses to go backward with other ones.
inline void note_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
}

/// The same for a tensor that was given other memory. The memory of before stays as it is, and so does the count of
/// those that read it.
inline void note_replaced(const torch::Tensor& tensor) {
  if (tensor.is_inference()) return;
  torch::autograd::impl::set_version_counter(tensor, c10::VariableVersion(version_of(tensor) + 1));
}

}  // namespace cohive::libtorch
