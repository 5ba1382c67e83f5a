/// \file
/// HostBuffer: float32 values in host memory, with what keeps the memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cohive::train {

/// Shares its memory with its copies.
struct HostBuffer {
  std::shared_ptr<void> owner;  ///< of the memory; null for none
  std::span<float> values;  ///< what the buffer holds; valid as long as `owner` or a copy of it

  /// Returns memory for `size` values, which are undefined; of large buffers MappedPages.
  static HostBuffer allocate(std::size_t size);
  /// Tells whether there is memory, even of no values.
  explicit operator bool() const noexcept { return owner != nullptr; }
};

}  // namespace cohive::train
