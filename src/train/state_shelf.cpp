#include "state_shelf.hpp"

#include "cohive/core/log.hpp"

namespace cohive::train {
namespace {

constexpr int kAttempts = 3;

std::uint64_t changes_of(const std::vector<torch::Tensor>& tensors) {
  std::uint64_t sum = 0;
  for (const auto& tensor : tensors)
    if (!tensor.is_inference()) sum += tensor._version();
  return sum;
}

}  // namespace

/// The copy is made on another thread, whose stream does not wait for what this one has queued.
void StateShelf::settle() {
  if (!offered_) return;
  for (const auto& tensor : offered_->tensors) {
    if (!tensor.is_cuda()) continue;
    torch::cuda::synchronize(tensor.device().index());
    return;
  }
}

std::optional<averaging::SharedState> StateShelf::copy() {
  const std::lock_guard lock(mutex_);
  for (int attempt = 0; offered_ && !copy_ && attempt < kAttempts; ++attempt) {
    const std::uint64_t before = changes_of(offered_->tensors);
    auto copied = copy_of(*offered_);
    if (changes_of(offered_->tensors) != before) continue;
    copied.version = version_;
    copy_ = std::move(copied);
  }
  if (offered_ && !copy_) log::warn("train", "the state is not shared: it changes outside of cohive::Optimizer");
  return copy_;
}

}  // namespace cohive::train
