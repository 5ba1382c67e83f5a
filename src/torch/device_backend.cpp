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

LinkMaker& link_maker_of_host() {
  static LinkMaker maker;
  return maker;
}

#ifdef COHIVE_TORCH_CUDA
cuda::BackendOptions options_of(torch::Device device) {
  cuda::BackendOptions options;
  options.device = device.index();
  options.trainer_stream = [device] { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); };
  return options;
}
#endif

}  // namespace

std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device) {
  if (device.is_cpu()) return maker_of_host()(runtime);
#ifdef COHIVE_TORCH_CUDA
  if (device.is_cuda() && !runtime.simulated()) {
    cuda::BackendOptions options = options_of(device);
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

std::shared_ptr<train::DeviceLink> make_link(Runtime& runtime, torch::Device device) {
  if (runtime.simulated()) return nullptr;  // copies take real time
  if (device.is_cpu() && link_maker_of_host()) return link_maker_of_host()(runtime);
#ifdef COHIVE_TORCH_CUDA
  if (device.is_cuda()) return cuda::make_link(runtime, options_of(device)).value();
#endif
  return nullptr;
}

HostBackendInUse::HostBackendInUse(BackendMaker make) {
  maker_of_host() = std::move(make);
}
HostBackendInUse::~HostBackendInUse() {
  maker_of_host() = &train::host_backend;
}

HostLinkInUse::HostLinkInUse(LinkMaker make) : before_(std::exchange(link_maker_of_host(), std::move(make))) {}
HostLinkInUse::~HostLinkInUse() {
  link_maker_of_host() = before_;
}

}  // namespace cohive::libtorch
