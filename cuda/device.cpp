#include "cohive/cuda/device.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <utility>

#include "cohive/cuda/errors.hpp"
#include "failure.hpp"

namespace cohive::cuda {

Result<int> device_count() {
  int count = 0;
  if (auto asked = checked(cudaGetDeviceCount(&count), "counting devices"); !asked) {
    // Whatever keeps the runtime from counting keeps us from using a device.
    return Error(Errc::no_device, asked.error().detail());
  }
  if (count == 0) return failure(cudaErrorNoDevice, "counting devices");
  return count;
}

Result<Event> Event::create(int device) {
  if (auto count = device_count(); !count) return count.error();
  const DeviceScope scope(device);
  if (auto set = checked_on(device, scope.status(), "choosing a device"); !set) return set.error();
  cudaEvent_t event = nullptr;
  if (auto made = checked_on(device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
      !made)
    return made.error();
  return Event(device, event);
}

Event::Event(Event&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_) cudaEventDestroy(event_);
}

Result<> Event::record(CUstream_st* stream) {
  const DeviceScope scope(device_);
  return checked_on(device_, cudaEventRecord(event_, stream), "recording an event");
}

Result<> Event::hold_back(CUstream_st* stream) const {
  const DeviceScope scope(device_);
  return checked_on(device_, cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
}

Result<Stream> Stream::create(int device) {
  if (auto count = device_count(); !count) return count.error();
  const DeviceScope scope(device);
  if (auto set = checked_on(device, scope.status(), "choosing a device"); !set) return set.error();
  cudaStream_t stream = nullptr;
  if (auto made = checked_on(device, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
      !made)
    return made.error();
  return Stream(device, stream);
}

Stream::Stream(int device, CUstream_st* stream) : device_(device), stream_(stream), log_(std::make_unique<WorkLog>()) {}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)), log_(std::move(other.log_)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  reset();
  device_ = other.device_;
  stream_ = std::exchange(other.stream_, nullptr);
  log_ = std::move(other.log_);
  return *this;
}

Stream::~Stream() {
  reset();
}

void Stream::reset() noexcept {
  if (!stream_) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(std::exchange(stream_, nullptr));
}

Result<> Stream::waited(int status) const {
  if (status == cudaSuccess) {
    log_->clear();
    return ok();
  }
  const std::string queued = log_->list();
  return checked_on(device_, status, queued.empty() ? "waiting for a stream" : "waiting for " + queued);
}

Result<> Stream::synchronize() {
  return waited(cudaStreamSynchronize(stream_));
}

Result<> Stream::upload_async(ByteView from, void* to) {
  if (from.empty()) return ok();
  return on(*this, [&](CUstream_st* queue) {
    note_start("copy to the device");
    return cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, queue);
  });
}

Result<> Stream::download_async(const void* from, MutableBytes to) {
  if (to.empty()) return ok();
  return on(*this, [&](CUstream_st* queue) {
    note_start("copy to the host");
    return cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, queue);
  });
}

Stream::Done Stream::done(Runtime& runtime) {
  return Done(runtime, *this);
}

/// The loop's, but for `runtime`, which the driver's thread reads: the coroutine may be gone when the driver reports.
struct Stream::Done::State {
  Runtime& runtime;
  Waiter* waiter = nullptr;
  int status = cudaSuccess;
};

Stream::Done::Done(Runtime& runtime, const Stream& stream)
    : Waiter(runtime, "work of a GPU"), stream_(stream), state_(std::make_shared<State>(State{runtime})) {
  if (runtime.simulated()) throw std::logic_error("work of a GPU takes real time: not under simulation");
}

Stream::Done::~Done() {
  state_->waiter = nullptr;
}

/// False when nothing will ever report. A callback and not cudaLaunchHostFunc: that one is left out after an error of
/// the device, and the coroutine would wait for ever.
bool Stream::Done::start() {
  auto shared = std::make_unique<std::shared_ptr<State>>(state_);
  const auto callback = [](cudaStream_t stream, cudaError_t status, void* data) {
    finished(stream, status, static_cast<std::shared_ptr<State>*>(data));
  };
  const DeviceScope scope(stream_.device_);
  state_->waiter = this;
  state_->status = cudaStreamAddCallback(stream_.stream_, callback, shared.get(), 0);
  if (state_->status == cudaSuccess) {
    shared.release();  // the callback deletes it
    return true;
  }
  state_->waiter = nullptr;
  return false;
}

/// On a thread of the driver, where calls of the CUDA runtime are forbidden.
void Stream::Done::finished(CUstream_st*, int status, std::shared_ptr<State>* state) noexcept {
  const std::unique_ptr<std::shared_ptr<State>> owned(state);
  Runtime& runtime = (*owned)->runtime;
  runtime.post([state = std::move(*owned), status] {
    state->status = status;
    if (state->waiter) state->waiter->wake();
  });
}

Result<> Stream::Done::await_resume() const {
  return stream_.waited(state_->status);
}

Result<DeviceBuffer> DeviceBuffer::create(std::size_t bytes, int device) {
  if (auto count = device_count(); !count) return count.error();
  const DeviceScope scope(device);
  if (auto set = checked_on(device, scope.status(), "choosing a device"); !set) return set.error();
  void* data = nullptr;
  if (bytes > 0)
    if (auto made = checked_on(device, cudaMalloc(&data, bytes), "taking memory"); !made) return made.error();
  return DeviceBuffer(data, bytes, device);
}

Result<DeviceBuffer> DeviceBuffer::create_on(const Stream& stream, std::size_t bytes) {
  const int device = stream.device();
  if (bytes == 0) return DeviceBuffer(nullptr, 0, device);
  const DeviceScope scope(device);
  if (auto set = checked_on(device, scope.status(), "choosing a device"); !set) return set.error();
  int pools = 0;
  const int asked = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device);
  if (auto known = checked_on(device, asked, "asking for memory pools"); !known) return known.error();
  if (pools == 0) return create(bytes, device);
  void* data = nullptr;
  if (auto made = checked_on(device, cudaMallocAsync(&data, bytes, stream.native()), "taking memory"); !made)
    return made.error();
  return DeviceBuffer(data, bytes, device, stream.native());
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_),
      stream_(std::exchange(other.stream_, nullptr)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

/// On its device: the driver would begin to use whichever is the thread's current one.
DeviceBuffer::~DeviceBuffer() {
  if (!data_) return;
  const DeviceScope scope(device_);
  if (stream_)
    cudaFreeAsync(data_, stream_);
  else
    cudaFree(data_);
}

Result<HostBuffer> HostBuffer::create(std::size_t bytes) {
  if (auto count = device_count(); !count) return count.error();
  void* data = nullptr;
  if (bytes > 0)
    if (auto made = checked(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "pinned memory"); !made)
      return made.error();
  return HostBuffer(data, bytes);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_) cudaFreeHost(data_);
}

}  // namespace cohive::cuda
