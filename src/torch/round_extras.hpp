// What rounds of the state average beside parameters, in hivemind's order: statistics of the optimizer, one name after
// another, then extra tensors. All of it travels through float32 copies in host memory. Source: docs/wire/hivemind.md,
// section 7.4.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/torch/model_extras.hpp"
#include "cohive/train/buffer.hpp"
#include "cohive/train/replica.hpp"
#include "device_backend.hpp"

namespace cohive::libtorch {

/// One thread at a time calls it.
class RoundExtras {
 public:
  /// Throws std::invalid_argument with a sentence for tensors that cannot be averaged, and statistics that the
  /// optimizer does not keep.
  /// \param own_types  the schema names the tensors' own types, as that of Python peers does whose optimizers are
  /// offloaded
  RoundExtras(torch::optim::Optimizer& optimizer, ModelExtras extras, bool own_types);

  bool empty() const noexcept { return infos_.empty(); }
  /// Tells whether publish() writes to statistics of the optimizer.
  bool has_statistics() const noexcept { return !statistics_.empty(); }
  const std::vector<averaging::TensorInfo>& infos() const noexcept { return infos_; }
  const std::vector<torch::Tensor>& tensors() const noexcept { return extras_.extra_tensors; }

  /// Copies the extra tensors for a round that begins while the trainer computes, and may change them.
  void hold_tensors(TrainerStream& trainer);
  /// Copies what a round averages. The memory is good until the next call of end(false), publish() or forget().
  /// In a round of the next parameters, extra tensors are those that hold_tensors() has found.
  std::vector<averaging::TensorSpan> begin(train::ParameterRound how, TrainerStream& trainer);
  /// Ends the round. What was averaged waits for publish().
  void end(bool averaged);
  /// Copies what was averaged to the devices of the live values, so that publish() waits for none.
  void stage(TrainerStream& trainer);
  /// Adds what the round has changed to the live values.
  void publish();
  /// Forgets a round that was not published: the live values were replaced.
  void forget() noexcept;

 private:
  /// A copy of one tensor, and what a round makes of it: its average, or how it changes.
  struct Copy {
    train::Buffer read, written;  // by the round
    torch::Tensor before, after;  // the same, and on the device of the live value once it is staged
  };
  struct Statistic {
    std::size_t group, parameter;  // in the group
    std::string name;
  };
  void add_statistics(const std::string& name);
  void add_info(const torch::Tensor& tensor, codec::Role role, codec::TensorKey key, bool own_type);
  static Copy copy_of(const torch::Tensor& tensor);
  torch::Tensor read(const Statistic& which);
  torch::Tensor merged(const torch::Tensor& live, const Copy& copy) const;
  void write(const Statistic& which, const Copy& copy);

  torch::optim::Optimizer& optimizer_;
  ModelExtras extras_;
  std::vector<Statistic> statistics_;
  std::vector<averaging::TensorInfo> infos_;
  std::vector<Copy> copies_;  // from begin() on, as infos_
  std::vector<Copy> held_;    // of extra tensors
  bool differences_ = false, averaged_ = false;
};

}  // namespace cohive::libtorch
