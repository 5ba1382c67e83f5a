/// \file
/// Streams, memory of the device and pinned memory of the host. Work is queued on a stream by functions named *_async,
/// which return at once, and awaited with `co_await stream.done(runtime)`.
///
/// Threads: an object is used by one thread at a time. Memory given to queued work must stay until that work is done.
/// Every function works on a machine without GPU or driver, where it returns Errc::no_device.
#pragma once

#include <cstddef>
#include <memory>

#include "cohive/core/bytes.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/runtime.hpp"

struct CUstream_st;  // what cudaStream_t points to
struct CUevent_st;   // what cudaEvent_t points to

namespace cohive::cuda {

class WorkLog;

/// How many GPUs this process may use, at least one. Errors: Errc::no_device.
Result<int> device_count();

/// Orders work of several streams, of whatever library, without a thread that waits.
class Event {
 public:
  /// Errors: Errc::no_device, also for a number that no device has.
  static Result<Event> create(int device = 0);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// Stands for all that is queued on a stream now, instead of what it stood for before. Errors: Errc::failed.
  Result<> record(CUstream_st* stream);
  /// Makes what is queued on a stream from now on begin after what the event stands for now. Errors: Errc::failed.
  Result<> hold_back(CUstream_st* stream) const;

 private:
  Event(int device, CUevent_st* event) noexcept : device_(device), event_(event) {}

  int device_;
  CUevent_st* event_;
};

/// A queue of work on one device, independent of the default stream. The destructor waits for what is queued, so that
/// nothing touches memory freed after it.
class Stream {
 public:
  /// Errors: Errc::no_device, also for a number that no device has.
  static Result<Stream> create(int device = 0);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  class Done;
  /// Awaitable, giving Result<>: waits until all work queued before the co_await has finished; an error of the device
  /// ends the wait too. A coroutine destroyed meanwhile leaves the work running. Loop thread of a real runtime, which
  /// must outlive the stream; throws std::logic_error under simulation.
  Done done(Runtime& runtime);

  /// Blocks the calling thread for the same; not for the loop thread.
  Result<> synchronize();

  /// Queues a copy to or from memory of the device. The host's side should be a HostBuffer: any other memory is copied
  /// through a buffer of the driver's, for which the call may block. Errors: Errc::failed.
  Result<> upload_async(ByteView from, void* to);
  /// The same from the device to the host.
  Result<> download_async(const void* from, MutableBytes to);

  /// Returns the number of its device.
  int device() const noexcept { return device_; }
  /// A cudaStream_t, to queue other work on.
  CUstream_st* native() const noexcept { return stream_; }
  /// Names what is queued, for the sentences of errors: by done() and synchronize() it becomes empty.
  WorkLog& log() const noexcept { return *log_; }

 private:
  Stream(int device, CUstream_st* stream);
  void reset() noexcept;
  Result<> waited(int status) const;

  int device_;
  CUstream_st* stream_;
  std::unique_ptr<WorkLog> log_;
};

/// What done() waits for.
class Stream::Done : public Waiter {
 public:
  /// As done() makes it.
  Done(Runtime& runtime, const Stream& stream);
  ~Done();
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    if (!start()) return false;
    suspend(handle);
    return true;
  }
  /// Gives the device's error, if it has reported one.
  Result<> await_resume() const;

 private:
  struct State;
  bool start();
  static void finished(CUstream_st* stream, int status, std::shared_ptr<State>* state) noexcept;

  const Stream& stream_;
  std::shared_ptr<State> state_;
};

/// Memory of a device, aligned to 256 bytes, not initialised.
class DeviceBuffer {
 public:
  /// Takes memory for any stream. Taking and freeing it waits for the device. Errors: Errc::no_device,
  /// Errc::out_of_memory.
  static Result<DeviceBuffer> create(std::size_t bytes, int device = 0);
  /// Takes memory for what is queued on a stream from now on, and for other work once that is known to have begun. When
  /// it is freed, what was queued on the stream before may still use it. Neither waits for the device, where that has
  /// memory pools; else as create(). The stream must outlive it. Errors: Errc::out_of_memory, Errc::failed.
  static Result<DeviceBuffer> create_on(const Stream& stream, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  /// Returns the number of bytes.
  std::size_t size() const noexcept { return size_; }
  /// Addresses of the device: for queued work only, never read by the host.
  MutableBytes bytes() const noexcept { return {static_cast<std::uint8_t*>(data_), size_}; }
  /// Returns the same as floats, the last bytes left out where they make none.
  std::span<float> floats() const noexcept { return {static_cast<float*>(data_), size_ / sizeof(float)}; }

 private:
  DeviceBuffer(void* data, std::size_t size, int device, CUstream_st* stream = nullptr) noexcept
      : data_(data), size_(size), device_(device), stream_(stream) {}

  void* data_;
  std::size_t size_;
  int device_;
  CUstream_st* stream_;  // in whose order it is freed; null: in none
};

/// Pinned memory of the host: copies between it and any device run beside everything else.
class HostBuffer {
 public:
  /// Errors: Errc::no_device, Errc::out_of_memory.
  static Result<HostBuffer> create(std::size_t bytes);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  /// Returns the number of bytes.
  std::size_t size() const noexcept { return size_; }
  /// Returns the memory, which any thread may use.
  MutableBytes bytes() const noexcept { return {static_cast<std::uint8_t*>(data_), size_}; }
  /// Returns the same as floats, the last bytes left out where they make none.
  std::span<float> floats() const noexcept { return {static_cast<float*>(data_), size_ / sizeof(float)}; }

 private:
  HostBuffer(void* data, std::size_t size) noexcept : data_(data), size_(size) {}

  void* data_;
  std::size_t size_;
};

}  // namespace cohive::cuda
