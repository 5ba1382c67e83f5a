#include "cohive/core/task.hpp"

#include <array>
#include <cstdlib>
#include <new>

namespace cohive::detail {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define COHIVE_PLAIN_FRAMES 1  // recycled frames would hide use after free
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define COHIVE_PLAIN_FRAMES 1
#endif

#ifndef COHIVE_PLAIN_FRAMES
constexpr std::size_t kFrameStep = 64;
constexpr std::size_t kClasses = 32;       // frames up to 2 KiB are recycled
constexpr std::size_t kKeptFrames = 1024;  // per class

struct Free {
  Free* next;
};
struct FrameCache {
  std::array<Free*, kClasses> heads{};
  std::array<std::size_t, kClasses> counts{};
  ~FrameCache() {
    for (Free*& head : heads) {
      while (head) std::free(std::exchange(head, head->next));
    }
    counts.fill(kKeptFrames);  // frames that outlive the thread's own destructors are no longer kept
  }
};
thread_local FrameCache frame_cache;
#endif

}  // namespace

void* PromiseBase::operator new(std::size_t size) {
#ifndef COHIVE_PLAIN_FRAMES
  const std::size_t index = (size - 1) / kFrameStep;
  if (index < kClasses) {
    if (Free* head = frame_cache.heads[index]) {
      frame_cache.heads[index] = head->next;
      --frame_cache.counts[index];
      return head;
    }
    size = (index + 1) * kFrameStep;
  }
#endif
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

void PromiseBase::operator delete(void* memory, std::size_t size) noexcept {
#ifndef COHIVE_PLAIN_FRAMES
  const std::size_t index = (size - 1) / kFrameStep;
  if (index < kClasses && frame_cache.counts[index] < kKeptFrames) {
    auto* head = static_cast<Free*>(memory);
    head->next = frame_cache.heads[index];
    frame_cache.heads[index] = head;
    ++frame_cache.counts[index];
    return;
  }
#endif
  (void)size;
  std::free(memory);
}

}  // namespace cohive::detail
