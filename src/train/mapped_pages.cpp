#include "cohive/train/mapped_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace cohive::train {

std::size_t MappedPages::rounded(std::size_t bytes) noexcept {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Maps one huge page more, and gives back what lies before and behind the aligned stretch.
MappedPages::MappedPages(std::size_t bytes) : size_(rounded(bytes)) {
  const std::size_t length = size_ + kHugePage;
  void* mapping = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapping);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  const std::size_t behind = kHugePage - before;
  if (before > 0) ::munmap(begin, before);
  if (behind > 0) ::munmap(begin + before + size_, behind);
  data_ = begin + before;
  (void)::madvise(data_, size_, MADV_HUGEPAGE);  // a hint: small pages will do, too
}

MappedPages::~MappedPages() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace cohive::train
