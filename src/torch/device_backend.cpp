#include "device_backend.hpp"

#ifdef COHIVE_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "cohive/cuda/backend.hpp"
#endif

namespace cohive::libtorch {
namespace {

BackendMaker& maker_of_host() {
  static BackendMaker maker = &train::host_backend;
  return maker;
}

}  // namespace

std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device) {
  if (device.is_cpu()) return maker_of_host()(runtime);
#ifdef COHIVE_TORCH_CUDA
  if (device.is_cuda() && !runtime.simulated()) {
    cuda::BackendOptions options;
    options.device = device.index();
    options.trainer_stream = [device] { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); };
    options.allocate = [device](std::size_t size) {
      auto memory = std::make_shared<torch::Tensor>(torch::empty(
          static_cast<std::int64_t>(size), torch::TensorOptions(torch::kFloat32).device(device)));
      const std::span values(memory->data_ptr<float>(), size);
      return train::Buffer{std::move(memory), values};
    };
    return cuda::make_backend(runtime, std::move(options)).value();
  }
#endif
  return nullptr;
}

HostBackendInUse::HostBackendInUse(BackendMaker make) {
  maker_of_host() = std::move(make);
}
HostBackendInUse::~HostBackendInUse() {
  maker_of_host() = &train::host_backend;
}

}  // namespace cohive::libtorch
