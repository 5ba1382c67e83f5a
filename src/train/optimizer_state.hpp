// The state of a trainer as tensors and metadata, in the layout of hivemind's TrainingStateAverager.
// Source: hivemind wire spec, section 7.4.
#pragma once

#include <torch/torch.h>

#include "cohive/averaging/averager.hpp"

namespace cohive::train {

/// Nothing for types that are not averaged: integers, complex and quantised numbers.
std::optional<codec::DType> dtype_of(const torch::Tensor& tensor);

/// All parameters, in the order of the parameter groups.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

/// Copies parameters and optimizer statistics; call while neither changes.
averaging::SharedState pack_state(torch::optim::Optimizer& optimizer, std::uint64_t epoch,
                                  const std::string& group_bits);

/// Writes a downloaded state into the parameters and, where the layouts agree, into the optimizer's statistics.
/// Returns the epoch of the state, or why it does not fit (nothing is changed then).
Result<std::uint64_t> unpack_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                   std::uint64_t least_epoch);

}  // namespace cohive::train
