// Pinned memory that is used again: to allocate it takes longer than to fill it.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

/// Pinned memory of a pool, at least as much as was asked for.
using Pinned = std::shared_ptr<const HostBuffer>;

/// Any thread. Memory outlives the pool. Whoever gives memory back does not wait: the system is asked in take() alone.
class PinnedPool {
 public:
  /// Takes memory that comes back when the result dies; waits where there is none to be used again. Errors: as
  /// HostBuffer::create.
  Result<Pinned> take(std::size_t bytes) {
    if (auto again = reuse(bytes)) return again;
    make_room();
    auto made = HostBuffer::create(bytes);
    if (!made) return made.error();
    {
      const std::lock_guard lock(free_->mutex);
      ++free_->made;
    }
    return owned(std::move(*made));
  }
  /// Takes memory that was used before, of up to twice the size; null: there is none. At once.
  Pinned reuse(std::size_t bytes) {
    const std::lock_guard lock(free_->mutex);
    for (auto one = free_->buffers.begin(); one != free_->buffers.end(); ++one) {
      if (one->size() < bytes || one->size() > 2 * bytes) continue;
      HostBuffer found = std::move(*one);
      free_->buffers.erase(one);
      return owned(std::move(found));
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kKept = 64;
  struct Free {
    std::mutex mutex;
    std::deque<HostBuffer> buffers;
    std::size_t made = 0;  // with those in use
  };

  /// What is asked for changes from run to run: the oldest goes, and is freed without the lock.
  void make_room() {
    std::deque<HostBuffer> oldest;
    const std::lock_guard lock(free_->mutex);
    for (; free_->made >= kKept && !free_->buffers.empty(); --free_->made) {
      oldest.push_back(std::move(free_->buffers.front()));
      free_->buffers.pop_front();
    }
  }

  Pinned owned(HostBuffer memory) const {
    return Pinned(new HostBuffer(std::move(memory)), [free = free_](const HostBuffer* one) {
      const std::unique_ptr<HostBuffer> back(const_cast<HostBuffer*>(one));
      const std::lock_guard lock(free->mutex);
      free->buffers.push_back(std::move(*back));
    });
  }

  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace cohive::cuda
