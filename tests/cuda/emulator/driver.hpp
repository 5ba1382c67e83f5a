// The part of the CUDA runtime that cohive calls, for emulated devices: streams are threads, and a test may delay them,
// hold them, or have them fail. Kernels are taken while the device of their stream is the current one, as by a real
// driver.
#pragma once

#include <chrono>
#include <functional>

#include "emulator.hpp"

struct CUstream_st;

namespace cohive::cuda::emulated {

/// How many devices there are; 0: as on a machine without a GPU.
void set_devices(int count);
/// Whether devices have memory that is taken and freed in the order of a stream.
void set_memory_pools(bool supported);
/// Bytes of a device.
void set_memory(std::size_t bytes);

/// What is queued on streams waits up to so long before it runs, each for another time: what is queued on two streams
/// ends in any order.
void set_delay(std::chrono::microseconds longest);
/// Nothing that is queued runs until release_streams().
void hold_streams();
void release_streams();
/// From the work after the next `count` on, all work of all streams fails with this cudaError_t; 0: none any more, and
/// default streams go on.
void fail_after(int count, int error);
/// Whatever is to be queued is refused at once with this cudaError_t; 0: nothing any more.
void refuse(int error);

/// Names of the calls since the last time that make the calling thread wait for a device, or for the system to pin
/// memory.
std::vector<std::string> take_waits();

/// Bytes that were copied since the last time.
struct Copied {
  std::size_t to_host = 0, to_device = 0;
};
Copied take_copied();

/// Queues work, which is told its device; returns a cudaError_t.
int enqueue(CUstream_st* stream, std::function<void(int device)> work);

/// Queues a kernel on a stream, as kernel<<<blocks, threads, 0, stream>>>(arguments...) does.
template <class... Parameters, class... Arguments>
int launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, CUstream_st* stream,
           Arguments... arguments) {
  return enqueue(stream, [=](int device) { run(name, device, blocks, threads, [&] { kernel(arguments...); }); });
}

/// Reads and writes by the emulator itself, which are no plain accesses of a thread.
template <class T, class Change>
__attribute__((noinline, no_sanitize("coverage"))) T update(T* address, Change change) {
  const T old = *address;
  *address = change(old);
  return old;
}

/// One access of a thread.
template <class T>
__attribute__((noinline, no_sanitize("coverage"))) T read(const T* address) {
  note_access(address, sizeof *address, false);
  return *address;
}
template <class T>
__attribute__((noinline, no_sanitize("coverage"))) void write(T* address, T value) {
  note_access(address, sizeof *address, true);
  *address = value;
}

}  // namespace cohive::cuda::emulated
