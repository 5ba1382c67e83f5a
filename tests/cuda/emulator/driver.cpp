#include "driver.hpp"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace cohive::cuda::emulated {
namespace {

struct Settings {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 1;
  bool pools = true;
  std::size_t memory = std::size_t{8} << 30;
  std::chrono::microseconds delay{0};
  bool held = false;
  int until_failure = 0, failure = cudaSuccess;
  int refusal = cudaSuccess;
  Copied copied;
  std::mt19937 random{1};
};
Settings& settings() {
  static Settings all;
  return all;
}

thread_local int current_device = 0;
thread_local std::vector<std::string> waits;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// What an attempt to queue work returns.
cudaError_t accepted() {
  const std::lock_guard lock(settings().mutex);
  return told(static_cast<cudaError_t>(settings().refusal));
}

/// The same of work that the driver takes only while the stream's device is the current one.
cudaError_t accepted_for(int device) {
  return device == current_device ? accepted() : told(cudaErrorInvalidResourceHandle);
}

/// Waits as a test has asked for, and says whether this piece of work fails.
cudaError_t come_to_turn() {
  Settings& all = settings();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&] { return !all.held; });
  if (all.failure != cudaSuccess && all.until_failure-- <= 0) return static_cast<cudaError_t>(all.failure);
  if (all.delay.count() == 0) return cudaSuccess;
  const std::chrono::microseconds wait(all.random() % static_cast<unsigned>(all.delay.count()));
  lock.unlock();
  std::this_thread::sleep_for(wait);
  return cudaSuccess;
}

}  // namespace
}  // namespace cohive::cuda::emulated

using cohive::cuda::emulated::accepted;
using cohive::cuda::emulated::accepted_for;
using cohive::cuda::emulated::come_to_turn;
using cohive::cuda::emulated::settings;
using cohive::cuda::emulated::told;

/// A thread that does one thing after another.
struct CUstream_st {
  using Work = std::function<void(cudaError_t)>;

  explicit CUstream_st(int of) : device(of), thread([this] { work(); }) {}
  ~CUstream_st() {
    push(nullptr);
    thread.join();
  }
  const int device;

  void push(Work one) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(one));
    changed.notify_all();
  }
  cudaError_t synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty(); });
    return error;
  }
  /// Goes on after an error, as no real device does.
  void forget_error() {
    const std::lock_guard lock(mutex);
    error = cudaSuccess;
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return !queue.empty(); });
      Work one = std::move(queue.front());
      lock.unlock();
      if (one) {
        const cudaError_t now = come_to_turn();
        lock.lock();
        if (error == cudaSuccess) error = now;  // as of a real device, it stays
        const cudaError_t told = error;
        lock.unlock();
        one(told);
      }
      lock.lock();
      queue.pop_front();
      changed.notify_all();
      if (!one) return;
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  cudaError_t error = cudaSuccess;
  std::thread thread;
};

/// What was recorded last.
struct CUevent_st {
  explicit CUevent_st(int of) : device(of) {}
  const int device;

  std::shared_ptr<std::promise<void>> record() {
    auto reached = std::make_shared<std::promise<void>>();
    const std::lock_guard lock(mutex);
    last = reached->get_future().share();
    return reached;
  }
  std::shared_future<void> recorded() {
    const std::lock_guard lock(mutex);
    return last;
  }

 private:
  std::mutex mutex;
  std::shared_future<void> last;
};

namespace {

/// The default stream of each device.
struct DefaultStreams {
  std::mutex mutex;
  std::map<int, CUstream_st> of_devices;
};
DefaultStreams& default_streams() {
  static DefaultStreams all;
  return all;
}

/// The default stream is the current device's.
cudaStream_t or_default(cudaStream_t stream) {
  if (stream) return stream;
  const int device = cohive::cuda::emulated::current_device;
  const std::lock_guard lock(default_streams().mutex);
  return &default_streams().of_devices.try_emplace(device, device).first->second;
}

void note_wait(const char* call) {
  cohive::cuda::emulated::waits.emplace_back(call);
}

cudaError_t take_memory(void** memory, std::size_t bytes, int device) {
  {
    const std::lock_guard lock(settings().mutex);
    if (bytes > settings().memory) return told(cudaErrorMemoryAllocation);
  }
  *memory = cohive::cuda::emulated::allocate(bytes, device);
  return cudaSuccess;
}

}  // namespace

namespace cohive::cuda::emulated {

void set_devices(int count) {
  const std::lock_guard lock(settings().mutex);
  settings().devices = count;
}
void set_memory_pools(bool supported) {
  const std::lock_guard lock(settings().mutex);
  settings().pools = supported;
}
void set_memory(std::size_t bytes) {
  const std::lock_guard lock(settings().mutex);
  settings().memory = bytes;
}
void set_delay(std::chrono::microseconds longest) {
  const std::lock_guard lock(settings().mutex);
  settings().delay = longest;
}
void hold_streams() {
  const std::lock_guard lock(settings().mutex);
  settings().held = true;
}
void release_streams() {
  const std::lock_guard lock(settings().mutex);
  settings().held = false;
  settings().changed.notify_all();
}
void fail_after(int count, int error) {
  {
    const std::lock_guard lock(settings().mutex);
    settings().until_failure = count;
    settings().failure = error;
  }
  if (error != cudaSuccess) return;
  const std::lock_guard lock(default_streams().mutex);
  for (auto& [device, stream] : default_streams().of_devices) stream.forget_error();
}

void refuse(int error) {
  const std::lock_guard lock(settings().mutex);
  settings().refusal = error;
}

Copied take_copied() {
  const std::lock_guard lock(settings().mutex);
  return std::exchange(settings().copied, {});
}

std::vector<std::string> take_waits() {
  return std::exchange(waits, {});
}

int enqueue(CUstream_st* stream, std::function<void(int device)> work) {
  stream = or_default(stream);
  const int device = stream->device;
  if (const auto refused = accepted_for(device)) return refused;
  stream->push([device, work = std::move(work)](cudaError_t error) {
    if (error == cudaSuccess) work(device);
  });
  return cudaSuccess;
}

}  // namespace cohive::cuda::emulated

// ---- The CUDA runtime

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(settings().mutex);
  *count = settings().devices;
  return *count > 0 ? cudaSuccess : told(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = cohive::cuda::emulated::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(settings().mutex);
  if (device < 0 || device >= settings().devices) return told(cudaErrorInvalidDevice);
  cohive::cuda::emulated::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(cohive::cuda::emulated::last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice           ? "no device of the emulator"
         : error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorInvalidDevice    ? "invalid device ordinal"
                                              : "an error that a test asked for";
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st(cohive::cuda::emulated::current_device);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  note_wait("cudaStreamSynchronize");
  return told(stream->synchronize());
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  stream->push([=](cudaError_t error) { callback(stream, error, data); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st(cohive::cuda::emulated::current_device);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  stream = or_default(stream);
  if (event->device != stream->device) return told(cudaErrorInvalidResourceHandle);
  auto reached = event->record();
  stream->push([reached](cudaError_t) { reached->set_value(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto reached = event->recorded();
  if (reached.valid()) or_default(stream)->push([reached](cudaError_t) { reached.wait(); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (const auto refused = accepted_for(stream->device)) return refused;
  stream->push([=](cudaError_t error) {
    if (error == cudaSuccess) std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const auto refused = accepted()) return refused;
  {
    const std::lock_guard lock(settings().mutex);
    if (kind == cudaMemcpyDeviceToHost) settings().copied.to_host += bytes;
    if (kind == cudaMemcpyHostToDevice) settings().copied.to_device += bytes;
  }
  stream->push([=](cudaError_t error) {
    if (error == cudaSuccess) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const std::lock_guard lock(settings().mutex);
  *value = attribute == cudaDevAttrMemoryPoolsSupported && settings().pools ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  note_wait("cudaMalloc");
  return take_memory(memory, bytes, cohive::cuda::emulated::current_device);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  if (const auto refused = accepted()) return refused;
  return take_memory(memory, bytes, stream->device);
}
/// When the stream comes to it: kernels that use the memory later are found.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  cohive::cuda::emulated::note_freeing(memory, cohive::cuda::emulated::current_device);
  stream->push([memory](cudaError_t) { cohive::cuda::emulated::release(memory); });
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  note_wait("cudaFree");
  cohive::cuda::emulated::note_freeing(memory, cohive::cuda::emulated::current_device);
  return cohive::cuda::emulated::release(memory) ? cudaSuccess : told(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  note_wait("cudaHostAlloc");
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  note_wait("cudaFreeHost");
  std::free(memory);
  return cudaSuccess;
}

}  // extern "C"
