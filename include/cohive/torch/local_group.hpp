/// \file
/// LocalGroup and LocalOptimizer: the ranks of one machine, processes or threads with a GPU each, train as one peer.
/// Rank 0 speaks for all of them: only it has a Swarm and an Optimizer.
///
///   every rank > the process group > rank 0: the mean of their gradients, weighted by samples > Optimizer::step
///   rank 0 > every rank: what the step did, and the parameters where it changed them
///
/// Started by torchrun, or with LOCAL_RANK and LOCAL_WORLD_SIZE set:
///
///   cohive::LocalGroup group(cohive::LocalGroupOptions::from_environment());
///   std::optional<cohive::Swarm> swarm;
///   std::optional<cohive::Optimizer> optimizer;   // made where group.leads()
///   cohive::LocalOptimizer node(group, optimizer ? &*optimizer : nullptr, model->parameters());
///   node.load_state_from_peers();
///   for (StepReport report; report.epoch < 100;) {
///     loss(model, loader.next()).backward();
///     report = node.step(batch_size);
///   }
///   node.finish();
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohive/torch/optimizer.hpp"

namespace c10d {
class Backend;
}

namespace cohive {

/// Which rank a process is, of how many, and where they meet.
struct LocalGroupOptions {
  std::size_t rank = 0,           ///< of this process, from 0
      size = 1;                   ///< number of ranks
  std::string meeting_path;       ///< a file in which rank 0 says where it is, until all ranks have come
  Duration timeout = 300s;        ///< for all ranks to arrive
  Duration rank_timeout = 1800s;  ///< for a rank that is silent: longer than rank 0 may be busy with the swarm

  /// LOCAL_RANK and LOCAL_WORLD_SIZE, one rank without them. The file lies in $XDG_RUNTIME_DIR, else /tmp, and is
  /// named after $MASTER_PORT, else after the parent process, which started all ranks; or it is $COHIVE_LOCAL_MEETING.
  /// Throws std::invalid_argument: numbers that are none, a rank that is not below the size.
  static LocalGroupOptions from_environment();
};

/// A process group of LibTorch's c10d, which reduces and broadcasts. All ranks call the same functions in the same
/// order. A rank that has gone, or was silent for too long, makes them throw std::runtime_error on all others, whose
/// peer ends with that: start all ranks again. Gloo listens on the loopback, and trusts all users of the machine.
class LocalGroup {
 public:
  /// Waits for all ranks, processes of one user, and makes a group of Gloo. Throws std::runtime_error when one does not
  /// come in time.
  explicit LocalGroup(LocalGroupOptions options);
  /// Takes a group that was made elsewhere, such as one of NCCL.
  /// \param backend  the ranks of this machine
  /// \param device   of the tensors that it exchanges: the rank's GPU for NCCL
  explicit LocalGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device = c10::DeviceType::CPU);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;

  /// Returns the number of this rank, from 0.
  std::size_t rank() const noexcept;
  /// Returns the number of ranks.
  std::size_t size() const noexcept;
  /// Whether this is rank 0, the peer of the swarm.
  bool leads() const noexcept { return rank() == 0; }
  /// Returns where tensors have to be that it exchanges.
  c10::Device device() const noexcept;

  /// Adds the values of all ranks to those of rank 0; those of the others are undefined afterwards. With two ranks the
  /// sum is exact to the bit; with more, Gloo adds in an order of its own.
  /// \param values  contiguous, on device()
  void sum(const at::Tensor& values);
  /// Gives the values of rank 0 to all ranks.
  /// \param values  of any type, contiguous, on device()
  void broadcast(const at::Tensor& values);
  /// As sum, in host memory.
  void sum(float* values, std::size_t count);
  /// As broadcast, in host memory.
  void broadcast(void* bytes, std::size_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The Optimizer of a group. Gradients are summed with every step, as DistributedDataParallel does. Parameters alone
/// are shared: buffers, such as the means of batch normalisation, are each rank's own. What rank 0 has its Optimizer do
/// by itself (load_checkpoint, average_parameters) reaches the other ranks with the next step whose report tells of a
/// change, or with finish(): load checkpoints before this object is made.
class LocalOptimizer {
 public:
  /// Gives all ranks the parameters of rank 0. Throws std::invalid_argument for arguments that are not as described.
  /// \param group       outlives this object
  /// \param optimizer   of rank 0, which outlives this object; null on the other ranks. Not with reuse_grad_buffers,
  ///                    use_local_updates or auxiliary
  /// \param parameters  the same on all ranks, in the same order
  LocalOptimizer(LocalGroup& group, Optimizer* optimizer, std::vector<at::Tensor> parameters);
  ~LocalOptimizer();
  LocalOptimizer(const LocalOptimizer&) = delete;

  /// Call after backward(), on all ranks: takes the gradients of a batch of `batch_size` samples, which may differ
  /// between ranks. All ranks get the same report, and can decide by it when to end.
  StepReport step(std::int64_t batch_size);
  /// As the functions of Optimizer, on all ranks; afterwards these hold the parameters of rank 0.
  bool load_state_from_peers();
  /// As Optimizer::finish: all ranks get the size of the group and the parameters of rank 0.
  std::size_t finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive
