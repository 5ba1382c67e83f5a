// A state as a file of named tensors, and back:
//   parameter.<i>, or the caller's names    parameters
//   extra.<i>                               extra tensors
//   optimizer.<i>.<statistic>               what the optimizer keeps of parameter i
//   optimizer.<statistic>                   and of all together
//   exchange.<exchange>.<name>              what an exchange keeps, see kept_values.hpp
//   averager.<name>                         what the averaging of gradients keeps from round to round; of another
//                                           exchange averager.<exchange>.<name>
// In a state they stand in this order, statistics of a parameter sorted by name; the last are no part of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/msgpack.hpp"

namespace cohive::train {

/// Throws std::invalid_argument for names of parameters that cannot be told apart, from each other or from other
/// tensors.
void check_names(const std::vector<std::string>& names, std::size_t parameters);

/// What a file says of the run that it comes from.
struct Origin {
  std::string run_id;  ///< empty: a file that no run wrote
  std::uint64_t epoch = 0;
};
Origin origin_of(const checkpoint::Metadata& metadata);
/// Errors: Errc::newer_version of the checkpoint module for a file whose names may mean something else than ours.
Result<> check_version(const checkpoint::Metadata& metadata);

/// Errors: cohive::Errc::invalid_argument for a state whose tensors have no names.
Result<checkpoint::TensorFile> to_file(const averaging::SharedState& state,
                                       std::vector<checkpoint::NamedTensor> of_averager, const std::string& run_id,
                                       const std::vector<std::string>& parameter_names,
                                       const checkpoint::Metadata& strings);
/// Moves what the averaging of gradients has saved out of a file.
std::vector<checkpoint::NamedTensor> take_of_averager(checkpoint::TensorFile& content);
/// Copies what rounds owe of the gradients, as "<i>.owed", for to_file. Null: nothing.
std::vector<checkpoint::NamedTensor> owed_tensors(const averaging::ResidualsPtr& residuals,
                                                  const std::vector<averaging::TensorInfo>& gradients);
/// Moves it from what take_of_averager returned into residuals. Errors: Errc::does_not_fit; nothing is changed then.
Result<> take_residuals(std::vector<checkpoint::NamedTensor>& saved, const averaging::ResidualsPtr& residuals,
                        const std::vector<averaging::TensorInfo>& gradients);
/// Returns the caller's strings.
checkpoint::Metadata strings_of(const checkpoint::Metadata& metadata);
/// The tensors of a file in the order of a state.
struct StateTensors {
  std::vector<codec::Tensor> tensors;
  msgpack::Array statistics;  ///< the names of the last ones, optimizer.<i>.<statistic> and so on
};
/// Errors: Errc::does_not_fit of the checkpoint module.
Result<StateTensors> to_tensors(checkpoint::TensorFile content, const std::vector<std::string>& parameter_names,
                                std::size_t parameters);

}  // namespace cohive::train
