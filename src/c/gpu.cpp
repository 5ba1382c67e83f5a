#include "gpu.hpp"

#include "errors.hpp"

#ifdef COHIVE_C_CUDA
#include <atomic>
#include <map>
#include <mutex>

#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device.hpp"
#endif

namespace cohive::c {

#ifdef COHIVE_C_CUDA
namespace {

/// Memory of sums and next parameters, which epoch after epoch need as much. To ask the driver for it waits for the
/// device.
class Memory : public std::enable_shared_from_this<Memory> {
 public:
  explicit Memory(int device) : device_(device) {}

  train::Buffer take(std::size_t size) {
    auto kept = std::make_shared<cuda::DeviceBuffer>(find(size * sizeof(float)));
    const auto values = kept->floats().first(size);
    return {std::shared_ptr<void>(kept.get(), [kept, self = shared_from_this()](void*) { self->give_back(*kept); }),
            values};
  }

 private:
  cuda::DeviceBuffer find(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = free_.find(bytes); found != free_.end()) return std::move(free_.extract(found).mapped());
    }
    return cuda::DeviceBuffer::create(bytes, device_).value();
  }
  void give_back(cuda::DeviceBuffer& memory) {
    const std::lock_guard lock(mutex_);
    free_.emplace(memory.size(), std::move(memory));
  }

  const int device_;
  std::mutex mutex_;
  std::multimap<std::size_t, cuda::DeviceBuffer> free_;
};

/// A stream beside the trainer's. One thread at a time.
class Beside {
 public:
  explicit Beside(int device)
      : reached_(cuda::Event::create(device).value()), stream_(cuda::Stream::create(device).value()) {}

  /// Makes what is queued from now on begin after what the trainer has queued.
  cuda::Stream& after(CUstream_st* trainer) {
    reached_.record(trainer).value();
    reached_.hold_back(stream_.native()).value();
    return stream_;
  }
  /// The reverse.
  void hold_back(CUstream_st* trainer) {
    reached_.record(stream_.native()).value();
    reached_.hold_back(trainer).value();
  }

  std::mutex mutex;

 private:
  cuda::Event reached_;
  cuda::Stream stream_;
};

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int device) : memory_(std::make_shared<Memory>(device)), copies_(device), downloads_(device) {}

  /// Makes the backend, which asks this object for the trainer's stream, and may outlive it.
  static std::shared_ptr<Gpu> open(Runtime& runtime, int device) {
    auto gpu = std::make_shared<CudaGpu>(device);
    cuda::BackendOptions options;
    options.device = device;
    options.trainer_stream = [trainer = gpu->trainer_] { return trainer->load(); };
    options.allocate = [memory = gpu->memory_](std::size_t size) { return memory->take(size); };
    gpu->backend_ = cuda::make_backend(runtime, std::move(options)).value();
    return gpu;
  }

  const std::shared_ptr<train::Backend>& backend() const noexcept override { return backend_; }
  void note_stream(void* stream) override { *trainer_ = static_cast<CUstream_st*>(stream); }

  void copy(std::span<const float> from, std::span<float> to) override {
    const std::lock_guard lock(copies_.mutex);
    cuda::copy_async(copies_.after(*trainer_), from, to).value();
    copies_.hold_back(*trainer_);
  }

  void read(const std::vector<Download>& copies) override {
    const std::lock_guard lock(downloads_.mutex);
    auto& stream = downloads_.after(*trainer_);
    for (const auto& [from, to] : copies) stream.download_async(from, to).value();
    stream.synchronize().value();
  }

 private:
  const std::shared_ptr<std::atomic<CUstream_st*>> trainer_ = std::make_shared<std::atomic<CUstream_st*>>(nullptr);
  const std::shared_ptr<Memory> memory_;
  std::shared_ptr<train::Backend> backend_;
  Beside copies_, downloads_;
};

}  // namespace

int gpu_count() noexcept {
  const auto count = cuda::device_count();
  return count ? *count : 0;
}

std::shared_ptr<Gpu> open_gpu(Runtime& runtime, int device) {
  return CudaGpu::open(runtime, device);
}

#else

int gpu_count() noexcept {
  return 0;
}

std::shared_ptr<Gpu> open_gpu(Runtime&, int) {
  refuse("this library is built without CUDA: leave \"device\" out, and give it host memory");
}
#endif

}  // namespace cohive::c
