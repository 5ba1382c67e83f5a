// A small residual network for images, with batch normalisation (ResNet's basic block, three stages).
#pragma once

#include <torch/torch.h>

namespace cohive::tools {

struct CnnOptions {
  std::int64_t channels = 16;  ///< of the first stage; each further stage has twice as many
  std::int64_t blocks = 1;     ///< per stage
};

struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride);
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, shortcut{nullptr};  ///< shortcut: only where the shape changes
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(ResidualBlock);

struct CnnImpl : torch::nn::Module {
  CnnImpl(const CnnOptions& options, std::int64_t image_channels, std::int64_t classes);
  /// [batch, channels, height, width] to [batch, classes] logits.
  torch::Tensor forward(torch::Tensor images);
  torch::nn::Conv2d stem{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential stages;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Cnn);

}  // namespace cohive::tools
