#include "cohive/train/host_buffer.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace cohive::train {
namespace {
constexpr std::size_t kLine = 64, kHugePage = std::size_t{2} << 20;
}

HostBuffer HostBuffer::allocate(std::size_t size) {
  const std::size_t bytes = size * sizeof(float);
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kLine;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, std::max(rounded, alignment));
  if (!memory) throw std::bad_alloc();
  if (alignment == kHugePage) (void)::madvise(memory, rounded, MADV_HUGEPAGE);  // a hint: small pages will do, too
  return {std::shared_ptr<void>(memory, &std::free), {static_cast<float*>(memory), size}};
}

}  // namespace cohive::train
