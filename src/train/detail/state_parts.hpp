// The tensors of a round of the state: parameters of a backend, and what is averaged beside them in host memory.
#pragma once

#include <utility>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/train/backend.hpp"

namespace cohive::train {

/// \param infos   of all, parameters first
/// \param memory  of the parameters
/// \param beside  of the others; empty: there are none
inline std::shared_ptr<averaging::TensorParts> state_parts(Runtime& runtime, Backend& backend,
                                                           const std::vector<averaging::TensorInfo>& infos,
                                                           std::vector<averaging::TensorSpan> memory,
                                                           std::vector<averaging::TensorSpan> beside,
                                                           bool differences) {
  const auto end = infos.begin() + static_cast<std::ptrdiff_t>(memory.size());
  auto parameters = backend.state_parts({infos.begin(), end}, std::move(memory), differences);
  if (beside.empty()) return parameters;
  averaging::HostPartsOptions options;
  options.differences = differences;
  auto of_host = std::make_shared<averaging::HostParts>(runtime, std::vector<averaging::TensorInfo>(end, infos.end()),
                                                        std::move(beside), std::move(options));
  return averaging::JoinedParts::owning({std::move(parameters), std::move(of_host)});
}

}  // namespace cohive::train
