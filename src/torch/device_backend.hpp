// What computes with the tensors of a device, where cohive's own steps run.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "cohive/train/backend.hpp"

namespace cohive::libtorch {

/// Returns null for a device that this build has no steps for.
std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device);

using BackendMaker = std::function<std::shared_ptr<train::Backend>(Runtime& runtime)>;
/// Makes another backend that of the host's memory while it lives: for tests, whose emulated device has that memory.
class HostBackendInUse {
 public:
  explicit HostBackendInUse(BackendMaker make);
  ~HostBackendInUse();
  HostBackendInUse(const HostBackendInUse&) = delete;
};

}  // namespace cohive::libtorch
