// The workloads that there are.
#pragma once

#include "train/models/cnn.hpp"
#include "train/models/gpt.hpp"
#include "train/workload.hpp"

namespace cohive::tools {

std::unique_ptr<Workload> make_text_workload(const WorkloadOptions& options);
std::unique_ptr<Workload> make_image_workload(const WorkloadOptions& options);

}  // namespace cohive::tools
