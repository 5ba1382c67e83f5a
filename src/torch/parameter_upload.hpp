// How parameters that were stepped in host memory get back to a model on a device: converted to the model's type in
// pinned memory, from where they are copied beside the trainer's work, stretch by stretch while others are still
// stepped. What the trainer queues afterwards waits for them, its thread does not.
#pragma once

#include <torch/torch.h>

#include <exception>
#include <mutex>
#include <optional>

#include "averaging/detail/stretch_set.hpp"
#include "cohive/optim/view.hpp"
#include "cohive/train/device_link.hpp"

namespace cohive::libtorch {

/// One call at a time but for stage(). Not for the loop, but for begin() and send(). LibTorch copies to mirrors that
/// are not contiguous: finish() and send() are called in the trainer's turn.
class ParameterUpload {
 public:
  /// \param mirrors  what is written to
  ParameterUpload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> mirrors);

  /// Begins with new values, in place of those that were staged before.
  /// \param at_once  they go to the mirrors as they are staged, for the trainer waits; else with send()
  void begin(bool at_once);
  /// Converts a stretch of a parameter. Any threads, each with another stretch. An error comes with finish().
  void stage(const averaging::Stretch& stretch, std::span<const float> values) noexcept;
  /// Stages what is left of the parameters: afterwards all of them are on their way, or ready for send().
  void finish(const std::vector<torch::Tensor>& values);
  /// Does both for all values, which go to the mirrors at once.
  void send(const std::vector<torch::Tensor>& values);

  /// Tells whether values were begun and are not finished.
  bool begun() const noexcept { return staged_.has_value(); }
  /// Tells whether finished values wait for send().
  bool ready() const noexcept { return ready_; }
  /// Forgets what was staged.
  void forget() noexcept;
  /// Writes what is ready to the mirrors. At once.
  void send();

 private:
  void prepare();
  optim::View place(std::size_t parameter) const;
  void upload(const averaging::Stretch& stretch);

  const std::shared_ptr<train::DeviceLink> link_;
  const std::vector<torch::Tensor> mirrors_;
  std::vector<optim::DType> types_;   // of the mirrors
  std::vector<std::size_t> offsets_;  // of each mirror in the memory of the transfer, and of the end
  std::unique_ptr<train::Transfer> transfer_;
  std::mutex mutex_;
  bool at_once_ = false, ready_ = false;
  bool prepared_ = false;                        // the memory is not read any more by copies before
  std::optional<averaging::StretchSet> staged_;  // set: begun, and not finished
  std::exception_ptr failure_;
};

}  // namespace cohive::libtorch
