/// \file
/// Buffer: float32 values in the memory of the host or of a device, with what keeps the memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace cohive::train {

/// Shares its memory with its copies.
struct Buffer {
  std::shared_ptr<void> owner;  ///< of the memory; null for none
  std::span<float> values;      ///< what the buffer holds; valid as long as `owner` or a copy of it

  /// Returns host memory for `size` values, which are undefined; of large buffers MappedPages.
  static Buffer on_host(std::size_t size);
  /// Tells whether there is memory, even of no values.
  explicit operator bool() const noexcept { return owner != nullptr; }
};

}  // namespace cohive::train
