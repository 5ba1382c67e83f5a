// How much memory a piece of work takes at its worst: what operator new hands out, in programs that link
// memory_peak.cpp. Sanitizers have an operator new of their own; under them all that their allocator hands out counts,
// blocks of slices included.
#pragma once

#include <cstddef>

namespace cohive {

/// Counts from its construction on. One at a time.
class MemoryPeak {
 public:
  MemoryPeak();
  /// Bytes beyond those held at the beginning, at the worst moment so far.
  std::size_t bytes() const;

 private:
  std::ptrdiff_t before_;
};

}  // namespace cohive
