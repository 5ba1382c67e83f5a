#include "memory_peak.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "sanitizers.hpp"

#if COHIVE_SANITIZER
#include <sanitizer/allocator_interface.h>
#endif

namespace {

std::atomic<std::ptrdiff_t> g_held{0}, g_highest{0};

void count(std::size_t size) {
  const std::ptrdiff_t held = g_held += static_cast<std::ptrdiff_t>(size);
  std::ptrdiff_t highest = g_highest;
  while (held > highest && !g_highest.compare_exchange_weak(highest, held)) {
  }
}
void uncount(std::size_t size) {
  g_held -= static_cast<std::ptrdiff_t>(size);
}

#if COHIVE_SANITIZER
void on_malloc(const volatile void*, std::size_t size) {
  count(size);
}
void on_free(const volatile void* block) {
  if (block) uncount(__sanitizer_get_allocated_size(const_cast<const void*>(block)));
}
[[maybe_unused]] const int g_installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
#else
void* counted(void* block) {
  if (!block) throw std::bad_alloc();
  count(malloc_usable_size(block));
  return block;
}
void release(void* block) {
  if (block) uncount(malloc_usable_size(block));
  std::free(block);
}
#endif

}  // namespace

#if !COHIVE_SANITIZER
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
#endif

namespace cohive {

MemoryPeak::MemoryPeak() : before_(g_held) {
  g_highest = before_;
}
std::size_t MemoryPeak::bytes() const {
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(g_highest - before_, 0));
}

}  // namespace cohive
