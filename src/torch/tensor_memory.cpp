#include "cohive/torch/tensor_memory.hpp"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cohive/train/mapped_pages.hpp"

namespace cohive {
namespace {

using train::MappedPages;

constexpr std::size_t kLarge = std::size_t{4} << 20;        // bytes; smaller tensors are the C library's
constexpr std::size_t kAlwaysKept = std::size_t{64} << 20;  // bytes of released memory
constexpr std::size_t kKeptShare = 4;                       // of what is in use, one part in so many

/// Large blocks by address, and the released ones by size. Any thread.
class Blocks {
 public:
  void* take(std::size_t bytes) {
    const std::size_t size = MappedPages::rounded(bytes);
    const std::lock_guard lock(mutex_);
    const auto released = released_.find(size);
    MappedPages pages = released == released_.end() ? MappedPages(bytes) : forget(released);
    used_ += size;
    void* const data = pages.data();
    in_use_.emplace(data, std::move(pages));
    return data;
  }

  /// Returns false for memory of another origin.
  bool give_back(void* data) {
    if (reinterpret_cast<std::uintptr_t>(data) % MappedPages::kHugePage != 0) return false;
    const std::lock_guard lock(mutex_);
    const auto found = in_use_.find(data);
    if (found == in_use_.end()) return false;
    const std::size_t size = found->second.size();
    used_ -= size;
    kept_ += size;
    released_[size].push_back(std::move(found->second));
    in_use_.erase(found);
    trim(std::max(kAlwaysKept, used_ / kKeptShare));
    return true;
  }

 private:
  using Released = std::unordered_map<std::size_t, std::vector<MappedPages>>;

  MappedPages forget(Released::iterator released) {
    MappedPages pages = std::move(released->second.back());
    kept_ -= pages.size();
    released->second.pop_back();
    if (released->second.empty()) released_.erase(released);
    return pages;
  }
  void trim(std::size_t most) {
    while (kept_ > most) (void)forget(released_.begin());
  }

  std::mutex mutex_;
  std::unordered_map<void*, MappedPages> in_use_;
  Released released_;                // by size; no entry is empty
  std::size_t used_ = 0, kept_ = 0;  // bytes
};

/// Never destroyed: tensors may outlive everything else.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

void release(void* data) {
  if (data && !blocks().give_back(data)) c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

class RecyclingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes >= kLarge ? blocks().take(bytes) : c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void recycle_tensor_memory() {
  static const bool once = [] {
    c10::SetCPUAllocator(new RecyclingAllocator, /*priority=*/1);
    return true;
  }();
  (void)once;
}

}  // namespace cohive
