// How parameters that were stepped in host memory get back to a model on a device: converted to the model's type in
// pinned memory, from where they are copied beside the trainer's work. What the trainer queues afterwards waits for
// them, its thread does not.
#pragma once

#include <torch/torch.h>

#include "cohive/train/device_link.hpp"

namespace cohive::libtorch {

/// One call at a time.
class ParameterUpload {
 public:
  /// \param mirrors  what is written to
  ParameterUpload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> mirrors);

  /// Converts values of the parameters, in place of those that were staged before. Not for the loop.
  void stage(const std::vector<torch::Tensor>& values);
  /// Forgets them.
  void forget() noexcept { staged_ = false; }
  bool staged() const noexcept { return staged_; }
  /// Writes what was staged to the mirrors. At once.
  void send();
  /// Does both, and copies one bucket while it converts the next.
  void send(const std::vector<torch::Tensor>& values);

 private:
  void prepare();
  torch::Tensor place(std::size_t parameter) const;
  void written(std::size_t parameter) const;

  const std::shared_ptr<train::DeviceLink> link_;
  const std::vector<torch::Tensor> mirrors_;
  std::vector<std::size_t> offsets_;  // of each mirror in the memory of the transfer, and of the end
  std::unique_ptr<train::Transfer> transfer_;
  bool staged_ = false;
};

}  // namespace cohive::libtorch
