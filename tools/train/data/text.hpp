// Text as training data: windows of its bytes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <random>

#include "train/data/corpus.hpp"

namespace cohive::tools {

/// Windows of a text: inputs, and what follows each byte. [batch, length], int64.
struct Windows {
  torch::Tensor inputs, targets;
};
Windows random_windows(const Text& text, std::int64_t batch, std::int64_t length, std::mt19937_64& random);
/// At most `most` windows, evenly spread over the text.
Windows spread_windows(const Text& text, std::int64_t most, std::int64_t length);

}  // namespace cohive::tools
