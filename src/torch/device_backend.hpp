// What computes with the tensors of a device, where cohive's own steps run.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "cohive/train/backend.hpp"
#include "cohive/train/device_link.hpp"

namespace cohive::libtorch {

/// Where a trainer queues its work on a device, for threads that are not the trainer's: LibTorch gives each thread a
/// stream of its own, which nothing orders with the trainer's. Any thread. On the host it does nothing.
class TrainerStream {
 public:
  virtual ~TrainerStream() = default;

  /// Notes that the calling thread is the trainer's, and where it queues its work now.
  virtual void note() {}
  /// While the result lives, LibTorch queues what the calling thread asks for behind the trainer's work, and what the
  /// trainer asks for later behind that. Memory that LibTorch allocates meanwhile is the trainer's stream's.
  virtual std::shared_ptr<void> in_turn() { return nullptr; }
  /// While the result lives, LibTorch queues it behind the trainer's work, and the trainer goes on beside it: for what
  /// reads the model and ends with a wait, such as copies to the host.
  virtual std::shared_ptr<void> beside() { return nullptr; }
};

/// Returns that of a model's device.
std::shared_ptr<TrainerStream> trainer_stream_of(torch::Device device);

/// Returns null, and says why, for a device that cohive does not compute on: averaging is the host's then.
std::shared_ptr<train::Backend> make_backend(Runtime& runtime, torch::Device device,
                                             const std::shared_ptr<TrainerStream>& trainer);

/// Links a device to the host for an offloaded optimizer. Returns null, and says why, where LibTorch has to copy.
std::shared_ptr<train::DeviceLink> make_link(Runtime& runtime, torch::Device device);

using BackendMaker = std::function<std::shared_ptr<train::Backend>(Runtime& runtime)>;
/// Makes another backend that of the host's memory while it lives: for tests, whose emulated device has that memory.
class HostBackendInUse {
 public:
  explicit HostBackendInUse(BackendMaker make);
  ~HostBackendInUse();
  HostBackendInUse(const HostBackendInUse&) = delete;

 private:
  const BackendMaker before_;
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
