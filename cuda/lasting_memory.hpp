// Memory of a device that outlives rounds.
#pragma once

#include <memory>
#include <mutex>

#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

/// Memory in the order of a stream that has no other work: who frees it does not wait for the device, as cudaFree would
/// have the loop do. Any thread. Outlives the memory.
class LastingMemory {
 public:
  /// Errors: Errc::no_device.
  static Result<std::shared_ptr<LastingMemory>> create(int device) {
    auto stream = Stream::create(device);
    if (!stream) return stream.error();
    return std::make_shared<LastingMemory>(std::move(*stream));
  }
  explicit LastingMemory(Stream stream) : stream_(std::move(stream)) {}

  /// Takes memory that all streams may use. Waits until it is there: not for the loop. It must not be freed while work
  /// that uses it is queued. Errors: Errc::out_of_memory, Errc::failed.
  Result<DeviceBuffer> take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto memory = DeviceBuffer::create_on(stream_, bytes);
    if (!memory) return memory;
    if (auto there = stream_.synchronize(); !there) return there.error();
    return memory;
  }
  int device() const noexcept { return stream_.device(); }

 private:
  std::mutex mutex_;
  Stream stream_;
};

}  // namespace cohive::cuda
