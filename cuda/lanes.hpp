// Streams that work side by side, each on one stretch at a time, and what they use again and again.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/cuda/device.hpp"
#include "lasting_memory.hpp"
#include "pinned_pool.hpp"

namespace cohive::cuda {

/// A stream, and memory for the stretch that it works on.
struct Lane {
  Stream stream;
  DeviceBuffer encoded, decoded, flag;
  HostBuffer flag_here;

  /// Makes the encoded memory at least so large; see grow_decoded.
  Result<> grow_encoded(std::size_t bytes) { return grow(encoded, bytes); }
  Result<> grow_decoded(std::size_t bytes) { return grow(decoded, bytes); }
  /// Queues writing 0 to the flag, and copying the flag here.
  Result<std::uint32_t*> clear_flag();
  Result<> read_flag();
  /// True when what was queued between the two has set it, once that is done.
  bool flagged() const;

 private:
  Result<> grow(DeviceBuffer& buffer, std::size_t bytes);
};

/// Loop thread, but for follow(). Outlives the runtime's tasks that use it.
class Lanes {
 public:
  /// Errors: Errc::no_device, Errc::out_of_memory.
  static Result<std::shared_ptr<Lanes>> create(Runtime& runtime, int device, std::size_t count);

  /// Makes what is queued on lanes that are taken from now on begin after what a stream has queued now. Any thread.
  Result<> follow(CUstream_st* stream);

  /// Completes when a lane is free; for Taken.
  auto turn() { return turns_.acquire(); }
  /// A lane, until it dies.
  class Taken {
   public:
    Taken(Lanes& lanes, Semaphore::Units turn);
    ~Taken();
    Taken(const Taken&) = delete;
    Lane* operator->() const noexcept { return lane_.get(); }
    Lane& operator*() const noexcept { return *lane_; }

   private:
    Lanes& lanes_;
    const Semaphore::Units turn_;
    std::unique_ptr<Lane> lane_;
  };

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return lasting_->device(); }
  /// Takes pinned memory. New memory, which takes long, is made on the pool of threads. Errors: as HostBuffer::create.
  Task<Result<Pinned>> pinned(std::size_t bytes);
  /// Returns where memory is taken from that outlives a round.
  const std::shared_ptr<LastingMemory>& lasting() const noexcept { return lasting_; }

 private:
  Lanes(Runtime& runtime, std::size_t count, std::shared_ptr<LastingMemory> lasting, Stream gate, Event reached,
        Event passed);
  void hold_back(Stream& stream);

  Runtime& runtime_;
  const std::shared_ptr<LastingMemory> lasting_;
  const std::shared_ptr<PinnedPool> pinned_ = std::make_shared<PinnedPool>();
  std::vector<std::unique_ptr<Lane>> idle_;
  Semaphore turns_;
  // All streams that are followed pass one gate, one after another: what waits behind it waits for all of them.
  std::mutex mutex_;
  Stream gate_;
  Event reached_, passed_;
};

/// Work on a stream that uses memory of this scope: a task that is dropped waits for it.
class Queued {
 public:
  explicit Queued(Stream& stream) : stream_(stream) {}
  ~Queued() {
    if (!done_) (void)stream_.synchronize();
  }
  Queued(const Queued&) = delete;
  Task<Result<>> done(Runtime& runtime) {
    auto result = co_await stream_.done(runtime);
    done_ = result.has_value();  // a wait that failed says nothing of the work
    co_return result;
  }

 private:
  Stream& stream_;
  bool done_ = false;
};

}  // namespace cohive::cuda
