/// \file
/// LiveTensors: the tensors of a shared state where a model has them. Nothing is copied until somebody reads, and then
/// a chunk at a time; when the model is about to change, what its readers have not had yet is copied, and goes chunk by
/// chunk as they get it.
///
///   live --settle()--> settled: what readers still need is here, the model's memory is used no more
///   live, settled --drop()--> settled: nothing is here
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "cohive/core/bytes.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/task.hpp"

namespace cohive::averaging {

class StateReader;

/// Any thread, but for settle(). Whoever changes the memory calls settle() or drop() before.
class LiveTensors {
 public:
  /// Where a tensor is.
  struct Source {
    const std::uint8_t* data = nullptr;           ///< row-major
    std::size_t size = 0;                         ///< in bytes
    std::shared_ptr<const void> owner = nullptr;  ///< keeps the memory; null: it lives until settle() or drop()
    std::size_t period = 0;                       ///< not 0: the tensor repeats the `period` bytes at `data`
  };
  static constexpr std::size_t kChunk = 128 * 1024;  ///< bytes of a tensor that are copied and freed together

  /// \param unchanged  tells whether the memory is what it was when this was made, as far as is known; null: nothing is
  explicit LiveTensors(std::vector<Source> sources, std::function<bool()> unchanged = nullptr);
  ~LiveTensors();
  LiveTensors(const LiveTensors&) = delete;

  /// Returns how many tensors there are: the first ones of a state.
  std::size_t count() const noexcept { return sizes_.size(); }
  /// Returns the bytes of a tensor.
  std::size_t size(std::size_t tensor) const noexcept { return sizes_[tensor]; }

  /// Copies what readers still need, on the pool; afterwards the model's memory may change. Loop thread. Cancellation:
  /// leaves the tensors where they were.
  static Task<void> settle(Runtime& runtime, std::shared_ptr<LiveTensors> tensors);
  /// Lets the model's memory go, and keeps nothing.
  void drop();

  /// Tells whether the model's memory is read: until settle() or drop().
  bool is_live() const;
  /// Tells whether there are readers.
  bool in_use() const;
  /// Returns when what was left was copied; nullopt: nothing was.
  std::optional<TimePoint> settled_at() const;
  /// Returns how many bytes are kept for readers, and how many ever were.
  std::uint64_t kept_bytes() const;
  std::uint64_t copied_bytes() const;

  /// Tells whether all that was read so far is of one moment, as far as is known; else it is spoiled.
  bool check();
  /// Notes that the memory has changed without settle().
  void spoil() noexcept { spoiled_ = true; }
  /// Tells whether that was noted.
  bool is_spoiled() const noexcept { return spoiled_; }

 private:
  friend class StateReader;
  class Kept;
  std::vector<std::uint32_t> needed_chunks(TimePoint now);
  bool is_needed(std::uint32_t chunk) const;
  void copy_chunk(Kept& kept, std::uint32_t chunk) const;
  static Task<void> copy_chunks(Runtime& runtime, std::shared_ptr<LiveTensors> tensors, std::shared_ptr<Kept> kept,
                                std::shared_ptr<const std::vector<std::uint32_t>> chunks, std::size_t& next);
  void take_over(std::shared_ptr<Kept> kept, const std::vector<std::uint32_t>& chunks, TimePoint now);
  void copy_out(std::uint8_t* to, std::size_t tensor, std::size_t offset, std::size_t size) const;
  void free_unneeded(std::uint32_t first, std::uint32_t end);

  std::vector<std::size_t> sizes_;
  std::vector<std::uint32_t> first_chunks_;  // of each tensor, and behind the last one

  mutable std::shared_mutex mutex_;  // of what follows; held to read memory as well
  std::vector<Source> sources_;      // empty when settled
  std::function<bool()> unchanged_;  // null when settled
  bool live_ = true;
  std::shared_ptr<Kept> kept_;
  std::vector<bool> is_kept_;  // by chunk, when settled
  std::uint64_t kept_bytes_ = 0, copied_bytes_ = 0;
  std::optional<TimePoint> settled_at_;
  std::vector<StateReader*> readers_;
  std::atomic<bool> spoiled_{false};
};

/// Somebody who reads a state from its beginning to its end, each byte once.
class StateReader {
 public:
  explicit StateReader(std::shared_ptr<LiveTensors> tensors);
  ~StateReader();
  StateReader(const StateReader&) = delete;

  /// Returns what is read, for another reader.
  const std::shared_ptr<LiveTensors>& tensors() const noexcept { return tensors_; }
  /// Copies bytes [offset, offset + size) of a tensor; nullopt when they are not there any more. Any thread, with size
  /// and offset within the tensor.
  std::optional<Slice> read(std::size_t tensor, std::size_t offset, std::size_t size) const;
  /// Sets from when on the state is kept for it, which is always unless set: where the model changes before, and it has
  /// not had a chunk yet, it reads nothing more.
  void keep_from(TimePoint at);
  /// Notes that the chunks that end within these bytes are needed no more.
  void done(std::size_t tensor, std::size_t offset, std::size_t size);

 private:
  friend class LiveTensors;
  const std::shared_ptr<LiveTensors> tensors_;
  TimePoint keep_from_ = TimePoint::min();
  std::vector<bool> done_;  // by chunk
};

}  // namespace cohive::averaging
