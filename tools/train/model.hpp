// A small character-level transformer (GPT-2's block, pre-norm, causal).
#pragma once

#include <torch/torch.h>

namespace cohive::tools {

struct ModelOptions {
  std::int64_t vocabulary = 128, context = 64, width = 96, heads = 4, layers = 2;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const ModelOptions& options);
  torch::Tensor forward(torch::Tensor x);
  std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct CharTransformerImpl : torch::nn::Module {
  explicit CharTransformerImpl(const ModelOptions& options);
  /// [batch, length] symbols to [batch, length, vocabulary] logits.
  torch::Tensor forward(torch::Tensor symbols);
  torch::nn::Embedding symbols{nullptr}, positions{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CharTransformer);

}  // namespace cohive::tools
