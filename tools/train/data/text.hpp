// Text as training data: the bytes of one file or of all files of a folder, and windows of them.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace cohive::tools {

/// Reads a file, or every regular file below a folder in the order of names. Throws Exit with code 2.
std::string read_text(const std::string& path, std::size_t least);

/// Windows of a text: inputs, and what follows each byte. [batch, length], int64.
struct Windows {
  torch::Tensor inputs, targets;
};
Windows random_windows(std::string_view text, std::int64_t batch, std::int64_t length, std::mt19937_64& random);
/// At most `most` windows, evenly spread over the text.
Windows spread_windows(std::string_view text, std::int64_t most, std::int64_t length);

}  // namespace cohive::tools
