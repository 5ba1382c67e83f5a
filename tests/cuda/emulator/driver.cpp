#include "driver.hpp"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
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
  std::size_t memory = std::size_t{8} << 30;
  std::chrono::microseconds delay{0};
  bool held = false;
  int until_failure = 0, failure = cudaSuccess;
  int refusal = cudaSuccess;
  std::mt19937 random{1};
};
Settings& settings() {
  static Settings all;
  return all;
}

thread_local int current_device = 0;
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
using cohive::cuda::emulated::come_to_turn;
using cohive::cuda::emulated::settings;
using cohive::cuda::emulated::told;

/// A thread that does one thing after another.
struct CUstream_st {
  using Work = std::function<void(cudaError_t)>;

  CUstream_st() : thread([this] { work(); }) {}
  ~CUstream_st() {
    push(nullptr);
    thread.join();
  }
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

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return !queue.empty(); });
      Work one = std::move(queue.front());
      lock.unlock();
      if (one) {
        const cudaError_t now = come_to_turn();
        if (error == cudaSuccess) error = now;  // as of a real device, it stays
        one(error);
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

cudaStream_t or_default(cudaStream_t stream) {
  static CUstream_st standard;
  return stream ? stream : &standard;
}

}  // namespace

namespace cohive::cuda::emulated {

void set_devices(int count) {
  const std::lock_guard lock(settings().mutex);
  settings().devices = count;
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
  const std::lock_guard lock(settings().mutex);
  settings().until_failure = count;
  settings().failure = error;
}

void refuse(int error) {
  const std::lock_guard lock(settings().mutex);
  settings().refusal = error;
}

int enqueue(CUstream_st* stream, std::function<void()> work) {
  if (const auto refused = accepted()) return refused;
  or_default(stream)->push([work = std::move(work)](cudaError_t error) {
    if (error == cudaSuccess) work();
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
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return told(stream->synchronize());
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  stream->push([=](cudaError_t error) { callback(stream, error, data); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto reached = event->record();
  or_default(stream)->push([reached](cudaError_t) { reached->set_value(); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto reached = event->recorded();
  if (reached.valid()) or_default(stream)->push([reached](cudaError_t) { reached.wait(); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (const auto refused = accepted()) return refused;
  stream->push([=](cudaError_t error) {
    if (error == cudaSuccess) std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (const auto refused = accepted()) return refused;
  stream->push([=](cudaError_t error) {
    if (error == cudaSuccess) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  {
    const std::lock_guard lock(settings().mutex);
    if (bytes > settings().memory) return told(cudaErrorMemoryAllocation);
  }
  *memory = cohive::cuda::emulated::allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  return cohive::cuda::emulated::release(memory) ? cudaSuccess : told(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

}  // extern "C"
