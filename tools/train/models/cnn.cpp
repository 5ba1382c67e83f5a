#include "train/models/cnn.hpp"

namespace cohive::tools {
namespace {

constexpr std::int64_t kStages = 3;

torch::nn::Conv2d conv3x3(std::int64_t from, std::int64_t to, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride) {
  conv1 = register_module("conv1", conv3x3(from, to, stride));
  norm1 = register_module("norm1", torch::nn::BatchNorm2d(to));
  conv2 = register_module("conv2", conv3x3(to, to, 1));
  norm2 = register_module("norm2", torch::nn::BatchNorm2d(to));
  if (from != to || stride != 1)
    shortcut = register_module("shortcut",
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)));
}

torch::Tensor ResidualBlockImpl::forward(torch::Tensor x) {
  const auto changed = norm2(conv2(torch::relu(norm1(conv1(x)))));
  return torch::relu(changed + (shortcut ? shortcut(x) : x));
}

CnnImpl::CnnImpl(const CnnOptions& o, std::int64_t image_channels, std::int64_t classes) {
  stem = register_module("stem", conv3x3(image_channels, o.channels, 1));
  norm = register_module("norm", torch::nn::BatchNorm2d(o.channels));
  std::int64_t from = o.channels;
  for (std::int64_t stage = 0; stage < kStages; ++stage) {
    const std::int64_t to = o.channels << stage;
    for (std::int64_t block = 0; block < o.blocks; ++block) {
      stages->push_back(ResidualBlock(from, to, stage > 0 && block == 0 ? 2 : 1));
      from = to;
    }
  }
  register_module("stages", stages);
  head = register_module("head", torch::nn::Linear(from, classes));
}

torch::Tensor CnnImpl::forward(torch::Tensor images) {
  const auto features = stages->forward(torch::relu(norm(stem(images))));
  return head(features.mean({2, 3}));
}

}  // namespace cohive::tools
