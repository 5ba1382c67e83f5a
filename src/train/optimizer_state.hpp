// The state of a trainer as tensors and metadata, in the layout of hivemind's TrainingStateAverager.
// Source: hivemind wire spec, section 7.4.
#pragma once

#include <torch/torch.h>

#include "cohive/averaging/state_sharing.hpp"

namespace cohive::train {

/// Nothing for types that are not averaged: integers, complex and quantised numbers.
std::optional<codec::DType> dtype_of(const torch::Tensor& tensor);

/// Whether no value of a contiguous tensor is NaN or infinite.
bool all_finite(const torch::Tensor& tensor);

/// All parameters, in the order of the parameter groups.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

/// A state by reference: metadata as it travels, and the tensors of parameters and statistics themselves.
struct StateDescription {
  msgpack::Value metadata;
  std::vector<torch::Tensor> tensors;
};
StateDescription describe_state(torch::optim::Optimizer& optimizer, std::uint64_t epoch, const std::string& group_bits);

/// Copies it to the host's memory; call while the tensors do not change.
averaging::SharedState copy_of(const StateDescription& state);

/// Writes a downloaded state into the parameters and, where the layouts agree, into the optimizer's statistics.
/// Statistics may go on living in the state's memory where nobody else shares it. Returns the epoch of the state, or
/// why it does not fit (nothing is changed then).
Result<std::uint64_t> unpack_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                   std::uint64_t least_epoch);

}  // namespace cohive::train
