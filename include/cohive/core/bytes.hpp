/// \file
/// Byte buffers: owned bytes, views, and reference-counted slices of blocks.
/// Threads: blocks are counted atomically and may be released on any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohive {

/// Bytes that are owned.
using Bytes = std::vector<std::uint8_t>;
/// A view of bytes, to read.
using ByteView = std::span<const std::uint8_t>;
/// A view of bytes, to write.
using MutableBytes = std::span<std::uint8_t>;

/// The bytes of a string, and back: protobuf keeps bytes in std::string.
inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
/// Returns the bytes as text, in place.
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
/// Returns a copy of the bytes as a string.
inline std::string to_string(ByteView bytes) {
  return std::string(as_text(bytes));
}
/// Returns a copy of the bytes of a string.
inline Bytes to_bytes(std::string_view text) {
  return {as_bytes(text).begin(), as_bytes(text).end()};
}
/// Returns a copy of the bytes.
inline Bytes to_bytes(ByteView bytes) {
  return {bytes.begin(), bytes.end()};
}

/// Lower-case hexadecimal; from_hex returns an empty vector for anything malformed.
std::string to_hex(ByteView bytes);
/// Returns the bytes of hexadecimal text; none for anything malformed.
Bytes from_hex(std::string_view text);

/// A reference-counted block of memory. Created through Block::allocate.
class Block {
 public:
  /// Returns a block that has one reference, its bytes not initialised.
  static Block* allocate(std::size_t capacity);

  /// Returns its first byte.
  std::uint8_t* data() noexcept { return reinterpret_cast<std::uint8_t*>(this + 1); }
  /// Returns how many bytes it has room for.
  std::size_t capacity() const noexcept { return capacity_; }
  /// Adds a reference. Any thread, as the next two.
  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  /// Takes a reference away; the last one frees the block.
  void release() noexcept;
  /// Tells whether there is one reference only.
  bool unique() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

 private:
  explicit Block(std::size_t capacity) : capacity_(capacity) {}
  std::atomic<std::uint32_t> references_{1};
  std::size_t capacity_;
};

/// A view into a Block that keeps it alive. Copying shares, never copies bytes.
class Slice {
 public:
  Slice() = default;
  /// Adopts one reference to `block`.
  Slice(Block* block, std::size_t offset, std::size_t size) noexcept
      : block_(block), data_(block->data() + offset), size_(size) {}
  Slice(const Slice& other) noexcept : block_(other.block_), data_(other.data_), size_(other.size_) {
    if (block_) block_->retain();
  }
  Slice(Slice&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Slice& operator=(Slice other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Slice() {
    if (block_) block_->release();
  }

  /// A new block holding a copy of `bytes`.
  static Slice copy_of(ByteView bytes);
  /// A new block of `size` uninitialised bytes.
  static Slice uninitialised(std::size_t size);

  /// Returns the first byte; null for a slice of no block.
  const std::uint8_t* data() const noexcept { return data_; }
  /// Writable bytes; only meaningful while the caller holds the sole reference.
  std::uint8_t* mutable_data() noexcept { return data_; }
  /// Returns the number of bytes.
  std::size_t size() const noexcept { return size_; }
  /// Tells whether there is no byte.
  bool empty() const noexcept { return size_ == 0; }
  /// Returns the bytes, valid as long as a slice of the block lives.
  ByteView view() const noexcept { return {data_, size_}; }
  /// The same, where a view is expected.
  operator ByteView() const noexcept { return view(); }

  /// True when no other slice shares the block.
  bool unique() const noexcept { return block_ && block_->unique(); }

  /// Leaves the first `count` bytes out, which must be there.
  void remove_prefix(std::size_t count) noexcept {
    data_ += count;
    size_ -= count;
  }
  /// Bytes [offset, offset + count) of this slice, sharing the block.
  Slice sub(std::size_t offset, std::size_t count) const noexcept {
    Slice part(*this);
    part.data_ += offset;
    part.size_ = count;
    return part;
  }

 private:
  Block* block_ = nullptr;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cohive
