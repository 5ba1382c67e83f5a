// How the gradients of a model on a device get into host memory, where an offloaded optimizer adds them up: into pinned
// memory, on a stream beside the trainer's, bucket by bucket. Where it may, a bucket leaves while backward() still
// makes the next one: hooks tell when a gradient is complete.
#pragma once

#include <torch/torch.h>

#include <mutex>

#include "cohive/train/device_link.hpp"
#include "cohive/train/gradient_sums.hpp"

namespace cohive::libtorch {

/// Tells whether so many handles are all that refers to a tensor, and the tensor is all that its memory holds: the last
/// view of a large buffer keeps all of it.
inline bool is_exclusive(const torch::Tensor& tensor, std::size_t handles = 1) {
  return tensor.use_count() == handles && tensor.storage().use_count() == 1 &&
         tensor.storage().nbytes() <= tensor.nbytes();
}

/// The trainer's thread, and those of LibTorch that call hooks.
class GradientDownload {
 public:
  /// \param early  begins during backward(). What changes a gradient afterwards without its version counter knowing,
  /// such as writing to its data(), is missed then.
  GradientDownload(std::shared_ptr<train::DeviceLink> link, std::vector<torch::Tensor> parameters, bool early);
  /// Copies that are under way go on.
  ~GradientDownload();
  GradientDownload(const GradientDownload&) = delete;

  /// Gradients on their way: to be read when the transfer is done. They keep its memory.
  struct Batch {
    std::vector<train::GradientSums::Gradient> gradients;
    std::shared_ptr<train::Transfer> transfer;  ///< null where there are none
  };
  /// Takes the gradients of the parameters, which have none afterwards. Copies what has not been copied yet, or not as
  /// it is now. Throws once what kept an earlier copy from being queued; the gradients stay then.
  Batch take();
  /// Takes from `gradients`, which were those of the parameters, all that can be copied as they are: nothing else uses
  /// them, and the trainer has been noted since they were made. Any thread.
  Batch copy(std::vector<torch::Tensor>& gradients);
  /// Forgets what was copied: the gradients of the batch are thrown away.
  void drop();

 private:
  class Hook;
  /// The gradient of a parameter that was copied during backward().
  struct Early {
    torch::Tensor gradient;
    std::uint32_t version = 0;
    bool valid = false;
  };
  struct Idle;

  void complete(std::size_t parameter);
  void start_bucket();
  train::Transfer& transfer();
  MutableBytes place(std::size_t parameter);
  Batch leave(std::vector<torch::Tensor> gradients, const std::vector<std::size_t>& late,
              std::vector<torch::Tensor> owners);
  torch::Tensor prepared(torch::Tensor gradient, std::size_t parameter) const;

  const std::shared_ptr<train::DeviceLink> link_;
  const std::vector<torch::Tensor> parameters_;
  std::vector<std::size_t> offsets_;  // of each parameter in the memory of a transfer, and of the end
  std::mutex mutex_;
  std::shared_ptr<train::Transfer> current_;
  std::shared_ptr<Idle> idle_;  // transfers that are used again: new pinned memory takes long
  std::vector<Early> early_;
  std::vector<torch::Tensor> replaced_;  // gradients that were copied, and are no longer their parameter's
  std::vector<std::size_t> bucket_;      // parameters whose gradients leave next
  std::size_t bucket_bytes_ = 0;
  // backward() may run several times in a batch: a gradient is complete when the last one has added to it.
  std::vector<std::size_t> times_, expected_times_;
  std::exception_ptr failure_;
  std::shared_ptr<GradientDownload*> alive_;  // what hooks find, or null
};

}  // namespace cohive::libtorch
