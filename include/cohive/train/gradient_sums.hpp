/// \file
/// GradientSums: adds up the gradients of batches where a backend has them, off the trainer's thread.
///
/// What comes out is the mean over samples: the gradient of a batch weighs as much as the batch has samples. hivemind
/// divides by the number of batches, which is the same where all have one size (docs/wire/hivemind.md, section 7.2).
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/train/backend.hpp"
#include "cohive/train/device_link.hpp"

namespace cohive::train {

/// Sums gradients over the batches of an epoch, off the loop.
class GradientSums {
 public:
  /// \param sizes  values of each gradient
  GradientSums(Runtime& runtime, std::shared_ptr<Backend> backend, std::vector<std::size_t> sizes);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;

  /// The gradient of one parameter in one batch.
  struct Gradient {
    optim::View values;           ///< any floating dtype that the backend adds; empty: the parameter has none
    std::shared_ptr<void> owner;  ///< keeps the memory
    /// No other code uses the memory any more: where it is float32 it may become the sum itself.
    bool exclusive = false;
  };
  /// Adds the mean gradient of a batch of `samples` samples, in the background: the memory must not change until its
  /// owner is released. Any thread. Waits while an earlier batch has not been added yet (of up to 64 MiB: two), so that
  /// memory stays bounded.
  /// \param scale  of the loss, which the gradients have, too: sums and means are without it
  /// \param transfer  on which the gradients are still arriving; null: they are there
  /// Throws std::invalid_argument for a batch without samples, and what kept an earlier batch from being added, such as
  /// an error of the device; so does take().
  void add(std::vector<Gradient> batch, double samples, double scale = 1, std::shared_ptr<Transfer> transfer = nullptr);

  /// The sums of an epoch.
  struct Taken {
    std::vector<Buffer> sums;   ///< one for each gradient; zeros where no batch had it
    std::vector<bool> present;  ///< for each gradient: a batch had it
    double factor = 0;          ///< makes them means; 0: there was no batch
    bool finite = true;         ///< else all sums are zero, and none is present
  };
  /// Ends the sums: batches that are added from now on belong to the next ones. To be called once before take or drop.
  /// Any thread.
  void cut();
  /// Completes when all batches before the cut have been added.
  Task<Taken> take();
  /// Throws away what was added before the cut.
  Task<void> drop();
  /// Returns what adds.
  Backend& backend() const noexcept { return *backend_; }
  /// Returns whose loop this is.
  Runtime& runtime() const noexcept { return runtime_; }

 private:
  struct Batch {
    std::vector<Gradient> gradients;
    double samples, scale;
    std::shared_ptr<Transfer> transfer;
    std::uint64_t generation;
  };
  /// What a number of batches add up to.
  struct Sums {
    std::vector<Buffer> values;
    double anchor = 0, scale = 1;  // samples and loss scale of the first batch, which is added as it is
    double samples = 0;
    bool finite = true;
  };
  static Task<void> work(GradientSums& self);
  Task<void> add_all();
  Task<void> add_now(Batch batch);
  Task<void> add_slice(std::span<Gradient> gradients, std::size_t begin, double factor);
  Task<Sums> take_cut();
  Sums no_sums() const { return {std::vector<Buffer>(sizes_.size())}; }

  Runtime& runtime_;
  const std::shared_ptr<Backend> backend_;
  const std::vector<std::size_t> sizes_;
  const std::size_t most_unfinished_;  // batches
  // Of any thread.
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Batch> queue_;
  std::uint64_t generation_ = 0;                     // of batches that come now
  std::size_t unfinished_ = 0, cut_unfinished_ = 0;  // batches not added yet: of this generation, of earlier ones
  // Of the loop.
  Sums sums_;
  std::uint64_t sums_generation_ = 0;
  std::optional<Sums> cut_;  // sums that wait to be taken
  bool working_ = false;
  std::exception_ptr failure_;  // set under the mutex
  Condition progress_;
  std::shared_ptr<GradientSums*> alive_;  // what posted calls find, or null
  TaskGroup tasks_;
};

}  // namespace cohive::train
