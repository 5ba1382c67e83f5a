// The settings of an optimizer as PyTorch's state_dict() lists them, flattened as hivemind sends it: of every group the
// keys in alphabetical order, tuples in order, and in their midst, under "params", the numbers of its parameters. Which
// keys there are depends on the optimizer's class, the release of PyTorch and the scheduler. hivemind puts what it gets
// into the structure of its own optimizer, leaf by leaf: too few leaves are refused, others end up under wrong keys.
// Source: docs/wire/hivemind.md, section 7.4.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohive/core/msgpack.hpp"
#include "cohive/torch/model_extras.hpp"

namespace cohive::libtorch {

/// What a scheduler of PyTorch keeps in a group of parameters, such as {"initial_lr", 0.1}.
using ScheduleEntries = std::vector<std::pair<std::string, double>>;

/// Which keys peers are shown, and how those of a donor differ.
class OptimizerLayout {
 public:
  /// No scheduler, and the release of PyTorch that this LibTorch is of.
  OptimizerLayout() = default;
  /// \param entries  of each group; none: this trainer has no scheduler
  /// Throws std::invalid_argument with a sentence for a release of PyTorch that is none, or too old.
  OptimizerLayout(std::vector<ScheduleEntries> entries, const PythonPeers& python);

  /// Returns the leaves of all groups; none for a class of optimizers that PyTorch does not have.
  std::vector<msgpack::Value> leaves(torch::optim::Optimizer& optimizer) const;
  /// Returns those that a peer with a scheduler needs, where leaves() has none for it and nobody said that there are no
  /// such peers.
  std::optional<std::vector<msgpack::Value>> leaves_with_schedule(torch::optim::Optimizer& optimizer) const;

  struct Comparison {
    bool other_class = false;              ///< it is the state of another optimizer
    std::vector<std::string> differences;  ///< in words
  };
  /// Compares the settings of a donor with ours, and shows peers from now on the keys that it has: it is of the run.
  Comparison compare(torch::optim::Optimizer& optimizer, const msgpack::Array& theirs);

 private:
  /// \param entries  of each group
  std::vector<msgpack::Value> leaves(torch::optim::Optimizer& optimizer,
                                     const std::vector<ScheduleEntries>& entries) const;

  std::vector<ScheduleEntries> entries_;                 // of our scheduler, or of a donor's
  bool scheduled_ = false;                               // the former
  bool schedule_known_ = false, release_known_ = false;  // to the user
  bool schedule_shown_ = false;
  int release_ = kOwnRelease;
  static const int kOwnRelease;
};

}  // namespace cohive::libtorch
