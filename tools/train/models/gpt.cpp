#include "train/models/gpt.hpp"

#include <cmath>

namespace cohive::tools {
namespace {

struct Preset {
  const char* name;
  GptOptions options;
};
/// Named after the number of parameters; "tiny" learns on any processor within a minute.
constexpr Preset kPresets[] = {
    {"tiny", {}},
    {"1m", {.layers = 4, .width = 144, .heads = 4, .context = 64}},
    {"3m", {.layers = 4, .width = 256, .heads = 4, .context = 128}},
    {"10m", {.layers = 6, .width = 384, .heads = 6, .context = 256}},
    {"25m", {.layers = 8, .width = 512, .heads = 8, .context = 256}},
    {"85m", {.layers = 12, .width = 768, .heads = 12, .context = 512}},
    {"300m", {.layers = 24, .width = 1024, .heads = 16, .context = 1024}},
};

}  // namespace

std::optional<GptOptions> gpt_preset(const std::string& name) {
  for (const auto& preset : kPresets)
    if (name == preset.name) return preset.options;
  return std::nullopt;
}

std::string gpt_preset_help() {
  std::string names;
  for (const auto& preset : kPresets) names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

GptBlockImpl::GptBlockImpl(const GptOptions& o) : heads(o.heads) {
  norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  qkv = register_module("qkv", torch::nn::Linear(o.width, 3 * o.width));
  out = register_module("out", torch::nn::Linear(o.width, o.width));
  up = register_module("up", torch::nn::Linear(o.width, 4 * o.width));
  down = register_module("down", torch::nn::Linear(4 * o.width, o.width));
  torch::NoGradGuard no_grad;
  // What the blocks add up must not grow with their number (GPT-2 does the same).
  const double share = 1 / std::sqrt(2.0 * static_cast<double>(o.layers));
  out->weight.mul_(share);
  down->weight.mul_(share);
}

torch::Tensor GptBlockImpl::forward(torch::Tensor x) {
  const auto batch = x.size(0), length = x.size(1), width = x.size(2);
  const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
  const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  x = x + out(mixed.transpose(1, 2).reshape({batch, length, width}));
  return x + down(torch::gelu(up(norm2(x))));
}

GptImpl::GptImpl(const GptOptions& o) {
  symbols = register_module("symbols", torch::nn::Embedding(kByteValues, o.width));
  positions = register_module("positions", torch::nn::Embedding(o.context, o.width));
  for (std::int64_t i = 0; i < o.layers; ++i) blocks->push_back(GptBlock(o));
  register_module("blocks", blocks);
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width})));
  head = register_module("head", torch::nn::Linear(o.width, kByteValues));
  torch::NoGradGuard no_grad;
  symbols->weight.mul_(0.1);
  positions->weight.mul_(0.1);
}

torch::Tensor GptImpl::forward(torch::Tensor input) {
  auto x = symbols(input) + positions(torch::arange(input.size(1), input.device()));
  return head(norm(blocks->forward(x)));
}

}  // namespace cohive::tools
