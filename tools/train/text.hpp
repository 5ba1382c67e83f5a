// Text as training data: bytes of one file or of all files of a folder, and random windows of it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <random>
#include <string>

namespace cohive::tools {

/// Reads a file, or every regular file below a folder in the order of names. Throws Exit with code 2.
std::string read_text(const std::string& path, std::size_t least);

/// Characters by frequency; rare ones share one symbol.
class Vocabulary {
 public:
  explicit Vocabulary(const std::string& text);
  std::int64_t size() const { return size_; }
  std::vector<std::int64_t> encode(const std::string& text) const;

 private:
  std::int64_t symbols_[256];
  std::int64_t size_ = 0;
};

/// Batches of (input, target) windows, shape [batch, length], int64.
std::pair<torch::Tensor, torch::Tensor> random_batch(const std::vector<std::int64_t>& symbols, std::int64_t batch,
                                                     std::int64_t length, std::mt19937_64& random);

}  // namespace cohive::tools
