// What newcomers may download of a trainer's state, copied only when somebody asks.
//
// The parameters and the optimizer's statistics change within Optimizer's calls only: when an epoch ends, when the
// parameters were averaged, when a state was loaded. In between, for a whole epoch, batches read the parameters and
// write gradients. So each change offers the tensors themselves, and whoever asks later copies them then, which gives
// the state at the border of the epoch; the next change waits for a copy in progress. A peer whom nobody asks pays
// nothing, one that is asked pays one copy for all who ask before the next change. A trainer that writes to its
// parameters by itself shares them as they are then; the tensors' version counters show a copy during which they
// changed, and it is made again.
#pragma once

#include <memory>
#include <mutex>

#include "cohive/core/runtime.hpp"
#include "optimizer_state.hpp"

namespace cohive::train {

inline constexpr Duration kStateCopyIdle = 30s;  ///< that a copy is kept after the last use; making one takes seconds

class StateShelf {
 public:
  /// The trainer's thread: runs `work`, which changes the state, and offers what it returns; nothing: not shared.
  template <class F>
  void change(F work) {
    const std::lock_guard lock(mutex_);
    copy_.reset();
    offered_.reset();
    copied_changes_ = 0;
    ++version_;
    offered_ = work();
    settle();
  }
  /// Any thread but the loop's: it takes as long as copying the state does.
  std::optional<averaging::SharedState> copy();
  /// Loop thread, for as long as the shelf is shared: gives a copy up that nobody has used for `idle`, at most half as
  /// long again later.
  static Task<void> give_up_idle_copies(std::shared_ptr<StateShelf> shelf, Runtime& runtime,
                                        Duration idle = kStateCopyIdle);

 private:
  void settle();
  void give_up_unused();

  std::mutex mutex_;
  std::optional<StateDescription> offered_;
  std::optional<averaging::SharedState> copy_;  // of what is offered
  std::uint64_t version_ = 0;
  std::uint64_t copied_changes_ = 0;  // of the tensors, when they were copied under this version
  int unused_ = 0;                    // looks in a row at which nobody used the copy
};

}  // namespace cohive::train
