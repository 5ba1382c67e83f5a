// Images as training data: files in the formats of MNIST (IDX) and CIFAR-10 (binary version), or made from a seed.
//
// IDX: two zero bytes, the type (8: unsigned bytes), the number of dimensions, each dimension as a big-endian 32-bit
// number, the values. Images have the dimensions [count, height, width] or [count, channels, height, width], labels
// [count]. CIFAR-10: records of one label and 3 x 32 x 32 bytes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

namespace cohive::tools {

struct ImageSet {
  torch::Tensor images;  ///< uint8, [count, channels, height, width]
  torch::Tensor labels;  ///< int64, [count]
};

struct ImageData {
  ImageSet training, held_out;
  std::int64_t classes = 0;
  std::string description;
};

/// Reads a folder: train-images-idx3-ubyte and train-labels-idx1-ubyte (and t10k-*, else every tenth image is held
/// out), or data_batch_1.bin to data_batch_5.bin and test_batch.bin. Throws Exit with code 2.
ImageData read_images(const std::string& folder);

/// Ten classes of 16 x 16 grey patterns under noise: the same wherever the seed is the same.
ImageData generate_images(std::uint64_t seed);

}  // namespace cohive::tools
