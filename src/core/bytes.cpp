#include "cohive/core/bytes.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

namespace cohive {

std::string to_hex(ByteView bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Bytes from_hex(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() % 2) return {};
  Bytes bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes.push_back(static_cast<std::uint8_t>(high << 4 | low));
  }
  return bytes;
}

namespace {

// Blocks as large as a part or a record come and go by the hundred. Given back to the system each time, every page of
// them would be cleared and mapped anew; a few stay here instead.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepBlocks = false;  // so that use after release is seen
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kKeepBlocks = false;
#else
constexpr bool kKeepBlocks = true;
#endif
#else
constexpr bool kKeepBlocks = true;
#endif
constexpr std::size_t kStep = 16 * 1024, kSmallestKept = 128 * 1024, kLargestKept = 2 * 1024 * 1024;
constexpr std::size_t kKept = 128, kKeptBytes = 16 * 1024 * 1024;  // of all sizes
// Larger ones, as copies of a state have them, are mapped each by itself. In the heap, where malloc puts blocks of up
// to 32 MiB once one has been freed, they lie between the tensors of the trainer, and what they took stays with the
// process.
constexpr std::size_t kSmallestMapped = 4 * 1024 * 1024;

class KeptBlocks {
 public:
  /// Null when there is none of the size.
  void* take(std::size_t size) noexcept {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = count_; i-- > 0;) {
      if (kept_[i].size != size) continue;
      void* memory = kept_[i].memory;
      std::copy(kept_.begin() + static_cast<std::ptrdiff_t>(i) + 1, kept_.begin() + static_cast<std::ptrdiff_t>(count_),
                kept_.begin() + static_cast<std::ptrdiff_t>(i));
      --count_;
      bytes_ -= size;
      return memory;
    }
    return nullptr;
  }
  /// Takes the memory; blocks kept longest go when there is too much.
  void keep(void* memory, std::size_t size) noexcept {
    const std::lock_guard lock(mutex_);
    kept_[count_++] = {memory, size};
    bytes_ += size;
    std::size_t gone = 0;
    for (; count_ - gone == kKept || bytes_ > kKeptBytes; ++gone) {
      std::free(kept_[gone].memory);
      bytes_ -= kept_[gone].size;
    }
    std::copy(kept_.begin() + static_cast<std::ptrdiff_t>(gone), kept_.begin() + static_cast<std::ptrdiff_t>(count_),
              kept_.begin());
    count_ -= gone;
  }
  /// Around a fork: the child has none of the threads that may be in here.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Kept {
    void* memory;
    std::size_t size;
  };
  std::mutex mutex_;
  std::array<Kept, kKept> kept_{};
  std::size_t count_ = 0, bytes_ = 0;
};

KeptBlocks& kept_blocks() {
  static auto* blocks = [] {
    auto* made = new KeptBlocks;  // blocks may be released after static objects are gone
    ::pthread_atfork([] { kept_blocks().lock(); }, [] { kept_blocks().unlock(); }, [] { kept_blocks().unlock(); });
    return made;
  }();
  return *blocks;
}

bool is_kept(std::size_t capacity) {
  return kKeepBlocks && capacity >= kSmallestKept && capacity <= kLargestKept;
}

bool is_mapped(std::size_t capacity) {
  return kKeepBlocks && capacity >= kSmallestMapped;
}

void* map(std::size_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool is_zero(ByteView bytes) {
  return bytes.front() == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// Leaves zeros out: memory that was just mapped is zero, and takes nothing until it is written to. An optimizer's
/// statistics before its first step are such copies, of twice the model's size.
void copy_to_mapped(std::uint8_t* to, ByteView bytes) {
  constexpr std::size_t kAtOnce = 64 * 1024;
  while (!bytes.empty()) {
    const ByteView next = bytes.first(std::min(kAtOnce, bytes.size()));
    if (!is_zero(next)) std::memcpy(to, next.data(), next.size());
    to += next.size();
    bytes = bytes.subspan(next.size());
  }
}

}  // namespace

Block* Block::allocate(std::size_t capacity) {
  void* memory = nullptr;
  if (is_kept(capacity)) {
    capacity = (capacity + kStep - 1) / kStep * kStep;
    memory = kept_blocks().take(capacity);
  }
  const std::size_t size = sizeof(Block) + capacity;
  if (!memory) memory = is_mapped(capacity) ? map(size) : std::malloc(size);
  if (!memory) throw std::bad_alloc();
  return new (memory) Block(capacity);
}

void Block::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::size_t capacity = capacity_;
  this->~Block();
  if (is_kept(capacity)) {
    kept_blocks().keep(this, capacity);
  } else if (is_mapped(capacity)) {
    ::munmap(this, sizeof(Block) + capacity);
  } else {
    std::free(this);
  }
}

Slice Slice::uninitialised(std::size_t size) {
  return Slice(Block::allocate(size), 0, size);
}

Slice Slice::copy_of(ByteView bytes) {
  Slice slice = uninitialised(bytes.size());
  if (is_mapped(bytes.size()))
    copy_to_mapped(slice.mutable_data(), bytes);
  else if (!bytes.empty())
    std::memcpy(slice.mutable_data(), bytes.data(), bytes.size());
  return slice;
}

}  // namespace cohive
