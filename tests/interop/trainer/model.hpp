// The models of the trainers for tests: two parameters whose gradients are constants, so that what a run computes is
// known. A case is a JSON object, all of whose keys may be left out:
//   {"algorithm": "sgd", "schedule": "half" | "one-cycle" | "step", "groups": 1 or 2, "frozen": "before" | "middle",
//    "python_scheduler": bool, "python_torch": "2.6"}
#pragma once

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "cohive/torch/optimizer.hpp"

struct TestModel {
  /// Throws std::invalid_argument for a name that is none.
  explicit TestModel(const nlohmann::json& of);

  /// Computes the gradients of a batch. \param epoch  that it belongs to: some freeze the bias in the middle
  void backward(double gradient, std::uint64_t epoch);
  /// Parameters, learning rates of the groups, and what the optimizer keeps, under "0.exp_avg" and the like.
  nlohmann::json state() const;

  bool freezes_later = false;
  torch::Tensor weight, bias;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  cohive::SchedulerFn scheduler;
  cohive::PythonPeers python;
};

std::vector<double> values_of(const torch::Tensor& tensor);
