/// \file
/// MappedPages: memory of its own mapping, for what is large and lives long.
#pragma once

#include <cstddef>
#include <utility>

namespace cohive::train {

/// The system has the memory back as soon as it is released, whatever an allocator would keep for later. Begins at a
/// huge page, and asks for huge pages: writing to 400 MB for the first time takes 100,000 page faults without them.
class MappedPages {
 public:
  /// The unit of alignment, in bytes.
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  /// Maps `bytes`, which are zero. Throws std::bad_alloc.
  explicit MappedPages(std::size_t bytes);
  ~MappedPages();
  MappedPages(MappedPages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  MappedPages& operator=(MappedPages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  /// Returns the first byte, aligned to kHugePage; null after a move.
  void* data() const noexcept { return data_; }
  /// Bytes, in whole pages.
  std::size_t size() const noexcept { return size_; }
  /// Returns what size() of so many bytes is.
  static std::size_t rounded(std::size_t bytes) noexcept;

 private:
  void* data_;
  std::size_t size_;
};

}  // namespace cohive::train
