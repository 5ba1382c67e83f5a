// The state of a model as tensors and metadata, in the layout of hivemind's TrainingStateAverager: parameters, extra
// tensors, then what the optimizer keeps. Source: docs/wire/hivemind.md, section 7.4.
#pragma once

#include <torch/torch.h>

#include <functional>

#include "cohive/averaging/state_sharing.hpp"
#include "optimizer_layout.hpp"

namespace cohive::libtorch {

/// Returns nothing for types that are not averaged: integers, complex and quantised numbers.
std::optional<codec::DType> dtype_of(const torch::Tensor& tensor);
/// The same for types that travel in states: integers and truth values, too.
std::optional<codec::DType> wire_type_of(const torch::Tensor& tensor);

/// Returns the shape of a tensor as it travels. Throws std::invalid_argument with a sentence for a dimension of 2^32 or
/// more.
codec::Shape shape_of(const torch::Tensor& tensor);

/// A state by reference: metadata as it travels, and the tensors of parameters and statistics themselves.
struct StateDescription {
  msgpack::Value metadata;
  std::optional<averaging::SharedState::Other> if_refused;
  std::vector<torch::Tensor> tensors;
  std::vector<codec::CompressionInfo> infos;
  std::vector<std::string> names;  ///< as checkpoints have them: parameter.<i>, extra.<i>, optimizer.<i>.<statistic>
};
/// \param parameters  in place of those of the optimizer, where newer ones are not live yet; else the same
/// \param extras  extra tensors, which come after them
/// \param layout  of the optimizer's settings. Statistics of parameters that were never stepped are there, too, as they
/// are before the first step.
StateDescription describe_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                std::uint64_t epoch, const std::vector<torch::Tensor>& extras = {},
                                const OptimizerLayout& layout = {});

/// Copies it to the host's memory, while the tensors do not change.
averaging::SharedState copy_of(const StateDescription& state);
/// Refers to parameters and statistics in host memory where they are, and copies what is left.
averaging::SharedState view_of(const StateDescription& state);
/// Returns a parameter as publish() is about to leave it, by adding a change to it.
torch::Tensor with_change(const torch::Tensor& parameter, const torch::Tensor& change);
/// Copies what `describe` returns while a trainer may write to `parameters` by itself: their version counters tell.
/// nullopt when they change too often.
std::optional<averaging::SharedState> copy_unless_changed(const std::vector<torch::Tensor>& parameters,
                                                          const std::function<StateDescription()>& describe);

/// A downloaded state that fits a model, to be written into it.
struct CheckedState {
  std::uint64_t epoch = 0;
  std::vector<torch::Tensor> parameters, extras;  ///< on the host, in the type they came in
  /// Of each parameter; empty where the layouts do not agree: a wrong guess would be worse than a fresh start.
  std::vector<std::vector<std::pair<std::string, torch::Tensor>>> statistics;
  std::string note;  ///< a sentence without its subject: what else differs; empty: nothing
};
/// Errors: averaging::Errc::bad_state for another layout of parameters or extra tensors, values that are not finite, no
/// epoch, or one below `least_epoch`. `layout` learns from the donor's. The metadata of a file names its statistics, as
/// "statistics". Tensors may go on living in the state's memory where nothing else shares it.
Result<CheckedState> check_state(torch::optim::Optimizer& optimizer, const averaging::DownloadedState& state,
                                 std::uint64_t least_epoch, const std::vector<torch::Tensor>& extras,
                                 OptimizerLayout& layout);
/// Writes the statistics into the optimizer, as make_usable() leaves them.
void load_statistics(torch::optim::Optimizer& optimizer, const CheckedState& state);
/// Writes a state that check_state() takes into the optimizer, `parameters`, which are its own, and extra tensors.
/// Returns the state's epoch. What differs without harm is logged.
Result<std::uint64_t> load_state(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                                 const averaging::DownloadedState& state, std::uint64_t least_epoch,
                                 const std::vector<torch::Tensor>& extras, OptimizerLayout& layout);

}  // namespace cohive::libtorch
