// The GPU that a caller's model is on, where the library is built with cohive::cuda.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cohive/train/backend.hpp"

namespace cohive::c {

/// How many there are; 0 without cohive::cuda, and without a driver.
int gpu_count() noexcept;

/// Any thread, but for the backend's functions. Errors of the device are thrown as ErrorException.
class Gpu {
 public:
  virtual ~Gpu() = default;

  /// Returns what computes there.
  virtual const std::shared_ptr<train::Backend>& backend() const noexcept = 0;
  /// Notes on which stream the trainer queues its work from now on, a cudaStream_t.
  virtual void note_stream(void* stream) = 0;
  /// Copies parameters there, after what the trainer has queued, and before what it queues from now on.
  virtual void copy(std::span<const float> from, std::span<float> to) = 0;
  /// Memory there, and where it is copied to.
  struct Download {
    const void* from;
    MutableBytes to;
  };
  /// Copies to the host what the trainer has queued so far has written, and waits.
  virtual void read(const std::vector<Download>& copies) = 0;
};

/// Throws what becomes a sentence where there is no such GPU.
std::shared_ptr<Gpu> open_gpu(Runtime& runtime, int device);

}  // namespace cohive::c
