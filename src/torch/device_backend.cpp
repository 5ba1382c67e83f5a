#include "device_backend.hpp"

#include "cohive/core/log.hpp"

#ifdef COHIVE_TORCH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>

#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/device.hpp"
#include "device_products.hpp"
#endif

namespace cohive::libtorch {
namespace {

BackendMaker& maker_of_host() {
  static BackendMaker maker = &train::host_backend;
  return maker;
}

LinkMaker& link_maker_of_host() {
  static LinkMaker maker;
  return maker;
}

#ifdef COHIVE_TORCH_CUDA
using c10::cuda::CUDAStream, c10::cuda::CUDAStreamGuard;

class TrainerStreamOfGpu final : public TrainerStream {
 public:
  explicit TrainerStreamOfGpu(torch::Device device)
      : device_(device),
        trainer_(c10::cuda::getCurrentCUDAStream(device.index())),
        beside_(c10::cuda::getStreamFromPool(false, device.index())),
        reached_(cuda::Event::create(device.index()).value()) {}

  void note() override {
    const auto now = c10::cuda::getCurrentCUDAStream(device_.index());
    const std::lock_guard lock(mutex_);
    trainer_ = now;
  }
  std::shared_ptr<void> in_turn() override { return std::make_shared<CUDAStreamGuard>(noted()); }
  std::shared_ptr<void> beside() override {
    const std::lock_guard lock(mutex_);
    reached_.record(trainer_.stream()).value();
    reached_.hold_back(beside_.stream()).value();
    return std::make_shared<CUDAStreamGuard>(beside_);
  }
  CUDAStream noted() {
    const std::lock_guard lock(mutex_);
    return trainer_;
  }

 private:
  const torch::Device device_;
  std::mutex mutex_;
  CUDAStream trainer_;
  const CUDAStream beside_;
  cuda::Event reached_;
};

std::shared_ptr<cuda::LowRankProducts> products_on(torch::Device device) {
  return make_products(device, [device](CUstream_st* stream, const std::function<Result<>()>& work) {
    const CUDAStreamGuard current(c10::cuda::getStreamFromExternal(stream, device.index()));
    return work();
  });
}

/// \param made  by a function of cohive::cuda
template <class T>
std::shared_ptr<T> or_none(Result<std::shared_ptr<T>> made, const char* what) {
  if (made) return std::move(*made);
  log::warn("torch", "{}: {}", what, made.error());
  return nullptr;
}
#else
void say_that_there_is_no_cuda(torch::Device device) {
  log::warn("torch",
            "parameters on {} are averaged in host memory, copied by LibTorch: this program is built without cohive's "
            "CUDA part (cmake -DLIBTORCH_CUDA=ON, with nvcc)",
            device.str());
}
#endif

}  // namespace

std::shared_ptr<TrainerStream> trainer_stream_of([[maybe_unused]] torch::Device device) {
#ifdef COHIVE_TORCH_CUDA
  if (device.is_cuda()) return std::make_shared<TrainerStreamOfGpu>(device);
#endif
  return std::make_shared<TrainerStream>();
}

std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device,
                                             [[maybe_unused]] const std::shared_ptr<TrainerStream>& trainer) {
  if (device.is_cpu()) return maker_of_host()(runtime);
#ifdef COHIVE_TORCH_CUDA
  const auto of_gpu = std::dynamic_pointer_cast<TrainerStreamOfGpu>(trainer);
  if (!of_gpu) log::warn("torch", "parameters on {} are averaged in host memory, copied by LibTorch", device.str());
  if (!of_gpu || runtime.simulated()) return nullptr;
  cuda::BackendOptions options;
  options.device = device.index();
  options.trainer_stream = [of_gpu] { return of_gpu->noted().stream(); };
  options.allocate = [of_gpu, device](std::size_t size) {
    const auto turn = of_gpu->in_turn();
    auto memory = std::make_shared<torch::Tensor>(
        torch::empty(static_cast<std::int64_t>(size), torch::TensorOptions(torch::kFloat32).device(device)));
    const std::span values(memory->data_ptr<float>(), size);
    return train::Buffer{std::move(memory), values};
  };
  options.products = products_on(device);
  return or_none(cuda::make_backend(runtime, std::move(options)), "averaging in host memory");
#else
  say_that_there_is_no_cuda(device);
  return nullptr;
#endif
}

std::shared_ptr<train::DeviceLink> make_link(Runtime& runtime, torch::Device device) {
  if (runtime.simulated()) return nullptr;  // copies take real time
  if (device.is_cpu()) return link_maker_of_host() ? link_maker_of_host()(runtime) : nullptr;
#ifdef COHIVE_TORCH_CUDA
  if (!device.is_cuda()) return nullptr;
  cuda::BackendOptions options;
  options.device = device.index();
  // Of the calling thread: hooks run on LibTorch's, whose stream is that of the gradients.
  options.trainer_stream = [device] { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); };
  return or_none(cuda::make_link(runtime, std::move(options)), "gradients and parameters are copied by LibTorch");
#else
  say_that_there_is_no_cuda(device);
  return nullptr;
#endif
}

HostBackendInUse::HostBackendInUse(BackendMaker make) : before_(std::exchange(maker_of_host(), std::move(make))) {}
HostBackendInUse::~HostBackendInUse() {
  maker_of_host() = before_;
}

HostLinkInUse::HostLinkInUse(LinkMaker make) : before_(std::exchange(link_maker_of_host(), std::move(make))) {}
HostLinkInUse::~HostLinkInUse() {
  link_maker_of_host() = before_;
}

}  // namespace cohive::libtorch
