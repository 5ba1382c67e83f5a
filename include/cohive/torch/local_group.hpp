/// \file
/// LocalGroup and LocalOptimizer: the ranks of one machine, processes or threads with a GPU each, train as one peer.
/// Rank 0 speaks for all of them: only it has a Swarm and an Optimizer.
///
///   every rank > rank 0: the gradients of its batch      rank 0: their mean, weighted by samples > Optimizer::step
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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohive/torch/optimizer.hpp"

namespace cohive {

/// Which rank a process is, of how many, and where they meet.
struct LocalGroupOptions {
  std::size_t rank = 0,     ///< of this process, from 0
      size = 1;             ///< number of ranks
  std::string socket_path;  ///< where rank 0 awaits the other ranks; a socket of this name is made and removed
  Duration timeout = 300s;  ///< for all ranks to arrive

  /// LOCAL_RANK and LOCAL_WORLD_SIZE, one rank without them. The socket lies in $XDG_RUNTIME_DIR, else /tmp, and is
  /// named after $MASTER_PORT, else after the parent process, which started all ranks; or it is $COHIVE_LOCAL_SOCKET.
  /// Throws std::invalid_argument: numbers that are none, a rank that is not below the size.
  static LocalGroupOptions from_environment();
};

/// A star of Unix-domain sockets around rank 0, between processes of one user. All ranks call the same functions in the
/// same order. A rank that has gone makes them throw std::runtime_error.
class LocalGroup {
 public:
  /// Waits for all ranks. Throws std::runtime_error when one does not come in time.
  explicit LocalGroup(LocalGroupOptions options);
  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;

  /// Returns the number of this rank, from 0.
  std::size_t rank() const noexcept;
  /// Returns the number of ranks.
  std::size_t size() const noexcept;
  /// Whether this is rank 0, the peer of the swarm.
  bool leads() const noexcept { return rank() == 0; }

  /// Adds the values of all ranks to those of rank 0; the others keep theirs.
  void sum(float* values, std::size_t count);
  /// Gives the bytes of rank 0 to all ranks.
  void broadcast(void* bytes, std::size_t count);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The Optimizer of a group. Gradients are summed with every step, as DistributedDataParallel does.
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
