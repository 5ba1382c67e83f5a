#include "state_shelf.hpp"

#include <algorithm>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive::train {
namespace {

constexpr int kAttempts = 3;
constexpr int kLooks = 2;  // for each time that a copy is kept unused

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
  unused_ = 0;
  for (int attempt = 0; offered_ && !copy_ && attempt < kAttempts; ++attempt) {
    const std::uint64_t before = changes_of(offered_->tensors);
    auto copied = copy_of(*offered_);
    if (changes_of(offered_->tensors) != before) continue;
    // An earlier copy was given up and the trainer has written to its parameters since: not the same state.
    if (copied_changes_ != 0 && copied_changes_ != before + 1) ++version_;
    copied_changes_ = before + 1;
    copied.version = version_;
    copy_ = std::move(copied);
  }
  if (offered_ && !copy_) log::warn("train", "the state is not shared: it changes outside of cohive::Optimizer");
  return copy_;
}

/// Who downloads holds on to the copy's memory.
void StateShelf::give_up_unused() {
  std::optional<averaging::SharedState> given_up;  // and freed after the lock
  const std::lock_guard lock(mutex_);
  if (!copy_) return;
  const bool used =
      std::ranges::any_of(copy_->tensors, [](const auto& t) { return !t.data.empty() && !t.data.unique(); });
  unused_ = used ? 0 : unused_ + 1;
  if (unused_ > kLooks) given_up = std::exchange(copy_, std::nullopt);
}

Task<void> StateShelf::give_up_idle_copies(std::shared_ptr<StateShelf> shelf, Runtime& runtime, Duration idle) {
  for (;;) {
    co_await runtime.sleep_for(idle / kLooks);
    // Not on the loop: a copy in progress is waited for, and freeing much memory takes its time.
    co_await runtime.offload([shelf] {
      shelf->give_up_unused();
      return true;
    });
  }
}

}  // namespace cohive::train
