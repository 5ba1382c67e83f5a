// What computes with the tensors of a device, where cohive's own steps run.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "cohive/train/backend.hpp"
#include "cohive/train/device_link.hpp"

namespace cohive::libtorch {

/// Returns null for a device that this build has no steps for.
std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device);

/// Links a device to the host for an offloaded optimizer. Returns null where LibTorch has to copy.
std::shared_ptr<train::DeviceLink> make_link(Runtime& runtime, torch::Device device);

using BackendMaker = std::function<std::shared_ptr<train::Backend>(Runtime& runtime)>;
/// Makes another backend that of the host's memory while it lives: for tests, whose emulated device has that memory.
class HostBackendInUse {
 public:
  explicit HostBackendInUse(BackendMaker make);
  ~HostBackendInUse();
  HostBackendInUse(const HostBackendInUse&) = delete;
};

using LinkMaker = std::function<std::shared_ptr<train::DeviceLink>(Runtime& runtime)>;
/// Has models in the host's memory linked as those on a device are, while it lives: for tests.
class HostLinkInUse {
 public:
  explicit HostLinkInUse(LinkMaker make);
  ~HostLinkInUse();
  HostLinkInUse(const HostLinkInUse&) = delete;

 private:
  const LinkMaker before_;
};

}  // namespace cohive::libtorch
