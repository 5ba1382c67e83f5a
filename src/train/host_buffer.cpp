#include "cohive/train/host_buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace cohive::train {
namespace {
constexpr std::size_t kLine = 64, kHugePage = std::size_t{2} << 20, kLarge = 2 * kHugePage;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return std::max((bytes + unit - 1) / unit * unit, unit);
}

/// A mapping of its own: the system has the memory back as soon as it is released, whatever the allocator keeps for later.
HostBuffer map_pages(std::size_t size, std::size_t bytes) {
  const std::size_t rounded = rounded_up(bytes, kHugePage);
  // One huge page more, so that the values can begin at one.
  void* mapping = ::mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  auto* values = reinterpret_cast<float*>(rounded_up(address, kHugePage));
  (void)::madvise(values, rounded, MADV_HUGEPAGE);  // a hint: small pages will do, too
  return {std::shared_ptr<void>(mapping, [length = rounded + kHugePage](void* begin) { ::munmap(begin, length); }), {values, size}};
}

}  // namespace

HostBuffer HostBuffer::allocate(std::size_t size) {
  const std::size_t bytes = size * sizeof(float);
  if (bytes >= kLarge) return map_pages(size, bytes);
  void* memory = std::aligned_alloc(kLine, rounded_up(bytes, kLine));
  if (!memory) throw std::bad_alloc();
  return {std::shared_ptr<void>(memory, &std::free), {static_cast<float*>(memory), size}};
}

}  // namespace cohive::train
