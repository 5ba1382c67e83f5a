// Pinned memory that is used again: to allocate it takes longer than to fill it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

/// Any thread. Memory outlives the pool.
class PinnedPool {
 public:
  /// Returns at least `bytes`; it comes back when the result dies. Errors: as HostBuffer::create.
  Result<std::shared_ptr<const HostBuffer>> take(std::size_t bytes) {
    std::optional<HostBuffer> found;
    {
      const std::lock_guard lock(free_->mutex);
      for (auto& one : free_->buffers)
        if (one.size() >= bytes && one.size() <= 2 * bytes) {
          found = std::move(one);
          free_->buffers.erase(free_->buffers.begin() + (&one - free_->buffers.data()));
          break;
        }
    }
    if (!found) {
      auto made = HostBuffer::create(bytes);
      if (!made) return made.error();
      found = std::move(*made);
    }
    return std::shared_ptr<const HostBuffer>(new HostBuffer(std::move(*found)), [free = free_](const HostBuffer* one) {
      const std::unique_ptr<HostBuffer> owned(const_cast<HostBuffer*>(one));
      std::optional<HostBuffer> oldest;  // freed without the lock: what is asked for changes from run to run
      const std::lock_guard lock(free->mutex);
      if (free->buffers.size() == kKept) {
        oldest = std::move(free->buffers.front());
        free->buffers.erase(free->buffers.begin());
      }
      free->buffers.push_back(std::move(*owned));
    });
  }

 private:
  static constexpr std::size_t kKept = 64;
  struct Free {
    std::mutex mutex;
    std::vector<HostBuffer> buffers;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace cohive::cuda
