#include "memory_peak.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_held{0}, g_highest{0};

void* counted(void* block) {
  if (!block) throw std::bad_alloc();
  const std::size_t held = g_held += malloc_usable_size(block);
  std::size_t highest = g_highest;
  while (held > highest && !g_highest.compare_exchange_weak(highest, held)) {
  }
  return block;
}
void release(void* block) {
  if (block) g_held -= malloc_usable_size(block);
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(std::malloc(size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* block) noexcept {
  release(block);
}
void operator delete(void* block, std::size_t) noexcept {
  release(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  release(block);
}
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  release(block);
}

namespace cohive {

MemoryPeak::MemoryPeak() : before_(g_held) {
  g_highest = g_held.load();
}
std::size_t MemoryPeak::bytes() const {
  return g_highest - before_;
}

}  // namespace cohive
