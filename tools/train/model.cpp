#include "train/model.hpp"

#include <cmath>

namespace cohive::tools {

BlockImpl::BlockImpl(const ModelOptions& o) : heads(o.heads) {
  norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  qkv = register_module("qkv", torch::nn::Linear(o.width, 3 * o.width));
  out = register_module("out", torch::nn::Linear(o.width, o.width));
  up = register_module("up", torch::nn::Linear(o.width, 4 * o.width));
  down = register_module("down", torch::nn::Linear(4 * o.width, o.width));
}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  const auto batch = x.size(0), length = x.size(1), width = x.size(2);
  const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
  auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads));
  const auto future = torch::ones({length, length}, torch::kBool).triu(1);
  scores = scores.masked_fill(future, -1e9);
  const auto mixed =
      torch::matmul(torch::softmax(scores, -1), parts[2]).transpose(1, 2).reshape({batch, length, width});
  x = x + out(mixed);
  return x + down(torch::gelu(up(norm2(x))));
}

CharTransformerImpl::CharTransformerImpl(const ModelOptions& o) {
  symbols = register_module("symbols", torch::nn::Embedding(o.vocabulary, o.width));
  positions = register_module("positions", torch::nn::Embedding(o.context, o.width));
  for (std::int64_t i = 0; i < o.layers; ++i) blocks->push_back(Block(o));
  register_module("blocks", blocks);
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  head = register_module("head", torch::nn::Linear(o.width, o.vocabulary));
  torch::NoGradGuard no_grad;
  symbols->weight.mul_(0.1);
  positions->weight.mul_(0.1);
}

torch::Tensor CharTransformerImpl::forward(torch::Tensor input) {
  auto x = symbols(input) + positions(torch::arange(input.size(1)));
  return head(norm(blocks->forward(x)));
}

}  // namespace cohive::tools
