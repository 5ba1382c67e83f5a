/// \file
/// DeviceLink: copies between the memory of a device, where a trainer computes, and pinned memory of the host, where an
/// offloaded optimizer steps. Copies run on streams of their own beside the trainer's work: neither its thread nor the
/// loop waits for them. That of a GPU is in cohive/cuda/backend.hpp.
#pragma once

#include <memory>

#include "cohive/core/bytes.hpp"
#include "cohive/core/task.hpp"

namespace cohive::train {

/// Copies that end together, and pinned memory of the host for them. They run one after another. One thread at a time;
/// the destructor waits. What a device reports as an error is thrown as ErrorException.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// Returns the host's memory.
  virtual MutableBytes memory() const noexcept = 0;
  /// Makes copies that are queued from now on begin after what the trainer had queued when it was noted last.
  virtual void follow_trainer() = 0;
  /// Queues a copy to the host. \param to  a part of memory()
  virtual void download(const void* from, MutableBytes to) = 0;
  /// Queues a copy to the device. \param from  a part of memory()
  virtual void upload(ByteView from, void* to) = 0;
  /// Makes what the trainer queues from now on begin after the copies; its thread goes on.
  virtual void hold_back_trainer() = 0;
  /// Keeps something until the copies are known to be done: the memory that they read.
  virtual void keep(std::shared_ptr<const void> owner) = 0;

  /// Completes when what was queued is done. Loop thread.
  virtual Task<void> done() = 0;
  /// The same for any other thread, which waits.
  virtual void wait() = 0;
};

/// Any thread.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  /// Makes a transfer with `bytes` of memory; it may outlive the link.
  virtual std::unique_ptr<Transfer> open(std::size_t bytes) = 0;
  /// Notes what the calling thread, a trainer's, has queued so far, and where it queues its work. An error of the
  /// device comes with the copies.
  virtual void sync_with_caller_stream() = 0;
};

}  // namespace cohive::train
