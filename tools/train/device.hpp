// Where models compute.
#pragma once

#include <torch/torch.h>

#include <string>

namespace cohive::tools {

/// Reads the value of --device. Throws Exit with code 2 for what is none, and for a GPU that this program or machine
/// has not.
torch::Device device_from_text(const std::string& text);

}  // namespace cohive::tools
